"""Write the exported folder of an embedder, in the layout that model hubs show."""

import json
import logging
import tempfile
import warnings
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
import yaml

from liftedstruct.embedder import EXPORTED, Embedder
from liftedstruct.embeddings import OF, SHA
from liftedstruct.embeddings import SCORES as SCORES_FILE
from liftedstruct.encoding import ONNX_SHA
from liftedstruct.evaluation import Scores
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.progress import say
from liftedstruct.trunks import folded

__all__ = ["export"]


def export(run: str | Path, out: str | Path, license: str = "other") -> Path:
    """Export a trained embedder: ONNX, safetensors, configurations, model card, and a script that needs no torch.

    The ONNX file takes uint8 pixels (batch, crop, crop, 3) and returns embeddings (batch, dim). `embed.py` prepares image files
    exactly as training did. `liftedstruct.load` takes the folder too, and then encodes with onnxruntime where it is installed.

    Args:
        run: run folder or embedder file.
        out: folder to write; it must not exist or be empty.
        license: identifier of the license of the model, as model hubs list it, such as apache-2.0.

    Returns:
        The folder.

    """
    for module in ("onnx", "onnxscript"):
        require(module, "export")
    embedder, out = Embedder.load(run).cpu(), Path(out).absolute()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a new or empty folder, got {out}. Pass another folder, or remove it.")
    scores_file = Path(run) / SCORES_FILE if Path(run).is_dir() else Path(run).with_name(SCORES_FILE)
    scores = Scores.load(scores_file) if scores_file.is_file() else None
    if scores and scores.protocol.get(SHA) != embedder.short_sha():
        say(f"warning: {scores_file} holds scores of another embedder, and is left out of the model card")
        scores = None
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()
        embedder.save(folder / EXPORTED)
        _write_onnx(embedder, (folder / EXPORTED).with_suffix(".onnx"))
        for name, content in (("config.json", _config(embedder)), ("preprocessor_config.json", _preprocessor_config(embedder))):
            (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        (folder / "README.md").write_text(_card(embedder, scores, license, out.resolve().name), encoding="utf-8")
        (folder / "embed.py").write_bytes(files("liftedstruct.exporting").joinpath("embed.py").read_bytes())
        folder.replace(out)
    return out


def _write_onnx(embedder: Embedder, file: Path) -> None:
    pixels = torch.zeros(2, embedder.crop, embedder.crop, 3, dtype=torch.uint8)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns that torchvision is not installed
    try:
        with warnings.catch_warnings(action="ignore"):
            program: Any = torch.onnx.export(
                folded(embedder),
                (pixels,),
                dynamo=True,
                verbose=False,
                input_names=["pixels"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
            )
    finally:
        logger.setLevel(level)
    program.model.metadata_props[ONNX_SHA] = embedder.short_sha()
    program.save(file, external_data=False)


def _config(embedder: Embedder) -> dict[str, Any]:
    return {
        "model_type": "liftedstruct",
        "trunk": embedder.trunk.name,
        "embedding_dim": embedder.width,
        "normalize": embedder.normalize,
        "sha": embedder.short_sha(),
        "liftedstruct_version": version("liftedstruct"),
    }


def _preprocessor_config(embedder: Embedder) -> dict[str, Any]:
    side = {"height": embedder.size, "width": embedder.size}
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": side,
        "resize_mode": embedder.resize_mode,
        "resample": 2,  # bilinear, antialiased
        "do_center_crop": True,
        "crop_size": dict.fromkeys(side, embedder.crop),
        "do_rescale": False,  # the graph takes uint8 pixels and scales them
        "do_normalize": False,
    }


def _card(embedder: Embedder, scores: Scores | None, license: str, name: str) -> str:
    """Return the model card, with the metadata that model hubs read."""
    trained, unit, task = embedder.trained_on, " on the unit sphere" if embedder.normalize else "", "image-feature-extraction"
    tags = ["metric-learning", "image-retrieval", "onnx"]
    meta: dict[str, Any] = {"license": license, "library_name": "liftedstruct", "pipeline_tag": task, "tags": tags}
    training, measured = "- Not trained: these are the features of the pretrained trunk.", "Not evaluated."
    if trained:
        training = (
            f"- Images: {len(trained.images):,} of {len(trained.class_names):,} classes (checksum {trained.checksum}).\n"
            f"- Steps: {trained.step:,}.\n"
            f"- Validation images that the weights were selected on: {len(trained.validation):,}."
        )
    if scores:
        metrics = [{"type": key, "value": round(100 * e.value, 1)} for key, e in scores.metrics.items()]
        dataset = {"name": scores.protocol.get(OF, "unknown"), "type": "unknown"}
        meta["model-index"] = [{"name": name, "results": [{"task": {"type": task}, "dataset": dataset, "metrics": metrics}]}]
        rows = [
            f"| {key} | {100 * e.value:.1f} % | {100 * e.low:.1f} to {100 * e.high:.1f} |" for key, e in scores.metrics.items()
        ]
        table = ["| metric | score | 95 % interval |", "|---|---|---|", *rows, ""]
        measured = "\n".join([*table, *(f"- {key}: {text}" for key, text in scores.protocol.items())])
    return f"""---
{yaml.safe_dump(meta, sort_keys=False, allow_unicode=True)}---

# {name}

An embedding of images in {embedder.width} dimensions{unit}: images of the same class lie near each other, by Euclidean
distance. Trained with liftedstruct.

## Use

```sh
pip install numpy pillow onnxruntime
python embed.py photo.jpg other.jpg  # one line of JSON per image
```

`model.onnx` takes uint8 RGB pixels, (batch, {embedder.crop}, {embedder.crop}, 3), and scales them itself. `embed.py` turns an
image file into such pixels: upright, over white, made {embedder.size} x {embedder.size} ({embedder.resize_mode}), center crop.
With liftedstruct: `liftedstruct.load("{name}").encode(["photo.jpg"])`.

## Training

- Trunk: {embedder.trunk.name}. Weights: {embedder.trunk.weights}.
{training}

## Scores

{measured}

## Limits and license

Distances mean most for images like those of the training. Products that look alike may be confused: use a threshold that was
calibrated on your own photos.

License: {license}. The licenses of the pretrained weights and of the training images apply too.
"""
