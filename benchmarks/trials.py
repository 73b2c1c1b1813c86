"""Search for the learning rate and the margin or head scale of each loss in the preset `quick`: five trials per loss.

Each trial trains a 64-d EfficientNet-Lite0 for 80 steps of 64 images (63 for triplets) at 128 px on 500 products and is
evaluated on 500 others, with the initialization that `quick` had at the time. The products use seed 101; the demo and the tests
use other seeds. Finished trials are kept, so an interrupted search resumes. Takes half an hour on two cores.

    python benchmarks/trials.py --out trials --results benchmarks/results/trials.json
"""

import argparse
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import liftedstruct as ls
from liftedstruct.cli.flags import config_values
from liftedstruct.data.products import product_images
from liftedstruct.embedder import Embedder
from liftedstruct.training import PRESETS, load_config, merge_settings, starting_trunk
from machine import describe_machine
from records import write

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
        {"lr": 2e-4, "loss.margin": 12.0, **RAW},  # about the initial mean distance between classes
    ],
    "triplet": [
        {"lr": 2e-4, "loss.margin": 0.2, **UNIT},
        {"lr": 5e-4, "loss.margin": 0.2, **UNIT},
        {"lr": 2e-4, "loss.margin": 0.5, **UNIT},
        {"lr": 1e-4, "loss.margin": 0.5, **UNIT},
        {"lr": 2e-4, "loss.margin": 50.0, **RAW},  # about the difference of squared distances
    ],
}
METRICS = {"Recall@1": "Recall@1", "NMI, affinity": "NMI", "F1, affinity": "F1"}
NOTE = (
    f"EfficientNet-Lite0, {DIM}-d, {STEPS} steps, {CROP} px, otherwise the preset `quick` as it was then; {{:,}} test images "
    f"of {PRODUCTS // 2} rendered products (seed {SEED}), Euclidean distance, affinity propagation to {PRODUCTS // 2} "
    "clusters; one seed. Percent."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the data and the finished trials")
    parser.add_argument("--results", type=Path, help="JSON file to write the results to")
    flags = parser.parse_args()
    packed = ls.prepare(product_images(PRODUCTS, size=PIXELS, seed=SEED), flags.out / "prepared", size=PIXELS)
    kept = flags.out / "trials.jsonl"
    done = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for loss, settings in [("pretrained", {}), *((loss, each) for loss, trials in TRIALS.items() for each in trials)]:
        if not any((one["loss"], one["settings"]) == (loss, settings) for one in done):
            done.append({"loss": loss, "settings": settings, "scores": measure(packed, loss, settings, flags.out / "run")})
            with kept.open("a") as stream:
                stream.write(json.dumps(done[-1]) + "\n")
    rows = [row(one) for one in done]
    print(*rows, sep="\n")
    if flags.results:
        write(flags.results, {"machine": asdict(describe_machine()), "note": NOTE.format(len(packed.test)), "rows": rows})


def measure(packed: ls.PackedImages, loss: str, settings: dict[str, Any], folder: Path) -> dict[str, float]:
    """Train with these settings and return the scores on the test products."""
    common: dict[str, Any] = {"data": packed.folder, "out": folder, "dim": DIM, "crop": CROP, "steps": STEPS}
    if loss == "pretrained":
        embedder = Embedder(starting_trunk(load_config(**common)), 0, crop=CROP)
    else:
        shutil.rmtree(folder, ignore_errors=True)
        config = merge_settings(PRESETS["quick"], START, LOSSES[loss], common, config_values(settings))
        embedder = ls.train(config).embedder()
    found = ls.embed(embedder, packed, packed.test)
    scores = ls.evaluate(found.embeddings, found.labels)
    return {short: scores.metrics[metric].value for metric, short in METRICS.items()}


def row(trial: dict[str, Any]) -> dict[str, Any]:
    """Return a trial as a row of the results file, scores in percent."""
    settings = ", ".join(f"{name} {str(value).lower()}" for name, value in trial["settings"].items())
    return {"loss": trial["loss"], "settings": settings, **{k: round(100 * v, 1) for k, v in trial["scores"].items()}}


if __name__ == "__main__":
    main()
