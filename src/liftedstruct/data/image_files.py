"""The image files below a folder: found by their suffix, in an order that is the same on every machine."""

import heapq
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUFFIXES", "Tree", "image_tree", "is_image", "some"]

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class Tree:
    """What a walk found."""

    images: dict[str, list[str]]  # folder as "chairs/red", "" for the root -> names of its images; both in byte order
    warnings: tuple[str, ...]  # what was left out, in plain words
    left_out: tuple[str, ...] = ()  # all of it, by path

    def paths(self, below: str = "") -> list[str]:
        """Every image, by its path, behind the path of the root itself."""
        return [_join(below, _join(folder, name)) for folder, names in self.images.items() for name in names]


def is_image(name: str) -> bool:
    """Whether the name ends as an image's does, in capitals or not."""
    return name[name.rfind(".") :].lower() in SUFFIXES if "." in name else False


def image_tree(root: Path) -> Tree:
    """Walk a folder to any depth, through links too, without hidden files and folders.

    A folder is entered once, by its own name before the name of a link, so links in a circle come to an end. What is named as
    an image is, and is none (a broken link, a pipe, a folder with no image in it), counts as one: decoding says why it is not.
    """
    images: dict[str, list[str]] = {}
    others: list[str] = []  # not images
    closed: list[str] = []  # not readable
    again: list[str] = []  # links to folders that are read elsewhere, or that hold the root
    seen = {_identity(parent) for parent in root.resolve().parents}
    named: list[str] = []  # folders that are named as images are
    folders, links = [""], list[tuple[bytes, str]]()
    while folders or links:
        folder = folders.pop() if folders else heapq.heappop(links)[1]
        try:
            identity = _identity(root / folder)
            if identity in seen:
                again.append(folder)
                continue
            seen.add(identity)
            with os.scandir(root / folder) as listing:
                entries = [entry for entry in listing if not entry.name.startswith(".")]
        except OSError as error:
            if not folder:
                raise ValueError(
                    f"{str(root)!r} must be a folder that can be read, got: {error.strerror}. Check its permissions."
                ) from error
            closed.append(folder)
            continue
        if is_image(folder):
            named.append(folder)
        names = []
        for entry in entries:
            path = _join(folder, entry.name)
            if _is_folder(entry):
                if entry.is_symlink():
                    heapq.heappush(links, (os.fsencode(path), path))
                else:
                    folders.append(path)
            elif is_image(entry.name):
                names.append(entry.name)
            else:
                others.append(path)
        if names:
            images[folder] = names
    for path in _outermost(named, holding={above for folder in images for above in _with_parents(folder)}):
        folder, _, name = path.rpartition("/")
        images.setdefault(folder, []).append(name)
    left_out = {
        "files that are not images": sorted(others, key=os.fsencode),
        "folders that cannot be read": sorted(closed, key=os.fsencode),
        "links to folders that are read already": sorted(again, key=os.fsencode),
    }
    return Tree(
        images={folder: sorted(images[folder], key=os.fsencode) for folder in sorted(images, key=os.fsencode)},
        warnings=tuple(f"{what} are left out: {some(paths)}" for what, paths in left_out.items() if paths),
        left_out=tuple(path for paths in left_out.values() for path in paths),
    )


def some(names: Iterable[str], most: int = 5) -> str:
    """How many there are and what the first are called, on one line whatever is in the names.

    >>> some(["a", "b", "c"], most=2)
    "3 ('a', 'b', ...)"
    """
    names = list(names)
    return f"{len(names):,} ({', '.join(map(repr, names[:most]))}{', ...' if len(names) > most else ''})"


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _with_parents(path: str) -> list[str]:
    """``a/b/c``, ``a/b`` and ``a``."""
    return [path, *(path[:i] for i, character in enumerate(path) if character == "/")]


def _outermost(folders: Iterable[str], holding: set[str]) -> list[str]:
    """The folders that hold nothing, but for those inside of another such folder."""
    empty = set(folders) - holding
    return [folder for folder in empty if empty.isdisjoint(_with_parents(folder)[1:])]


def _identity(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False
