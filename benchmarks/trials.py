"""The trials behind the margins of each loss in ``quick``: as many for all, on rendered products of their own.

Each trial trains EfficientNet-Lite0 for 80 steps of 64 images (63 for triplets) at 128 px, 64 dimensions, on 500 products and
is measured on 500 others, from the start that ``quick`` had then. The products are those of seed 101; the demonstration and the
tests have other ones. A file keeps the trials that are done, so that it goes on where it was stopped; all of it takes half
an hour on two cores.

    python benchmarks/trials.py --out trials --results benchmarks/results/trials.txt
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import liftedstruct as ls
from liftedstruct.cli.flags import config_values
from liftedstruct.data.products import product_images
from liftedstruct.embedder import Embedder
from liftedstruct.training import PRESETS, load_config, merge_settings, starting_trunk

PRODUCTS, SEED, PIXELS, CROP, STEPS, DIM = 1000, 101, 144, 128, 80, 64
START: dict[str, Any] = {"pool": "avg", "normalize": False, "head": {"name": "orthogonal", "scale": 1.5}, "freeze": 3}
LOSSES: dict[str, dict[str, Any]] = {
    "lifted_struct": {"loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0}},
    "contrastive": {"loss": {"name": "contrastive", "pairs": "rows"}, "sampler": "pairs"},
    "triplet": {"loss": {"name": "triplet", "triplets": "rows"}, "sampler": "triplets"},
}
UNIT: dict[str, Any] = {"normalize": True}
RAW: dict[str, Any] = {"normalize": False}
TRIALS: dict[str, list[dict[str, Any]]] = {
    "lifted_struct": [
        {"lr": 2e-4, "head.scale": 1.5},
        {"lr": 5e-4, "head.scale": 1.5},
        {"lr": 2e-4, "head.scale": 0.75},
        {"lr": 1e-4, "head.scale": 0.75},
        {"lr": 2e-4, "head.scale": 0.4},
    ],
    "contrastive": [
        {"lr": 2e-4, "loss.margin": 1.0, **UNIT},
        {"lr": 5e-4, "loss.margin": 1.0, **UNIT},
        {"lr": 2e-4, "loss.margin": 0.5, **UNIT},
        {"lr": 1e-4, "loss.margin": 1.0, **UNIT},
        {"lr": 2e-4, "loss.margin": 12.0, **RAW},  # about the mean distance of two classes at the start
    ],
    "triplet": [
        {"lr": 2e-4, "loss.margin": 0.2, **UNIT},
        {"lr": 5e-4, "loss.margin": 0.2, **UNIT},
        {"lr": 2e-4, "loss.margin": 0.5, **UNIT},
        {"lr": 1e-4, "loss.margin": 0.5, **UNIT},
        {"lr": 2e-4, "loss.margin": 50.0, **RAW},  # about what the squares of these distances differ by
    ],
}
MEASURES = {"Recall@1": "Recall@1", "NMI, affinity": "NMI", "F1, affinity": "F1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the data and the trials that are done")
    parser.add_argument("--results", type=Path, help="file to write the table to")
    flags = parser.parse_args()
    packed = ls.prepare(product_images(PRODUCTS, size=PIXELS, seed=SEED), flags.out / "prepared", size=PIXELS)
    kept = flags.out / "trials.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for loss, settings in [("untrained", {}), *((loss, each) for loss, trials in TRIALS.items() for each in trials)]:
        if not any((one["loss"], one["settings"]) == (loss, settings) for one in done):
            done.append({"loss": loss, "settings": settings, "scores": measure(packed, loss, settings, flags.out / "run")})
            with kept.open("a") as stream:
                stream.write(json.dumps(done[-1]) + "\n")
    text = table(done, len(packed.test))
    print(text)
    if flags.results:
        flags.results.write_text(text + "\n")


def measure(packed: ls.PackedImages, loss: str, settings: dict[str, Any], folder: Path) -> dict[str, float]:
    """Train with these settings and measure on the other products."""
    common: dict[str, Any] = {"data": packed.folder, "out": folder, "dim": DIM, "crop": CROP, "steps": STEPS}
    if loss == "untrained":
        embedder = Embedder(starting_trunk(load_config(**common)), 0, crop=CROP)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        config = merge_settings(PRESETS["quick"], START, LOSSES[loss], common, config_values(settings))
        embedder = ls.train(config).embedder()
    found = ls.embed(embedder, packed, packed.test)
    scores = ls.evaluate(found.embeddings, found.labels)
    return {short: scores.measures[measure].value for measure, short in MEASURES.items()}


def table(done: list[dict[str, Any]], images: int) -> str:
    """All trials, and the best of each loss marked."""
    lines = [f"{'':<14} {'settings':<46} " + " ".join(f"{short:>9}" for short in MEASURES.values())]
    for one in done:
        rivals = [other["scores"]["Recall@1"] for other in done if other["loss"] == one["loss"]]
        best = "  best" if one["loss"] in TRIALS and one["scores"]["Recall@1"] == max(rivals) else ""
        settings = ", ".join(f"{name} {value}" for name, value in one["settings"].items())
        numbers = " ".join(f"{100 * one['scores'][short]:8.1f} %" for short in MEASURES.values())
        lines.append(f"{one['loss']:<14} {settings:<46} {numbers}{best}".rstrip())
    half = PRODUCTS // 2
    lines += [
        "",
        f"EfficientNet-Lite0, {DIM} dimensions, {STEPS} steps, {CROP} px, the rest as quick was then; {images:,} test images",
        f"of {half} rendered products (seed {SEED}), Euclidean distance, affinity propagation to {half} clusters; one seed.",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
