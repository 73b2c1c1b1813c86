"""Compare settings of the default recipe on the validation classes of several datasets.

Every trial holds out some of the training classes of a dataset, the validation classes, and trains on the others; the test
classes are never used. A trial is a line of the results file: choice, dataset, settings, Recall@1 and MAP@R over the steps,
Recall@1 of the best step at several dimensions, and Recall@1 of the last step with the trunk interpolated with its pretrained
weights. Finished trials are skipped and a stopped one resumes, so an interrupted search continues with the same command.

The lines in `results/choices.jsonl` were measured with earlier scripts and converted. Those without `held_out` held out half of
the classes, and those with `mix_includes_head` interpolated the last layer too, which `pretrained_mix` no longer does. Those
with `held_out` evaluated 64 dimensions at every step, and some have settings that were removed again.

    python benchmarks/choices.py --out choices --data cub=cub-256 cars=cars-256

`--data` names prepared datasets (`liftedstruct prepare ... --size 256`). `--only NAME ...` runs some of the choices. Two
searches in parallel with `--threads 1` each take less time than one with two threads.
"""

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import liftedstruct as ls
from liftedstruct.cli.flags import config_values
from liftedstruct.training import RunFolder, merge_settings, split_rows, starting_trunk

RESULTS = Path(__file__).parent / "results" / "choices.jsonl"
HELD_OUT, EVERY = 0.3, 50  # fraction of the training classes, and steps between evaluations
MIXES = (0.0, 0.3, 0.5)  # fractions of the pretrained weights in the trunk, for the last step of trials without such a fraction
BASE: dict[str, Any] = {"crop": 224, "train_crop": 160}  # proxies: half of the time
SIMILARITY = {"name": "pml:MultiSimilarityLoss", "miner": "MultiSimilarityMiner"}
CHOICES: dict[str, dict[str, Any]] = {
    "default": {"steps": 400},
    "lr 1e-4": {"steps": 300, "lr": 1e-4},
    "lr 5e-4": {"steps": 300, "lr": 5e-4},
    "no interpolation": {"steps": 300, "pretrained_mix": 0.0},
    "no prefixes trained": {"steps": 300, "min_dim": 0},
    "Multi-Similarity": {"steps": 200, "loss": SIMILARITY},
    "Proxy-Anchor": {"steps": 200, "loss": {"name": "pml:ProxyAnchorLoss"}},
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
    run = out / re.sub(r"[^\w.-]+", "-", f"{choice}-{name}")
    common = {"data": str(folder), "out": str(run), "validation": HELD_OUT, "validate_every": EVERY, "threads": threads}
    began = time.monotonic()
    trained = ls.train(merge_settings(common, config_values(settings)))
    lines = [line for line in trained.log() if "recall_at_1" in line]
    rows, held_out = split_rows(packed, HELD_OUT, trained.config.seed)
    rows = np.sort(np.random.default_rng(0).choice(rows, min(1024, len(rows)), replace=False))
    X, T = (ls.embed(trained.embedder(), packed, each) for each in (held_out, rows))
    mixed: dict[str, dict[str, float]] = {}
    if not trained.config.pretrained_mix:
        for mix in MIXES:
            mixed[str(mix)] = by_dimension(ls.embed(last_embedder(trained, mix), packed, held_out).embeddings, X.labels)
    return {
        "choice": choice,
        "dataset": name,
        "held_out": HELD_OUT,
        "settings": settings,
        "curve": [(line["step"], percent(line["recall_at_1"])) for line in lines],
        "map_at_r": [(line["step"], percent(line["map_at_r"])) for line in lines],
        "best_step": trained.best_step,
        "recall_at_1": by_dimension(X.embeddings, X.labels, T.embeddings),
        "mixed": mixed,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }


def last_embedder(run: ls.Run, mix: float) -> ls.Embedder:
    """Return the embedder of the last step, with the trunk's pretrained weights mixed in."""
    embedder, state = run.embedder(), RunFolder(run.folder).load_state()
    assert state is not None
    prefix = "ema." if run.config.ema_decay else "embedder."
    weights = {name: state[0][prefix + name] for name in embedder.state_dict()}
    for name, start in starting_trunk(run.config).named_parameters():
        weights[f"trunk.{name}"].lerp_(start.detach(), mix)
    embedder.load_state_dict(weights)
    return embedder


def by_dimension(X: NDArray[np.floating], labels: NDArray[np.int64], T: NDArray[np.floating] | None = None) -> dict[str, float]:
    """Return Recall@1 of normalized embeddings, of their prefixes, and of 64 principal components of training embeddings."""
    cut = {str(dim): X[:, :dim] for dim in (64, 128, 256, X.shape[1]) if dim <= X.shape[1]}
    if T is not None:
        V = np.linalg.svd(T - T.mean(axis=0), full_matrices=False)[2]
        cut["64 components"] = (X - T.mean(axis=0)) @ V[:64].T
    units = {name: Y / np.linalg.norm(Y, axis=1, keepdims=True) for name, Y in cut.items()}
    return {name: percent(ls.recall_at_k(Y, labels, (1,))[1]) for name, Y in units.items()}


def percent(recall: float) -> float:
    return round(100 * recall, 2)


def table(trials: list[dict[str, Any]], recent: bool = True) -> str:
    """Return the trials as a Markdown table, one row per trial: those with `held_out` (recent), or those before."""
    if not recent:
        return _first_table([trial for trial in trials if "held_out" not in trial])
    lines = [
        "| dataset | choice | held out | step | 512-d | 64-d | MAP@R | over the steps |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    chosen = [trial for trial in trials if "held_out" in trial]
    for trial in sorted(chosen, key=lambda trial: (trial["dataset"], "crop" in trial["settings"])):  # stable
        step, curve, scores = trial["best_step"], trial["curve"], dict(trial["map_at_r"])
        narrow = trial["recall_at_1"].get("64")
        lines.append(
            f"| {trial['dataset']} | {trial['choice']} | {trial['held_out']:.0%} | {step} | {dict(curve)[step]:.1f} "
            f"| {'' if narrow is None else f'{narrow:.1f}'} | {scores[step]:.1f} "
            f"| {', '.join(f'{recall:.1f} ({scores[at]:.1f})' for at, recall in curve)} |"
        )
    return "\n".join(lines)


def _first_table(trials: list[dict[str, Any]]) -> str:
    """Return trials of the first format, one row per trial, and one per mix of its last step."""
    lines = ["| choice | dataset | step | 512-d | 64-d | 64 components |", "|---|---|---:|---:|---:|---:|"]
    for trial in trials:
        named, dataset, last = trial["choice"], trial["dataset"], trial["curve"][-1]
        found = {key: f"{value:.1f}" for key, value in trial["recall_at_1"].items()}
        lines.append(
            f"| {named} | {dataset} | {trial['best_step']}, best | {found['512']} | {found['64']} | {found['64 components']} |"
        )
        for mix, mixed in trial.get("best_mixed", {}).items():
            lines.append(f"| | | {trial['best_step']}, best, mix {mix} | {mixed['512']:.1f} | {mixed['64']:.1f} | |")
        if other := trial.get("trunk_only"):  # this trial interpolated the last layer too
            lines.append(f"| | | {last[0]}, last, mix of the trunk only | {other['512']:.1f} | {other['64']:.1f} | |")
        if not trial["mixed"]:
            lines.append(f"| | | {last[0]}, last | {last[1]:.1f} | | |")
        for mix, mixed in trial["mixed"].items():
            lines.append(f"| | | {last[0]}, last, mix {mix} | {mixed['512']:.1f} | {mixed['64']:.1f} | |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
