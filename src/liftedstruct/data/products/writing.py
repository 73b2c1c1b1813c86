"""Write rendered products as image files in class folders."""

import shutil
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.products.product_dataset import product_images
from liftedstruct.data.products.reading import PRODUCTS_RECORD, read_record
from liftedstruct.data.products.scene import RENDERER_VERSION
from liftedstruct.data.sources import FolderSource
from liftedstruct.runtime.atomic import is_temporary, remove_leftovers, replacing, write_json
from liftedstruct.runtime.checks import check_count, pick
from liftedstruct.runtime.limits import available_cores
from liftedstruct.runtime.progress import Bar

__all__ = ["FORMATS", "write_products"]

FORMATS: dict[str, dict[str, int]] = {"jpg": {"quality": 92}, "png": {"compress_level": 4}, "webp": {"quality": 90}}


def write_products(
    folder: str | Path,
    n_classes: int = 1000,
    images_per_class: int | None = None,
    size: int = 128,
    seed: int = 0,
    format: str = "png",
) -> ImageSet:
    """Write `<category>/<class>/<k>.<format>` below `folder`, using all cores, and return the dataset of these files.

    Files are written atomically and existing files are kept, so calling again resumes an interrupted call. The classes and
    the split are saved in `products.json`, so `read_images(folder)` returns the same dataset.
    """
    folder, size = Path(folder), check_count("size", size, 16)
    rendered = product_images(n_classes, images_per_class, size, seed)
    options = pick(FORMATS, format, "format")
    paths = tuple(f"{path.removesuffix('.png')}.{format}" for path in rendered.paths)
    written = replace(rendered, root=folder, source=FolderSource(folder), paths=paths)
    numbers: dict[str, int | str | None] = {"classes": n_classes, "images": images_per_class, "size": size, "seed": seed}
    _claim(folder, {"renderer": RENDERER_VERSION, **numbers, "format": format}, written)
    missing: dict[Path, list[tuple[str, Path]]] = {}  # by class folder: (path to render, output file)
    for path, target in zip(rendered.paths, paths, strict=True):
        file = folder / target
        if not file.is_file() or file.stat().st_size == 0:
            missing.setdefault(file.parent, []).append((path, file))
    total = sum(map(len, missing.values()))

    def encode(path: str) -> bytes:
        buffer = BytesIO()
        rendered.source.open(path).save(buffer, "jpeg" if format == "jpg" else format, **options)
        return buffer.getvalue()

    def write_class(class_folder: Path) -> int:
        class_folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(class_folder)
        for path, file in missing[class_folder]:
            with replacing(file, durable=False) as stream:
                stream.write(encode(path))
        return len(missing[class_folder])

    sample = [len(encode(files[0][0])) for files in list(missing.values())[:12]]
    if sample:
        _check_space(folder, total, total * sum(sample) / len(sample))
    workers = ThreadPoolExecutor(available_cores())
    try:
        with Bar("render", total) as bar:
            for job in as_completed([workers.submit(write_class, class_folder) for class_folder in missing]):
                bar.advance(job.result())
    finally:
        workers.shutdown(cancel_futures=True)
    return written


def _claim(folder: Path, settings: dict[str, int | str | None], written: ImageSet) -> None:
    """Create the folder and its record; raise if it contains other files or products with other settings."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the output folder must be a folder, got the file {folder}. Pass another path.")
    inside = sorted(path.name for path in folder.iterdir() if not is_temporary(path.name)) if folder.is_dir() else []
    record, written_before = {**settings, "products": _listed(written)}, read_record(folder)
    found = {key: value for key, value in written_before.items() if key != "products"}
    if inside and found != settings:
        raise ValueError(
            f"{folder} must be empty or contain products with the same settings, got {found or ', '.join(inside[:3])}. "
            "Pass those settings, or another folder."
        )
    if written_before != record:
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PRODUCTS_RECORD, record)


def _listed(written: ImageSet) -> list[dict[str, str | list[str]]]:
    """Return each class with its split and files."""
    files: list[list[str]] = [[] for _ in written.class_names]
    for path, label in zip(written.paths, written.labels.tolist(), strict=True):
        files[label].append(path)
    test = set(written.test_classes.tolist())
    return [
        {"name": name, "super_class": super_class, "split": "test" if i in test else "train", "files": files[i]}
        for i, (name, super_class) in enumerate(zip(written.class_names, written.super_classes, strict=True))
    ]


def _check_space(folder: Path, files: int, size: float) -> None:
    need, free = 1.1 * size + 4096 * files, shutil.disk_usage(folder).free
    if need > free:
        raise ValueError(
            f"the disk of {folder} must have {need / 1e9:.2f} GB free for {files} images, got {free / 1e9:.2f} GB. "
            "Pass fewer classes, a smaller size, format 'jpg' or another folder."
        )
