"""Search for the settings of `LiftedEmbedding` on feature vectors, with held-out classes of three scikit-learn datasets.

    python benchmarks/features.py

Two classes of digits (10 classes) are held out at a time, one of wine and iris (3 classes each). The score is Recall@1 in
percent of the held-out samples against **all** samples: with a single held-out class as the gallery, it would always be 100.
Features are standardized. Each trial changes one setting; every row is the mean over all folds and two seeds. The script
writes `benchmarks/results/features.json`.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.preprocessing import StandardScaler

import liftedstruct as ls
from machine import describe_machine

RESULTS = Path(__file__).parent / "results" / "features.json"
DATASETS = {"digits": (load_digits, 2), "wine": (load_wine, 1), "iris": (load_iris, 1)}  # classes held out at a time
SEEDS = (0, 1)
TRIALS: list[dict[str, Any]] = [
    {},
    *({"lr": lr} for lr in (2.5e-4, 1e-3, 4e-3, 1.6e-2)),
    *({"margin": margin} for margin in (0.5, 4.0)),
    *({"samples_per_class": count} for count in (4, 16)),
    {"steps": 100},
]


def make(trial: dict[str, Any], seed: int) -> ls.LiftedEmbedding:
    """Return the estimator of a trial."""
    settings = {"sampler": {"samples_per_class": trial["samples_per_class"]}} if "samples_per_class" in trial else None
    loss: Any = {"name": "lifted_struct", "margin": trial["margin"]} if "margin" in trial else "lifted_struct"
    plain = {name: value for name, value in trial.items() if name in ("lr", "steps")}
    return ls.LiftedEmbedding(64, loss=loss, settings=settings, random_state=seed, **plain)


def score(X: np.ndarray, y: np.ndarray, held: np.ndarray) -> float:
    """Return the fraction of held-out samples whose nearest neighbor has their class."""
    _, nearest = ls.nearest_neighbors(X, 1)
    return float((y[nearest[:, 0]] == y)[held].mean())


def main() -> None:
    """Run all trials, print a table and write the scores."""
    rows = []
    for trial in [None, *TRIALS]:
        scores = {}
        for name, (load, count) in DATASETS.items():
            X, y = load(return_X_y=True)
            X = StandardScaler().fit_transform(X)
            found = []
            for first in range(0, len(np.unique(y)), count):
                held = (y >= first) & (y < first + count)
                for seed in SEEDS if trial is not None else (0,):
                    Z = X if trial is None else make(trial, seed).fit(X[~held], y[~held]).transform(X)
                    found.append(score(Z, y, held))
            scores[name] = round(100 * float(np.mean(found)), 2)
        what = "raw features" if trial is None else ", ".join(f"{k} {v:g}" for k, v in trial.items()) or "defaults"
        rows.append({"trial": what, **scores})
        print(f"{what:<24}" + "".join(f"{name} {value:6.2f}   " for name, value in scores.items()), flush=True)
    RESULTS.write_text(json.dumps({"machine": asdict(describe_machine()), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
