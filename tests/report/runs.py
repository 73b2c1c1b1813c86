"""Runs without training: colored squares as images, Gaussian clusters as embeddings, and the files that train writes."""

import csv
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from liftedstruct.data import PackedImages, prepare, read_images
from liftedstruct.embedder import Embedder, Seen, open_embedder
from liftedstruct.embeddings import SHA, Embeddings
from liftedstruct.evaluation import evaluate_file, scores_file
from liftedstruct.training import load_config
from liftedstruct.training.run_folder import RunFolder

NASTY = (
    "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>",
    "\"quotes\" & 'more' {{ 7 * 7 }} </style>",
    "🦜 عصفور صغير אבג",
    "long " * 60,
    "$x_1$ \\alpha",
)
SEEN = {"active_images": 1.0, "positive_distance": 1.0, "negative_distance": 1.5}
LOG = (
    {"step": 0, "recall_at_1": 0.25, "map_at_r": 0.2, "validation_images": 8},
    {"step": 10, "loss": 4.0, "images_per_second": 10.0, **SEEN},
    {"step": 20, "loss": 2.0, "images_per_second": 20.0, **SEEN, "active_images": 0.5},
    {"step": 20, "recall_at_1": 0.75, "map_at_r": 0.6, "validation_images": 8},
)


def squares(folder: Path, classes: int = 6, images: int = 6, names: tuple[str, ...] = ()) -> PackedImages:
    """Return packed images with one color per class and image, and two more classes for training."""
    files = folder / "files"
    files.mkdir(parents=True)
    with (folder / "list.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(("path", "label", "split"))
        for number in range(classes + 2):
            for image in range(images):
                color = (30 * number % 256, 255 - 25 * number % 256, 20 * image)
                Image.new("RGB", (16, 16), color).save(files / f"{number}-{image}.png")
                name = names[number] if number < len(names) else f"class {number}"
                writer.writerow((f"files/{number}-{image}.png", name, "train" if number >= classes else "test"))
    return prepare(read_images(folder / "list.csv"), folder / "packed", size=16, progress=False)


@cache
def embedder() -> Embedder:
    """Return the embedder of all runs, which did not compute their embeddings."""
    return open_embedder("small")


def embeddings(packed: PackedImages, spread: float = 1.0, dim: int = 8, seed: int = 0, **changes: Any) -> Embeddings:
    """Return embeddings with one Gaussian cluster per class; a larger spread makes the classes overlap more."""
    rows = packed.test
    rng = np.random.default_rng(seed)
    labels = packed.labels[rows]
    X = 3 * rng.normal(size=(len(packed.class_names), dim))[labels] + spread * rng.normal(size=(len(rows), dim))
    protocol = {"trunk": "small", "variant": None, "weights": "none", "dim": dim, "normalized": False, "data": packed.name}
    protocol |= {"checksum": packed.checksum, "size": packed.size, "resize_mode": packed.resize_mode, "crop": 16}
    protocol |= {SHA: embedder().short_sha()}
    one: dict[str, Any] = {
        "embeddings": X.astype(np.float32),
        "labels": labels,
        "class_names": packed.class_names,
        "paths": tuple(packed.paths[row] for row in rows),
        "rows": rows,
        "contents": packed.contents[rows],
        "seen": Seen(0, len(rows), 0, len(np.unique(labels)), 0, 0),
        "part": "test",
        "data": str(packed.folder),
        "protocol": protocol,
    }
    return Embeddings(**one | changes)


def write_run(folder: Path, packed: PackedImages, found: Embeddings | None = None, **settings: Any) -> Path:
    """Write a run folder, evaluated if embeddings are given."""
    config = load_config(data=packed.folder, out=folder, trunk="small", **{"steps": 20, "batch_size": 12} | settings)
    folder.mkdir()
    run = RunFolder(folder)
    record = {"checksum": packed.checksum, "images": len(packed.train), "torch": "2.0", "processor": "none"}
    run.begin(config, record)
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LOG))
    embedder().save(folder)
    if found is not None:
        save_evaluated(found, folder / "embeddings.npz")
    return folder


def save_evaluated(found: Embeddings, file: Path) -> Path:
    """Save embeddings and their scores."""
    found.save(file)
    evaluate_file(file).save(scores_file(file))
    return file
