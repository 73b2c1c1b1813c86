"""Collect the test scores of a finished experiment, for the tables in README and the docs.

    python benchmarks/scores.py build/demo/short-seed-0 --name demo
    python benchmarks/scores.py cub-folder --name cub

FOLDER is written by `liftedstruct demo` or `liftedstruct reproduce`. Nothing is trained or evaluated: the script reads the
evaluated runs and the pretrained trunk's features, and writes `benchmarks/results/scores-NAME.json` with the machine, the
settings of each run, its scores with 95 % intervals, and its paired difference in Recall@1 from the best run of its FOLDER.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import liftedstruct as ls
from liftedstruct.evaluation import TEST_EVALUATIONS_FILE
from liftedstruct.report import read_runs
from machine import describe_machine
from records import write

__all__ = ["collect", "main"]

RESULTS = Path(__file__).parent / "results"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="folder of a demo or reproduce experiment")
    parser.add_argument("--name", required=True, help="name of the results file")
    parser.add_argument("--note", default="", help="sentence below the table")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results file")
    options = parser.parse_args(arguments)
    rows = [row for folder in options.folders for row in collect(folder)]
    content = {"machine": asdict(describe_machine()), "note": options.note, "rows": rows}
    write(options.results / f"scores-{options.name}.json", content, digits=9)


def collect(folder: Path) -> list[dict[str, Any]]:
    """Return scores and settings of the runs in a folder, pretrained trunk first, with their difference from the best run."""
    paths = [path.parent for path in sorted(folder.glob("*/scores.json"))]
    runs = read_runs([folder / "pool5.npz", *paths], progress=False)
    best = max(runs, key=lambda run: run.scores.recall[1].value)
    evaluations = [json.loads(line)["file"] for line in (Path(best.data) / TEST_EVALUATIONS_FILE).read_text().splitlines()]
    rows = []
    for run in runs:
        config, difference = run.config, ls.compare(best.scores, run.scores).differences["Recall@1"]
        row = {"loss": "pretrained" if config is None else config.loss.name, "dim": run.size}
        row |= {name: run.protocol.get(name) for name in ("trunk", "crop", "size", "resize_mode", "weights")}
        if config is not None:
            row |= {"steps": config.steps, "batch_size": config.batch_size, "threads": config.threads, "seed": config.seed}
            row["settings"] = {"lr": config.lr, **config.loss.options, "pretrained_mix": config.pretrained_mix}
            row |= {"minutes": round(run.minutes, 1), "processor": run.record.get("processor")}
        row["metrics"] = {name: [each.value, each.low, each.high] for name, each in run.scores.metrics.items()}
        row["below_best"] = [difference.value, difference.low, difference.high, difference.p]
        row["test_evaluations"] = evaluations.count(str(run.file.absolute()))
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
