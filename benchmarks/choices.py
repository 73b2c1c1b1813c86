"""Compare settings of the default recipe on the validation classes of several datasets.

Every trial trains on half of the training classes of a dataset and is evaluated on the other half, the validation classes;
the test classes are never used. A trial is a line of the results file: choice, dataset, settings, Recall@1 over the steps, and
Recall@1 of the best step at several dimensions. Finished trials are skipped and a stopped one resumes, so an interrupted search
continues with the same command.

    python benchmarks/choices.py --out choices --data cub=cub-256 cars=cars-256

`--data` names prepared datasets (`liftedstruct prepare ... --size 256`). `--only NAME ...` runs some of the choices. Two
searches in parallel with `--threads 1` each take less time than one with two threads.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import liftedstruct as ls
from liftedstruct.cli.flags import config_values
from liftedstruct.training import merge_settings, split_rows

RESULTS = Path(__file__).parent / "results" / "choices.jsonl"
HELD_OUT, EVERY = 0.5, 100  # fraction of the training classes, and steps between evaluations
BASE: dict[str, Any] = {"crop": 224, "train_crop": 160}  # proxies that take half of the time of the default crops
CHOICES: dict[str, dict[str, Any]] = {
    "default": {"steps": 400},
    "lr 2e-4": {"lr": 2e-4, "steps": 400},
    "no nested dimensions": {"min_dim": 0, "steps": 300},
    "cosine, no EMA": {"schedule": "cosine", "ema_decay": 0.0, "warmup": 0, "steps": 400},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs of the trials")
    parser.add_argument("--data", nargs="+", required=True, metavar="NAME=FOLDER", help="prepared datasets")
    parser.add_argument("--results", type=Path, default=RESULTS, help="file with one line per trial")
    parser.add_argument("--only", nargs="+", choices=CHOICES, default=list(CHOICES), help="run only these choices")
    parser.add_argument("--threads", type=int, help="number of CPU threads. Default: all")
    flags = parser.parse_args()
    done = read_trials(flags.results)
    for choice in flags.only:
        for name, folder in (each.split("=", 1) for each in flags.data):
            if not any((trial["choice"], trial["dataset"]) == (choice, name) for trial in done):
                trial = measure(choice, name, Path(folder), flags.out, flags.threads)
                with flags.results.open("a") as stream:
                    stream.write(json.dumps(trial) + "\n")
                print(json.dumps(trial), flush=True)
    print(table(read_trials(flags.results)))


def read_trials(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []


def measure(choice: str, name: str, folder: Path, out: Path, threads: int | None = None) -> dict[str, Any]:
    """Train with the settings of a choice and return Recall@1 on the validation classes, in percent."""
    packed, settings = ls.PackedImages(folder), {**BASE, **CHOICES[choice]}
    run = out / f"{choice}-{name}".replace(" ", "-")
    common = {"data": str(folder), "out": str(run), "validation": HELD_OUT, "validate_every": EVERY, "threads": threads}
    began = time.monotonic()
    trained = ls.train(merge_settings(common, config_values(settings)))
    curve = [(line["step"], percent(line["recall_at_1"])) for line in trained.log() if "recall_at_1" in line]
    rows, held_out = split_rows(packed, HELD_OUT, trained.config.seed)
    rows = np.sort(np.random.default_rng(0).choice(rows, min(1024, len(rows)), replace=False))
    X, T = (ls.embed(trained.embedder(), packed, each) for each in (held_out, rows))
    return {
        "choice": choice,
        "dataset": name,
        "settings": settings,
        "curve": curve,
        "best_step": trained.best_step,
        "recall_at_1": by_dimension(X.embeddings, X.labels, T.embeddings),
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def by_dimension(X: NDArray[np.floating], labels: NDArray[np.int64], T: NDArray[np.floating]) -> dict[str, float]:
    """Return Recall@1 of normalized embeddings, of their prefixes, and of 64 principal components of training embeddings."""
    cut = {str(dim): X[:, :dim] for dim in (64, 128, 256, X.shape[1]) if dim <= X.shape[1]}
    V = np.linalg.svd(T - T.mean(axis=0), full_matrices=False)[2]
    cut["64 components"] = (X - T.mean(axis=0)) @ V[:64].T
    units = {name: Y / np.linalg.norm(Y, axis=1, keepdims=True) for name, Y in cut.items()}
    return {name: percent(ls.recall_at_k(Y, labels, (1,))[1]) for name, Y in units.items()}


def percent(recall: float) -> float:
    return round(100 * recall, 2)


def table(trials: list[dict[str, Any]]) -> str:
    """Return the trials as a Markdown table: best Recall@1, its step, and Recall@1 at 64 dimensions, one row per trial."""
    lines = [
        "| choice | dataset | pretrained | best | step | last | 64-d | 64 components |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for trial in trials:
        (_, before), (_, last), found = trial["curve"][0], trial["curve"][-1], trial["recall_at_1"]
        best = max(recall for _, recall in trial["curve"])
        numbers = (best, last, found["64"], found["64 components"])
        best_text, last_text, narrow, components = (f"{number:.1f}" for number in numbers)
        lines.append(
            f"| {trial['choice']} | {trial['dataset']} | {before:.1f} | {best_text} | {trial['best_step']} | {last_text} "
            f"| {narrow} | {components} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
