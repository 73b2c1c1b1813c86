"""Small datasets for the recipes: a folder of class folders, and a tiny CUB-200-2011 in its official layout."""

from pathlib import Path

from PIL import Image

from liftedstruct.data.products import product_images


def rendered(classes: int, images: int, size: int = 48) -> list[tuple[int, Image.Image]]:
    """Render products. Return pairs of label and image."""
    made = product_images(classes, images, size)
    return [(int(label), made.source.open(path)) for label, path in zip(made.labels, made.paths, strict=True)]


def folder_of(root: Path, classes: int, images: int) -> Path:
    """Write rendered products as a folder of class folders."""
    for number, (label, image) in enumerate(rendered(classes, images)):
        (root / f"thing-{label:03}").mkdir(parents=True, exist_ok=True)
        image.save(root / f"thing-{label:03}" / f"{number}.png")
    return root


def tiny_cub(root: Path, classes: int = 200, images: int = 2) -> Path:
    """Write a dataset in the layout of CUB-200-2011, with as many classes and few images per class."""
    names = [f"{i + 1:03}.Bird_{i}" for i in range(classes)]
    files = []
    for number, (label, image) in enumerate(rendered(classes, images)):
        file = root / "images" / names[label] / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file)
        files.append((label, f"{names[label]}/{number}.jpg"))
    (root / "classes.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    (root / "images.txt").write_text("".join(f"{i} {file}\n" for i, (_, file) in enumerate(files, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {label + 1}\n" for i, (label, _) in enumerate(files, 1)))
    return root
