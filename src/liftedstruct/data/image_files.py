"""The image files below a folder: found by their suffix, in an order that is the same on every machine."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUFFIXES", "ImageTree", "brief", "image_tree", "is_image"]

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class ImageTree:
    """The images below a folder."""

    images: dict[str, list[str]]  # folder as "chairs/red", "" for the root -> names of its images; both in byte order
    warnings: tuple[str, ...]  # what was left out
    left_out: tuple[str, ...] = ()  # all of it, by path

    def paths(self, below: str = "") -> list[str]:
        """Every image, by its path, behind the path of the root itself."""
        return [_join(below, _join(folder, name)) for folder, names in self.images.items() for name in names]


def is_image(name: str) -> bool:
    """Whether the name ends as an image's does, in capitals or not."""
    return name[name.rfind(".") :].lower() in SUFFIXES if "." in name else False


def image_tree(root: Path) -> ImageTree:
    """Walk a folder to any depth, through links too, without hidden files and folders.

    A folder is read once, by its own name before the name of a link, so links in a circle come to an end. A broken link or a
    pipe that is named as an image counts as one: decoding says why it is not.
    """
    images: dict[str, list[str]] = {}
    left_out: dict[str, list[str]] = {
        "files that are not images": [],
        "folders that cannot be read": [],
        "links to folders that are read already": [],
    }
    others, unreadable, repeated = left_out.values()
    seen = {_identity(parent) for parent in root.resolve().parents}
    folders, links = [""], list[str]()
    while folders or links:
        if not folders:
            links.sort(key=os.fsencode, reverse=True)
            folders.append(links.pop())
        folder = folders.pop()
        try:
            identity = _identity(root / folder)
            if identity in seen:
                repeated.append(folder)
                continue
            seen.add(identity)
            with os.scandir(root / folder) as listing:
                entries = [entry for entry in listing if not entry.name.startswith(".")]
        except OSError as error:
            if not folder:
                raise ValueError(
                    f"{str(root)!r} must be a folder that can be read, got: {error.strerror}. Check its permissions."
                ) from error
            unreadable.append(folder)
            continue
        for entry in entries:
            path = _join(folder, entry.name)
            if entry.is_dir(follow_symlinks=False):
                folders.append(path)
            elif entry.is_symlink() and os.path.isdir(entry):  # noqa: PTH112 - no Path for each entry
                links.append(path)
            elif is_image(entry.name):
                images.setdefault(folder, []).append(entry.name)
            else:
                others.append(path)
    for paths in (*left_out.values(), *images.values()):
        paths.sort(key=os.fsencode)
    return ImageTree(
        images={folder: images[folder] for folder in sorted(images, key=os.fsencode)},
        warnings=tuple(f"{what} are left out: {brief(paths)}" for what, paths in left_out.items() if paths),
        left_out=tuple(path for paths in left_out.values() for path in paths),
    )


def brief(names: Iterable[str], most: int = 5) -> str:
    """How many names there are and the first of them, on one line whatever is in the names.

    >>> brief(["a", "b", "c"], most=2)
    "3 ('a', 'b', ...)"
    """
    names = list(names)
    return f"{len(names):,} ({', '.join(map(repr, names[:most]))}{', ...' if len(names) > most else ''})"


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _identity(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino
