"""List image files: in folders, in CSV files with their labels and other columns, and single files."""

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import NamedTuple

from liftedstruct.data.image_files import brief, image_tree

__all__ = ["QUERY", "CsvRow", "ListedFile", "csv_rows", "list_files", "list_items"]

QUERY = "query"  # word in the column split
LABELS = ("label", "product")  # names of the column of the class; the first of them that a file has


@dataclass(frozen=True)
class ListedFile:
    """Image file found by `list_items`.

    Attributes:
        file: path of the file.
        name: path relative to the folder or CSV file in which it was found, with forward slashes.
        label: folder of the file, or the column `label`; "" if there is none.
        metadata: the other columns of a CSV file, by their names in lower case.

    """

    file: str
    name: str
    label: str
    metadata: dict[str, str] = field(default_factory=dict)


class CsvRow(NamedTuple):
    """Row of a CSV file."""

    line: int  # its first line in the file
    path: str
    label: str | None  # None without such a column
    others: dict[str, str]  # the other columns, by their names in lower case


def list_items(paths: Sequence[str | Path]) -> list[ListedFile]:
    """List the image files in folders, CSV files and single files.

    A CSV file has a header with a column `path`, relative to the folder of the file. The column `label`, or else `product`, is
    the class; all other columns, such as `id` or `price`, are metadata. Files listed in a CSV file need not exist.
    """
    items: list[ListedFile] = []
    for path in map(Path, paths):
        if path.is_dir():
            for folder, images in image_tree(path).images.items():
                names = [f"{folder}/{image}" if folder else image for image in images]
                items += [ListedFile(str(path / name), name, folder) for name in names]
        elif not path.exists():
            raise ValueError(f"images must be existing files or folders, got {path}. Check the path.")
        elif path.suffix.lower() == ".csv":
            for line, file, label, others in csv_rows(path, need_label=False):
                if not file:
                    raise ValueError(f"{str(path)!r}, line {line}: path must not be empty. Fill it in, or remove the line.")
                items.append(ListedFile(str(path.parent / file), _name(file, path.parent), label or "", others))
        else:
            items.append(ListedFile(str(path), path.name, ""))
    if not items:
        raise ValueError(f"images must contain at least one image file, got none in {brief(map(str, paths))}. Check the path.")
    return items


def list_files(paths: Sequence[str | Path]) -> tuple[list[str], list[str]]:
    """Return the files of `list_items` and their labels."""
    items = list_items(paths)
    return [item.file for item in items], [item.label for item in items]


def csv_rows(path: Path, need_label: bool = True) -> Iterator[CsvRow]:
    """Yield the rows of a CSV file with a header and a column `path`. Values are used verbatim, including whitespace."""
    if not path.is_file():
        raise ValueError(f"a dataset of kind 'csv' must be a file, got the folder {str(path)!r}. Pass the .csv file in it.")
    try:
        # bytes that are not UTF-8 become surrogates, as in file names
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            reader = csv.reader(file, strict=True)
            header = [name.strip().lower() for name in next(reader, [])]
            label = next((name for name in LABELS if name in header), None)
            if "path" not in header or (need_label and label is None):
                raise ValueError(
                    f"{str(path)!r} must have the comma-separated column{'s path and label' if need_label else ' path'}, "
                    f"got the header {brief(header)}. Name the columns in the first line."
                )
            columns = {name: header.index(name) for name in header if name}
            p, y = columns.pop("path"), columns.pop(label) if label else None
            least = max(p, y or 0, columns.get("split", 0))
            last = reader.line_num
            for row in reader:
                first, last = last + 1, reader.line_num  # a quoted field may have line breaks
                if not row:
                    continue
                if len(row) <= least:
                    raise ValueError(
                        f"{str(path)!r}, line {first}: a row must have {len(header)} columns, got {len(row)}. "
                        "Quote fields that contain commas, and write a comma for each empty field."
                    )
                others = {name: row[i] if i < len(row) else "" for name, i in columns.items()}
                yield CsvRow(first, row[p], None if y is None else row[y], others)
    except csv.Error as error:
        raise ValueError(
            f"{str(path)!r}, line {reader.line_num}: a row must be valid CSV, got: {error}. "
            "Close quotes, and double quotes inside fields."
        ) from error


def _name(file: str, folder: Path) -> str:
    """Return a path of a CSV file relative to its folder, or an absolute path that is not below it, with forward slashes."""
    path, root = os.path.normpath(folder.absolute() / file), folder.absolute()
    outside = PurePath(file).is_absolute() and not PurePath(path).is_relative_to(root)
    return PurePath(path if outside else os.path.relpath(path, root)).as_posix()
