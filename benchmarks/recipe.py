"""Search for the default recipe on CUB-200-2011, with validation classes held out of the training classes.

Every trial trains on 50 of the 100 training classes and is evaluated on the other 50 with its last weights; the test
classes are never used. Each trial is a line of the results file: round, trunk, budget, settings, seed, scores before and
after, minutes. Finished trials are skipped, so an interrupted search resumes with the same command.

    LIFTEDSTRUCT_DATA=/path/to/data python benchmarks/recipe.py --out recipe --results benchmarks/results/recipe.jsonl

Two searches in parallel with one thread each take a third less time on two cores: `--share 1/2` and `--share 2/2`. Without
`--share`, the script prints the table of all trials and draws the figures (`--figure`, `--curves`).
`--only "larger crops"` runs one round.

`--remeasure RUN` evaluates the last weights of a trial on the same validation classes with another image or crop size
(`--size`, `--crop`), or interpolated with the trunk's pretrained weights (`--pretrained-mix`), and appends a line to
`recipe-looks.jsonl`.

For scores on the test classes, run `liftedstruct reproduce cub --preset default`, then `benchmarks/scores.py`.

The results file keeps the setting names in use when the trials ran; `read_trials` translates them.
"""

import argparse
import functools
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import liftedstruct as ls
from liftedstruct.cli.flags import config_values
from liftedstruct.training import RunFolder, TrainConfig, merge_settings, split_rows, starting_trunk

HELD_OUT = 0.5  # of the training classes
REMEASURED = "recipe-looks.jsonl"  # next to the results file

# Settings of a trial unless it overrides them: the starting point of the search.
START: dict[str, Any] = {
    "pool": "avg",
    "train_dim": 0,
    "normalize": False,
    "head": "orthogonal",
    "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0},
    "sampler": {"name": "balanced", "samples_per_class": 2},
    "augmentation": {"name": "random_resized_crop", "min_crop_scale": 0.0},
    "lr": 2e-4,
    "freeze": 0,
    "min_dim": 0,
    "schedule": "cosine",
    "warmup": 0,
    "ema_decay": 0.0,
    "pretrained_mix": 0.0,
}
# Setting names when the trials ran -> now. Other settings kept their name or were removed.
RENAMED = {
    "average": "ema_decay",
    "batches": "sampler",
    "colour": "augmentation.color_jitter",
    "head_scale": "head.scale",
    "images": "sampler.samples_per_class",
    "least_area": "augmentation.min_crop_scale",
    "margin": "loss.margin",
    "negative": "loss.triplets",
    "refresh_every": "sampler.refresh_every",
    "start_share": "pretrained_mix",
    "temperature": "loss.temperature",
}
VALUES = {
    ("pool", "average"): "avg",
    ("pool", "both"): "avg+max",
    ("sampler", "mined"): "hard_negatives",
    ("loss.triplets", "semi-hard"): "rows-semi-hard",
}
ROWS = {"contrastive": {"loss.pairs": "rows", "sampler": "pairs"}, "triplet": {"loss.triplets": "rows", "sampler": "triplets"}}


class Budget(NamedTuple):
    """Image size and training length of a trial."""

    size: int  # of the prepared images
    crop: int
    steps: int


FULL = Budget(size=256, crop=224, steps=160)
LARGE = Budget(size=329, crop=288, steps=160)  # the same field of view
SMALL = Budget(size=146, crop=128, steps=120)  # the same field of view as 224 out of 256


class Round(NamedTuple):
    """Trials with one budget, as variations of a base."""

    about: str
    trunk: str
    budget: Budget
    base: dict[str, Any]
    variations: list[dict[str, Any]]
    seeds: tuple[int, ...] = (0,)
    validate_every: int = 10**6  # steps; recorded only, does not affect training


RAW: dict[str, Any] = {"dim": 512, "freeze": 3, "head.scale": 1.5}
SPHERE: dict[str, Any] = {**RAW, "pool": "avg+max", "head": "pca", "head.scale": 1.0, "normalize": True}
WARM: dict[str, Any] = {**SPHERE, "loss.temperature": 0.1}
COLD: dict[str, Any] = {**SPHERE, "loss.temperature": 0.05}
OTHER_LOSS: dict[str, Any] = {**SPHERE, "freeze": 4, "lr": 1e-4}
CAREFUL: dict[str, Any] = {**COLD, "freeze": 4, "lr": 4e-5, "augmentation.min_crop_scale": 0.3}
SCALED: dict[str, Any] = {**CAREFUL, "sampler.samples_per_class": 4}
WIDE: dict[str, Any] = {**SCALED, "loss.margin": 4.0}
GOOGLENET: dict[str, Any] = {**COLD, "freeze": 4, "sampler.samples_per_class": 4, "lr": 1e-4, "loss.margin": 4.0}
ROUNDS = [
    Round(
        "raw embeddings",
        "efficientnet_lite0",
        SMALL,
        RAW,
        [
            {},
            {"pool": "avg+max"},
            {"pool": "avg+max", "head.scale": 0.3},
        ],
    ),
    Round(
        "on the unit sphere",
        "efficientnet_lite0",
        SMALL,
        WARM,
        [
            {},
            {"pool": "avg"},
            {"loss.temperature": 0.2},
            {"loss.temperature": 0.05},
            {"head": "whitened"},  # removed
        ],
    ),
    Round(
        "one thing at a time",
        "efficientnet_lite0",
        SMALL,
        COLD,
        [
            {"lr": 4e-4},
            {"augmentation.min_crop_scale": 0.25},
            {"freeze": 4},
            {"sampler.samples_per_class": 4},
            {"augmentation.min_crop_scale": 0.4, "train_crop": 96, "steps": 190},  # about the same duration
            {"ema_decay": 0.95},
        ],
    ),
    Round(
        "three times as long",
        "efficientnet_lite0",
        SMALL._replace(steps=360),
        {**COLD, "freeze": 4, "sampler.samples_per_class": 4, "lr": 1e-4},
        [
            {},
            {"augmentation.min_crop_scale": 0.3, "ema_decay": 0.97},
        ],
    ),
    Round(
        "GoogLeNet",
        "googlenet",
        SMALL,
        {**COLD, "freeze": 4, "precision": "bfloat16", "sampler.samples_per_class": 4},
        [
            {},
            {"lr": 1e-4},
            {"lr": 5e-5},
            {"lr": 2.5e-5},
        ],
    ),
    Round(
        "GoogLeNet's margin",
        "googlenet",
        SMALL,
        {**COLD, "freeze": 4, "precision": "bfloat16", "sampler.samples_per_class": 4, "lr": 1e-4},
        [{"loss.margin": 4.0}],
    ),
    Round(
        "four images of each class",
        "efficientnet_lite0",
        SMALL,
        {**COLD, "sampler.samples_per_class": 4},
        [
            {},
            {"lr": 1e-4},
            {"sampler.samples_per_class": 8},
            {"dropout": 0.3},
            {"loss.temperature": 0.03},
            {"batch_size": 128, "steps": 60},  # as many images
            {"head_lr": 0.2, "head_bias_lr": 0.2},  # removed
        ],
    ),
    Round(
        "color",
        "efficientnet_lite0",
        SMALL,
        {**COLD, "sampler.samples_per_class": 4, "lr": 1e-4},
        [{"augmentation.color_jitter": 0.3}],
    ),
    Round(
        "the margin, two seeds",
        "efficientnet_lite0",
        SMALL,
        {**COLD, "sampler.samples_per_class": 4, "lr": 1e-4},
        [{}, {"loss.margin": 4.0}],
        seeds=(0, 1),
    ),
    Round(
        "at full size",
        "efficientnet_lite0",
        FULL,
        {**COLD, "freeze": 4, "sampler.samples_per_class": 4, "lr": 1e-4},
        [
            {},
            {"loss.temperature": 0.1},
            {"augmentation.min_crop_scale": 0.3},
            {"lr": 4e-5},
        ],
    ),
    Round(
        "random scale at full size",
        "efficientnet_lite0",
        FULL,
        SCALED,
        [
            {},
            {"loss.margin": 4.0},
            {"loss.margin": 8.0},
        ],
    ),
    Round(
        "hard negatives at full size",
        "efficientnet_lite0",
        FULL,
        {**CAREFUL, "loss.margin": 4.0},
        [{"sampler": "hard_negatives", "sampler.refresh_every": 80}],
    ),
    Round(
        "three times as long at full size",
        "efficientnet_lite0",
        FULL._replace(steps=480),
        SCALED,
        [{}],
        validate_every=80,
    ),
    Round(
        "larger crops",
        "efficientnet_lite0",
        LARGE,
        WIDE,
        [
            {},
            {"train_crop": 224},
        ],
    ),
    Round(
        "pretrained mix",
        "efficientnet_lite0",
        LARGE,
        {**WIDE, "train_crop": 224, "lr": 1e-4},
        [{"pretrained_mix": 0.4}],
    ),
    Round(
        "GoogLeNet at full size",
        "googlenet",
        FULL,
        GOOGLENET,
        [{"augmentation.min_crop_scale": 0.3}],
    ),
    Round(
        "contrastive",
        "efficientnet_lite0",
        SMALL,
        {**OTHER_LOSS, "loss": "contrastive", **ROWS["contrastive"], "loss.margin": 1.0},
        [{}, {"loss.margin": 0.5}, {"loss.margin": 1.4}, {"lr": 4e-5}],
    ),
    Round(
        "triplet",
        "efficientnet_lite0",
        SMALL,
        {**OTHER_LOSS, "loss": "triplet", **ROWS["triplet"], "loss.margin": 0.5},
        [{}, {"loss.margin": 0.2}, {"loss.margin": 1.0}, {"loss.triplets": "rows-semi-hard"}, {"lr": 4e-5}],
    ),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the prepared images and the run of a trial")
    parser.add_argument("--results", type=Path, required=True, help="file with one line per trial")
    parser.add_argument("--figure", type=Path, help="SVG, PNG or PDF file for the plot of all trials")
    parser.add_argument("--curves", type=Path, help="file for the plot of Recall@1 over the steps")
    parser.add_argument("--share", default="1/1", help="k/n: run the k-th of n disjoint parts of the trials")
    parser.add_argument("--only", choices=[one.about for one in ROUNDS], help="run the trials of this round only")
    parser.add_argument("--remeasure", type=Path, help="run folder of a trial to evaluate again")
    parser.add_argument("--size", type=int, default=FULL.size, help="with --remeasure: image size")
    parser.add_argument("--crop", type=int, default=FULL.crop, help="with --remeasure: crop size")
    parser.add_argument("--pretrained-mix", type=float, default=0.0, help="with --remeasure: weight of the pretrained trunk")
    flags = parser.parse_args()
    if flags.remeasure:
        packed = ls.PackedImages(prepared(Path(os.environ["LIFTEDSTRUCT_DATA"]), flags.out, flags.size))
        line = remeasure(flags.remeasure, packed, flags.crop, flags.pretrained_mix)
        with flags.results.with_name(REMEASURED).open("a") as stream:
            stream.write(json.dumps(line) + "\n")
        print(json.dumps(line))
        return
    share, shares = map(int, flags.share.split("/"))
    done = read_trials(flags.results) if flags.results.exists() else []
    trials = [(one, one.base | variation, seed) for one in ROUNDS for variation in one.variations for seed in one.seeds]
    trials = [trial for trial in trials if flags.only in (None, trial[0].about) and not is_removed(trial[1])]
    for one, settings, seed in trials[share - 1 :: shares]:
        key = {"trunk": one.trunk, "budget": one.budget._asdict(), "settings": settings, "seed": seed}
        if not any(all(trial[name] == value for name, value in key.items()) for trial in done):
            done.append({"round": one.about, **key, **measure(one, settings, seed, flags.out, share, shares)})
            with flags.results.open("a") as stream:
                stream.write(json.dumps(done[-1]) + "\n")
            print(json.dumps(done[-1]), flush=True)
    if shares == 1:
        print(table(done))
        if flags.figure:
            draw(done, flags.figure)
        if flags.curves:
            draw_curves(done, flags.curves)


def read_trials(results: Path) -> list[dict[str, Any]]:
    """Read the finished trials, with current setting names."""
    trials = [json.loads(line) for line in results.read_text().splitlines()]
    return [{**trial, "settings": renamed(trial["settings"])} for trial in trials]


def renamed(settings: dict[str, Any]) -> dict[str, Any]:
    """Translate old setting names; current names are unchanged."""
    now = {RENAMED.get(name, name): value for name, value in settings.items()}
    now = {name: VALUES.get((name, value), value) for name, value in now.items()}
    if rows := ROWS.get(now.get("loss", "")):
        now = {**rows, **{name: value for name, value in now.items() if name != "loss.temperature"}}  # it was 1
    return now


def is_removed(settings: dict[str, Any]) -> bool:
    """Return whether a trial uses removed settings and cannot be run again."""
    return settings.get("head") == "whitened" or "head_lr" in settings


def configure(settings: dict[str, Any], **common: Any) -> TrainConfig:
    """Return all settings of a trial."""
    return merge_settings(START, common, config_values(settings))


def measure(one: Round, settings: dict[str, Any], seed: int, out: Path, share: int, shares: int) -> dict[str, Any]:
    """Train with these settings and return Recall@1 on the held-out classes, before and after."""
    data, trunk, budget = Path(os.environ["LIFTEDSTRUCT_DATA"]), one.trunk, one.budget
    run = out / f"trial-{share}"
    shutil.rmtree(run, ignore_errors=True)
    common: dict[str, Any] = {"data": prepared(data, out, budget.size), "out": run, "trunk": trunk, "seed": seed}
    common["validate_every"] = one.validate_every
    common |= {"crop": budget.crop, "steps": budget.steps, "validation": HELD_OUT}
    if trunk == "googlenet":
        common["weights"] = data / "googlenet_imagenet.npz"
    if shares > 1:
        common["threads"] = max(1, (os.cpu_count() or 1) // shares)
    config = configure(settings, **common)
    began = time.monotonic()
    log = ls.train(config, progress=False).log()
    curve = [(line["step"], line["recall_at_1"]) for line in log if "recall_at_1" in line]
    scores = {"before": curve[0][1], "after": curve[-1][1], "minutes": round((time.monotonic() - began) / 60, 2)}
    return scores | ({"curve": curve} if len(curve) > 2 else {})


@functools.cache
def prepared(data: Path, out: Path, size: int) -> Path:
    """Return the folder of the images prepared at this size."""
    return ls.prepare(ls.read_images(data / "CUB_200_2011.tar"), out / f"cub-{size}", size=size).folder


def remeasure(run: Path, packed: ls.PackedImages, crop: int, pretrained_mix: float) -> dict[str, Any]:
    """Return Recall@1 of a trial's last weights on its validation classes with another image and crop size.

    `pretrained_mix` interpolates only the trunk here; the setting of the same name interpolates the head too.
    """
    folder, embedder = RunFolder(run), ls.Embedder.load(run)
    config, state = folder.config(), folder.load_state()
    assert state is not None
    weights = {name: state[0][f"embedder.{name}"] for name in embedder.state_dict()}
    for name, start in starting_trunk(config).named_parameters():
        weights[f"trunk.{name}"].lerp_(start.detach(), pretrained_mix)
    embedder.load_state_dict(weights)
    embedder.crop = crop
    found = ls.embed(embedder, packed, split_rows(packed, config.validation, config.seed)[1])
    recall = ls.recall_at_k(found.embeddings, found.labels, (1,))[1]
    plain = config.plain()
    trial = {name: plain[name] for name in ("trunk", "crop", "train_crop", "augmentation", "lr", "steps", "seed")}
    return {"trial": trial, "size": packed.size, "crop": crop, "pretrained_mix": pretrained_mix, "recall_at_1": recall}


def scores_of(one: Round, done: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the finished trials of a round, one per seed, by what they change; the base first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for variation in ({}, *(each for each in one.variations if each)):
        settings = one.base | variation
        changed = {name: value for name, value in settings.items() if one.base.get(name) != value}
        words = describe(changed) or "base"
        trials = [t for t in done if (t["trunk"], t["settings"]) == (one.trunk, settings) and t["seed"] in one.seeds]
        trials = [t for t in trials if t["budget"] == one.budget._asdict()]
        if trials:
            found.setdefault(words, trials)
    return found


def describe(settings: dict[str, Any]) -> str:
    """Return settings as one line, options without their prefix except for the head's scale."""
    return ", ".join(f"{re.sub('^(augmentation|loss|sampler)[.]', '', name)} {value}" for name, value in settings.items())


def table(done: list[dict[str, Any]]) -> str:
    """Return all rounds as Markdown tables: changed settings, Recall@1 before and after training, difference from the base."""
    lines = [
        "Recall@1 in percent on 50 held-out training classes, before and after training on the other 50; minutes with another",
        "search or training running in parallel. Unless noted: 64 images per batch (63 for triplets), two per class, learning",
        "rate 0.0002, margin 1.",
    ]
    for one in ROUNDS:
        found = scores_of(one, done)
        budget = f"{one.budget.steps} steps, crops of {one.budget.crop} out of {one.budget.size} px"
        base = describe(one.base) + ("" if "base" in found else " (not trained)")
        lines += ["", f"**{one.about}**: {one.trunk}, {budget}. Base: {base}."]
        lines += ["", "| | before | after | difference | minutes |", "|---|---:|---:|---:|---:|"]
        for words, trials in found.items():
            before, after = (sum(t[when] for t in trials) / len(trials) for when in ("before", "after"))
            level = [t["after"] for t in found.get("base", [])]
            gain = f"{100 * (after - sum(level) / len(level)):+.1f}" if level and words != "base" else ""
            seeds = ", ".join(f"{100 * t['after']:.1f}" for t in trials)
            each = f" ({seeds})" if len(trials) > 1 else ""
            minutes = sum(t["minutes"] for t in trials)
            lines.append(
                f"| {words} | {100 * before:.1f} | {100 * after:.1f}{each} | {gain} | {minutes:.1f} |".replace("|  |", "| |")
            )
    return "\n".join(lines)


def loss_of(trial: dict[str, Any]) -> str:
    return str(trial["settings"].get("loss", "lifted_struct"))


def draw(done: list[dict[str, Any]], path: Path) -> None:
    """Plot Recall@1 of every trial, one panel per round; a vertical line marks the base."""
    from liftedstruct.figures.style import COLORS, FAINT, new_figure, save_figure, styled

    rounds = [(one, scores_of(one, done)) for one in ROUNDS]
    rounds = [(one, found) for one, found in rounds if found]
    with styled():
        heights = [1.2 + len(found) for _, found in rounds]
        figure, panels = new_figure(8.4, 0.24 * sum(heights), rows=len(rounds), gridspec_kw={"height_ratios": heights})
        for (one, found), axes in zip(rounds, panels, strict=True):
            most = 74.0 if one.budget.crop < FULL.crop else 88.0
            least = most - 18  # percent; the same scale in all panels
            for place, trials in enumerate(found.values()):
                for t in trials:
                    value, color = 100 * t["after"], COLORS[loss_of(t)]
                    at, marker = (
                        max(value, least),
                        "o" if value > least else "<",
                    )  # values off the scale are printed at the edge
                    axes.plot([at], [place], marker, color=color, markersize=5, clip_on=False)
                    axes.text(at + 0.15, place, f"{value:.1f}", va="center", fontsize=7)
            if "base" in found:
                level = [100 * t["after"] for t in found["base"]]
                axes.axvline(sum(level) / len(level), color=FAINT, linewidth=1)
            axes.set_yticks(range(len(found)), list(found), fontsize=7.5)
            axes.set_ylim(len(found) - 0.5, -0.5)
            axes.set_xlim(least, most)
            axes.set_title(f"{one.about} ({one.trunk}, crops of {one.budget.crop} px)", loc="left")
        panels[-1].set_xlabel("Recall@1 on held-out training classes, percent")
        save_figure(figure, path)


def draw_curves(done: list[dict[str, Any]], path: Path) -> None:
    """Plot Recall@1 over the steps, one panel per round with intermediate evaluations."""
    from liftedstruct.figures.style import COLORS, new_figure, save_figure, styled

    rounds = [(one, [t for (t, *_) in scores_of(one, done).values() if "curve" in t]) for one in ROUNDS]
    rounds = [(one, watched) for one, watched in rounds if watched]
    with styled():
        figure, panels = new_figure(8.4, 2.6 * len(rounds), rows=len(rounds))
        for (one, watched), axes in zip(rounds, panels, strict=True):
            for t in watched:
                steps, recalls = zip(*t["curve"], strict=True)
                percent, loss = [100 * recall for recall in recalls], loss_of(t)
                axes.plot(steps, percent, "o-", color=COLORS[loss], markersize=4, label=loss)
            axes.set_title(f"{one.about} ({one.trunk}, crops of {one.budget.crop} px)", loc="left")
            axes.set_ylabel("Recall@1, percent")
            axes.legend(fontsize=7.5)
        panels[-1].set_xlabel("steps of 64 images")
        save_figure(figure, path)


if __name__ == "__main__":
    main()
