"""Rendered products as files: a folder of class folders, as any other data set comes."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from PIL import Image

from liftedstruct.checks import check_count, pick
from liftedstruct.images.image_set import ImageSet
from liftedstruct.images.sources import FolderSource
from liftedstruct.products.product_set import class_sizes, path_of, product_images
from liftedstruct.products.scene import RENDERER_VERSION, render

__all__ = ["FORMATS", "write_products"]

FORMATS: dict[str, dict[str, int]] = {"jpg": {"quality": 92}, "png": {"compress_level": 4}, "webp": {"quality": 90}}
SETTINGS = "products.json"  # says of a folder that it is ours, and what is in it


def write_products(
    folder: str | Path,
    classes: int = 1000,
    images: int | None = None,
    size: int = 128,
    seed: int = 0,
    format: str = "png",
) -> ImageSet:
    """Write ``<category>/<class>/<k>.<format>`` below ``folder`` with all cores, and return the set of these files.

    A file appears whole or not at all, and one that is there is kept: an interrupted call is gone on with by calling again.
    """
    folder = Path(folder)
    sizes = class_sizes(classes, images, seed)
    size = check_count("size", size, 16)
    options = pick(FORMATS, format, "format")
    settings = {
        "renderer": RENDERER_VERSION, "classes": classes, "images": images, "size": size, "seed": seed, "format": format,
    }  # fmt: skip
    _claim(folder, settings)
    missing: dict[int, list[int]] = {}
    for product, n in enumerate(sizes):
        for k in range(n):
            file = folder / path_of(product, k, seed, format)
            if not file.is_file() or file.stat().st_size == 0:
                missing.setdefault(product, []).append(k)
    total = sum(map(len, missing.values()))

    def encode(product: int, k: int) -> bytes:
        buffer = BytesIO()
        Image.fromarray(render(product, k, size, seed)).save(buffer, "jpeg" if format == "jpg" else format, **options)
        return buffer.getvalue()

    def write_class(product: int) -> int:
        (folder / path_of(product, 0, seed, format)).parent.mkdir(parents=True, exist_ok=True)
        for k in missing[product]:
            _write(folder / path_of(product, k, seed, format), encode(product, k))
        return len(missing[product])

    sample = [encode(product, missing[product][0]) for product in list(missing)[:12]]
    if sample:
        _check_space(folder, total, total * sum(map(len, sample)) / len(sample))
    workers = ThreadPoolExecutor(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    try:
        with _progress(total) as advance:
            for job in as_completed([workers.submit(write_class, product) for product in missing]):
                advance(job.result())
    finally:
        workers.shutdown(cancel_futures=True)
    rendered = product_images(classes, images, size, seed)
    paths = tuple(f"{path.removesuffix('.png')}.{format}" for path in rendered.paths)
    return replace(rendered, root=folder, source=FolderSource(folder), paths=paths)


def _claim(folder: Path, settings: dict[str, int | str | None]) -> None:
    """Make the folder ours, or raise if it is somebody else's or holds other products."""
    mark = folder / SETTINGS
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"the folder for products must be a folder, got the file {folder}. Pass another path.")
    if mark.is_file():
        try:
            found = json.loads(mark.read_text())
        except ValueError:
            found = None
        if found != settings:
            raise ValueError(
                f"{folder} must be empty or hold products of these settings, got {found}. "
                f"Pass the same settings, or another folder."
            )
    elif folder.is_dir() and any(folder.iterdir()):
        names = ", ".join(sorted(path.name for path in folder.iterdir())[:3])
        raise ValueError(f"{folder} must be empty or hold products written before, it holds {names}. Pass another folder.")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        _write(mark, (json.dumps(settings) + "\n").encode())


def _check_space(folder: Path, files: int, size: float) -> None:
    need, free = 1.1 * size + 4096 * files, shutil.disk_usage(folder).free
    if need > free:
        raise ValueError(
            f"the disk of {folder} must have {need / 1e9:.2f} GB free for {files} images, it has {free / 1e9:.2f} GB. "
            "Pass fewer classes, a smaller size or format 'jpg', or another folder."
        )


def _write(file: Path, content: bytes) -> None:
    """All of the file or nothing; the temporary name is always the same, so that a kill leaves nothing behind for long."""
    part = file.with_name(f".{file.name}.part")
    part.write_bytes(content)
    os.replace(part, file)  # noqa: PTH105


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, else ten lines, both on the error stream."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("rendering"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task("rendering", total=total)
            yield lambda n: bar.advance(task, n)
        return
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        before, done = done, done + n
        if 10 * done // total > 10 * before // total:
            print(f"rendered {done:,} of {total:,} images", file=sys.stderr, flush=True)

    yield advance
