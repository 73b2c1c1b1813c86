"""Find image files in a folder by suffix, in the same order on every machine."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["SUFFIXES", "ImageTree", "brief", "image_tree", "is_image"]

SUFFIXES = frozenset({".avif", ".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True)
class ImageTree:
    """Image files in a folder and its subfolders."""

    images: dict[str, list[str]]  # folder such as "chairs/red", "" for the root -> file names; both in byte order
    warnings: tuple[str, ...]  # about what was left out
    left_out: tuple[str, ...] = ()  # paths of all files and folders that were left out

    def paths(self, below: str = "") -> list[str]:
        """Return the path of every image, with `below` in front of it."""
        return [_join(below, _join(folder, name)) for folder, names in self.images.items() for name in names]


def is_image(name: str) -> bool:
    """Return whether a file name has the suffix of an image, ignoring case."""
    return name[name.rfind(".") :].lower() in SUFFIXES if "." in name else False


def image_tree(root: Path) -> ImageTree:
    """Walk a folder recursively, following symbolic links and skipping hidden files and folders.

    Each folder is visited once, under its own path rather than a link's, so cyclic links terminate. A broken link or a pipe
    with the suffix of an image is included; decoding reports why it cannot be read.
    """
    images: dict[str, list[str]] = {}
    left_out: dict[str, list[str]] = {
        "files that are not images": [],
        "folders that cannot be read": [],
        "links to folders that were already visited": [],
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
                    f"{str(root)!r} must be a readable folder, got: {error.strerror}. Check its permissions."
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
    """Format the number of names and the first few of them, on one line whatever the names contain.

    Examples:
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
