"""Listing of image files: their labels, names and metadata, and bad CSV files."""

from pathlib import Path

import pytest

from liftedstruct.data import ListedFile, list_files, list_items, read_images
from liftedstruct.data.listing import csv_rows


def touched(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def test_folders_lists_and_files(tmp_path: Path) -> None:
    folder = touched(tmp_path / "folder", "top.png", "chairs/red/1.png", "notes.txt")
    single = touched(tmp_path, "single.jpg") / "single.jpg"
    absolute = str(folder / "top.png")
    table = tmp_path / "lists" / "shop.CSV"
    touched(table.parent, "b/2.png")
    table.write_text(
        f'\ufeffID, Path ,Product,Price EUR,\n7,./b//2.png,lamp,"1,50",x\n,{absolute},,\n\n'
        f"9,{table.parent}/c.png, cup\n8,../x.png,a,,\n"
    )
    assert list_items([folder, table, str(single)]) == [
        ListedFile(absolute, "top.png", ""),
        ListedFile(str(folder / "chairs/red/1.png"), "chairs/red/1.png", "chairs/red"),
        ListedFile(str(table.parent / "b/2.png"), "b/2.png", "lamp", {"id": "7", "price eur": "1,50"}),
        ListedFile(absolute, absolute, "", {"id": "", "price eur": ""}),
        ListedFile(str(table.parent / "c.png"), "c.png", " cup", {"id": "9", "price eur": ""}),
        ListedFile(str(table.parent / "../x.png"), "../x.png", "a", {"id": "8", "price eur": ""}),
        ListedFile(str(single), "single.jpg", ""),
    ]
    files, labels = list_files([folder, single])
    assert files == [absolute, str(folder / "chairs/red/1.png"), str(single)]
    assert labels == ["", "chairs/red", ""]


def test_label_before_product(tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text("path,product,label,path\n1.png,p,l,2.png\n")
    assert list_items([table]) == [ListedFile(str(tmp_path / "1.png"), "1.png", "l", {"product": "p"})]
    table.write_text("path\n1.png\n")
    assert list_items([table]) == [ListedFile(str(tmp_path / "1.png"), "1.png", "")]
    table.write_text("path,product\n1.png,p\n2.png,q\n")
    touched(tmp_path, "1.png", "2.png")
    assert read_images(table).class_names == ("p", "q")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,label\n", "must have the comma-separated column path, got the header 2 ('file', 'label'). Name"),
        ("", "must have the comma-separated column path, got the header 0 ()."),
        ("path\n", "images must contain at least one image file, got none in 1"),
        ("path,label\n1.png,a\n,b\n", "line 3: path must not be empty. Fill it in"),
        ("label,path\na\n", "line 2: a row must have 2 columns, got 1. Quote"),
        ('path\n"1.png\n', "line 2: a row must be valid CSV, got: unexpected end of data. Close quotes"),
    ],
)
def test_bad_lists(tmp_path: Path, text: str, message: str) -> None:
    table = tmp_path / "list.csv"
    table.write_text(text)
    with pytest.raises(ValueError, match=r"\A[^\n]+\.\Z") as caught:
        list_items([table])
    assert message in str(caught.value)


def test_paths_that_do_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="images must be existing files or folders, got "):
        list_items([tmp_path / "nowhere"])
    with pytest.raises(ValueError, match="must be a file, got the folder"):
        list(csv_rows(tmp_path))
