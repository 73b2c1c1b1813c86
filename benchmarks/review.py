"""The lists of a review with planted errors, beside cleanlab on the same embeddings and classes.

    python benchmarks/review.py [--parts labels duplicates time] [--sets birds products] [--seeds 3] [--out FILE] [--json FILE]

Embeddings: pooled features of the pretrained EfficientNet-Lite0 at 224 x 224, of unit length, kept in build/. birds: the
training classes of CUB-200-2011 with even numbers, if LIFTEDSTRUCT_DATA names the folder with its tar; the list of wrong labels
was chosen on the odd ones, that of duplicates with other seeds. products: 400 rendered products; both chosen on 800 others.

Planted, by seed: 2 % of the images have a copy (up to 4 % cropped at each side, resized to 50 to 90 %, JPEG of quality 50 to
90); then 5 % get a wrong label, of any class (random), or one of the five classes with the nearest means (near).

labels: average precision of the list of wrong labels. cleanlab's score is the best mean over the seeds of four: from the vote
of the 10 nearest images, or from logistic regression (5-fold, C = 10, which was better than 1), by self-confidence or
normalized margin. Intervals are 95 %, of a paired bootstrap of the images.

duplicates: average precision of the list of near duplicates. Every pair that is not planted counts as wrong; the first of them
are printed. Four pairs of CUB-200-2011 that are the same photograph, checked by eye, do not count.

time: 100,000 x 512 in 20,000 classes, neighbors given, without images.
"""

import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data import ImageSet, read_images
from liftedstruct.data.decoding import load_rgb
from liftedstruct.data.products import write_products
from liftedstruct.embedder import open_embedder
from liftedstruct.retrieval import nearest_neighbors
from liftedstruct.review import (
    Collection,
    Look,
    classes_like_one,
    classes_like_two,
    label_scores,
    look_at,
    near_duplicates,
    outliers,
    wrong_labels,
)
from machine import processor
from records import Baseline
from table import Table, flags, seconds

BUILD = Path(__file__).parent.parent / "build"
SEEDS, COPIES, ERRORS, NEIGHBORS, BLOCK = 6, 0.02, 0.05, 16, 256
SAME = (  # duplicates in CUB-200-2011 itself
    {"Pigeon_Guillemot_0018_40195", "Pigeon_Guillemot_0081_40339"},
    {"Red_Legged_Kittiwake_0020_795439", "Red_Legged_Kittiwake_0042_795457"},
    {"Bronzed_Cowbird_0025_796213", "Bronzed_Cowbird_0074_24045"},
    {"Laysan_Albatross_0065_809", "Laysan_Albatross_0096_673"},
)
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Images(NamedTuple):
    """A dataset, and the embeddings of its images and of their copies, (n + SEEDS · m, d); `copied` has the rows, by seed."""

    image_set: ImageSet
    X: NDArray[np.float32]
    copied: Integers  # (SEEDS, m)

    def open(self, row: int, seed: int) -> Image.Image:
        """Decode an image, or the copy that a row after the last image is."""
        n = len(self.image_set)
        i = row if row < n else int(self.copied[seed][row - n])
        image = load_rgb(self.image_set.source, self.image_set.paths[i])
        return image if row < n else Image.open(io.BytesIO(copy_of(image, np.random.default_rng([seed, 4, i])))).convert("RGB")


class Planted(NamedTuple):
    """The images of a part of the classes with the copies of one seed."""

    rows: Integers  # (r,), see Images.open
    X: NDArray[np.float32]
    labels: Integers  # (r,), 0..C-1, right
    distances: Floats
    neighbors: Integers

    def collection(self, labels: Integers) -> Collection:
        names = [f"class {c}" for c in range(labels.max() + 1)]
        return Collection(self.X, labels, names, self.distances, self.neighbors)


def main() -> None:
    parser = flags(__doc__)
    parser.add_argument(
        "--parts", nargs="+", choices=("labels", "duplicates", "time"), default=("labels", "duplicates", "time")
    )
    parser.add_argument("--sets", nargs="+", choices=("birds", "products"), default=("birds", "products"))
    parser.add_argument("--seeds", type=int, default=3, help=f"seeds, 1 to {SEEDS - 2}")
    options = parser.parse_args()
    table = Table()
    table.say(processor())
    for name in options.sets if set(options.parts) & {"labels", "duplicates"} else ():
        if name == "birds" and "LIFTEDSTRUCT_DATA" not in os.environ:
            table.skip("birds", "LIFTEDSTRUCT_DATA is not set")
            continue
        images = read(name)
        parts = [plant(images, seed, even=name == "birds") for seed in range(2, 2 + options.seeds)]
        table.section(f"{name}: {len(parts[0].rows):,} images of {parts[0].labels.max() + 1} classes, {len(parts)} seeds")
        if "labels" in options.parts:
            compare_labels(table, name, parts)
        if "duplicates" in options.parts:
            find_copies(table, name, images, parts)
    if "time" in options.parts:
        measure(table)
    table.finish(options)


# --- images --------------------------------------------------------------------------------------------------------------


def read(name: str) -> Images:
    """Return a dataset with its embeddings, which are computed once."""
    if name == "birds":
        image_set = read_images(next(Path(os.environ["LIFTEDSTRUCT_DATA"]).glob("CUB_200_2011.t*")))
        image_set = image_set.subset(image_set.train)
    else:
        image_set = write_products(BUILD / "review-products", n_classes=400, size=128, seed=3)
    n, file = len(image_set), BUILD / f"review-{name}.npz"
    draws = [np.random.default_rng([seed, 3]) for seed in range(SEEDS)]
    copied = np.stack([rng.choice(n, round(COPIES * n), replace=False) for rng in draws])
    if not file.exists():
        images = Images(image_set, np.empty((0, 0), np.float32), copied)
        embedder = open_embedder("efficientnet_lite0")
        numbers = [(row, 0) for row in range(n)] + [(n + j, seed) for seed in range(SEEDS) for j in range(len(copied[0]))]
        blocks = [numbers[at : at + BLOCK] for at in range(0, len(numbers), BLOCK)]
        X = np.concatenate([embedder.encode([images.open(*each) for each in block]) for block in blocks])
        BUILD.mkdir(exist_ok=True)
        np.savez(file, X=X)
    return Images(image_set, np.load(file)["X"], copied)


def copy_of(image: Image.Image, rng: np.random.Generator) -> bytes:
    """Return a JPEG file of the image, cropped, resized and compressed."""
    w, h = image.size
    left, top, right, bottom = rng.uniform(0, 0.04, 4) * [w, h, w, h]
    image = image.crop((round(left), round(top), round(w - right), round(h - bottom)))
    scale = rng.uniform(0.5, 0.9)
    small = image.resize((max(32, round(image.width * scale)), max(32, round(image.height * scale))), Image.Resampling.BICUBIC)
    out = io.BytesIO()
    small.save(out, "jpeg", quality=int(rng.integers(50, 91)))
    return out.getvalue()


def plant(images: Images, seed: int, even: bool) -> Planted:
    """Return the images with the copies of a seed, of the classes with an even number (1, 2, ...) or of all."""
    n, m = len(images.image_set), images.copied.shape[1]
    rows = np.arange(n + m)
    y = images.image_set.labels[np.concatenate((rows[:n], images.copied[seed]))]
    X = np.concatenate((images.X[:n], images.X[n + seed * m : n + (seed + 1) * m]))
    keep = y % 2 == 1 if even else y >= 0
    X = X[keep] / np.linalg.norm(X[keep], axis=1, keepdims=True)
    labels = np.unique(y[keep], return_inverse=True)[1].astype(np.int64)
    return Planted(rows[keep], X, labels, *nearest_neighbors(X, NEIGHBORS))


def mislabel(part: Planted, seed: int, near: bool) -> Integers:
    """Return labels of which 5 % are wrong."""
    rng, C, labels = np.random.default_rng([seed, 5]), part.labels.max() + 1, part.labels.copy()
    wrong = rng.choice(len(labels), round(ERRORS * len(labels)), replace=False)
    others = (labels[wrong] + rng.integers(1, C, len(wrong))) % C
    if near:
        means = np.stack([part.X[part.labels == c].mean(axis=0) for c in range(C)])
        nearest = nearest_neighbors(means, 5)[1]
        others = nearest[labels[wrong], rng.integers(0, 5, len(wrong))]
    labels[wrong] = others
    return labels


# --- wrong labels --------------------------------------------------------------------------------------------------------


def compare_labels(table: Table, name: str, parts: list[Planted]) -> None:
    for kind in ("random", "near"):
        wrong, scores = [], list[dict[str, Floats]]()
        for seed, part in enumerate(parts, 2):
            labels = mislabel(part, seed, kind == "near")
            wrong.append(labels != part.labels)
            kept = BUILD / f"review-{name}-{kind}-{seed}.npz"
            scores.append({"ours": label_scores(part.collection(labels))[0]} | dict(cleanlab_scores(table, part, labels, kept)))
        means = {each: np.mean([precision(w, s[each]) for w, s in zip(wrong, scores, strict=True)]) for each in scores[0]}
        for each, value in means.items():
            table.say(f"{100 * value:8.1f} %  {name}, {kind} errors: {each}")
        ours, others = float(means.pop("ours")), sorted(means, key=lambda each: -means[each])
        what = f"wrong labels, {kind}"
        if not others:
            table.row(what, 100 * ours, "%", note="average precision")
            continue
        low, high = interval(wrong, scores, others[0])
        ahead = ours - means[others[0]]
        table.say(f"{100 * ahead:8.1f}    ahead of {others[0]}, 95 % interval {100 * low:.1f} to {100 * high:.1f}")
        note = f"ahead by {100 * ahead:.1f} ({100 * low:.1f} to {100 * high:.1f})"
        table.row(what, 100 * ours, "%", Baseline(others[0], 100 * float(means[others[0]])), note=note)
        table.target(f"points of average precision ahead of cleanlab, {name}, {kind}", 100 * float(ahead), minimum=0)


def cleanlab_scores(table: Table, part: Planted, labels: Integers, kept: Path) -> Iterator[tuple[str, Floats]]:
    """Yield names and scores of cleanlab's methods, larger for labels that are more likely wrong.

    The probabilities of the regression, which take minutes, are kept in a file.
    """
    try:
        from cleanlab.rank import get_label_quality_scores  # type: ignore[import-untyped]
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import StratifiedKFold
    except ModuleNotFoundError as missing:
        table.skip("cleanlab", str(missing))
        return
    C = labels.max() + 1
    votes = np.zeros((len(labels), C))
    np.add.at(votes, (np.arange(len(labels))[:, None], labels[part.neighbors[:, :10]]), 0.1)
    if not kept.exists():
        P = np.zeros((len(labels), C))
        with warnings.catch_warnings(action="ignore"):  # classes with fewer images than folds
            for train, test in StratifiedKFold(5, shuffle=True, random_state=0).split(part.X, labels):
                model = LogisticRegression(C=10, max_iter=300).fit(part.X[train], labels[train])
                P[np.ix_(test, model.classes_)] = model.predict_proba(part.X[test])
        np.savez(kept, P=P)
    P = np.load(kept)["P"]
    for which, predicted in (("10 nearest", votes), ("logistic regression", P)):
        for method in ("self_confidence", "normalized_margin"):
            yield (
                f"cleanlab, {which}, {method.replace('_', ' ')}",
                1 - get_label_quality_scores(labels, predicted, method=method),
            )


def precision(wrong: NDArray[np.bool_], scores: Floats) -> float:
    """Return the average precision; ties are in the order of the rows."""
    hits = wrong[np.argsort(-scores, kind="stable")]
    return float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].mean())


def interval(
    wrong: list[NDArray[np.bool_]], scores: list[dict[str, Floats]], other: str, draws: int = 1000
) -> tuple[float, float]:
    """Return the 95 % interval of the mean difference of the average precisions."""
    rng, ahead = np.random.default_rng(0), []
    for _ in range(draws):
        differences = []
        for w, s in zip(wrong, scores, strict=True):
            rows = rng.integers(0, len(w), len(w))
            differences.append(precision(w[rows], s["ours"][rows]) - precision(w[rows], s[other][rows]))
        ahead.append(np.mean(differences))
    low, high = np.quantile(ahead, (0.025, 0.975))
    return float(low), float(high)


# --- near duplicates -----------------------------------------------------------------------------------------------------


def find_copies(table: Table, name: str, images: Images, parts: list[Planted]) -> None:
    n, found, looks = len(images.image_set), [], dict[int, Look]()
    for seed, part in enumerate(parts, 2):

        def look(row: int, seed: int = seed, part: Planted = part) -> Look:
            image = int(part.rows[row])
            if image >= n:
                return look_at(images.open(image, seed))
            if image not in looks:
                looks[image] = look_at(images.open(image, seed))
            return looks[image]

        pairs = near_duplicates(part.collection(part.labels), look)
        truth = {(int(images.copied[seed][row - n]), int(row)) for row in part.rows if row >= n}
        name_of = [Path(path).stem for path in images.image_set.paths]
        name_of += [name_of[i] for i in images.copied[seed]]
        rows = [(score, (int(part.rows[a]), int(part.rows[b]))) for score, a, b in pairs]
        listed = [(score, pair) for score, pair in rows if {name_of[row] for row in pair} not in SAME]
        hits = np.array([pair in truth for _, pair in listed])
        found.append(float((np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].sum() / len(truth)))
        others = [(score, pair) for score, pair in listed if pair not in truth][:5]
        table.say(f"{100 * found[-1]:8.1f} %  {name}: {hits.sum()} of {len(truth)} copies among {len(listed)} pairs")
        for score, pair in others:
            names = " and ".join(images.image_set.paths[row] if row < n else f"copy {row - n}" for row in pair)
            table.say(f"{score:12.3f}  not planted: {names}")
    table.row("near duplicates", 100 * float(np.mean(found)), "%", note=f"{100 * min(found):.1f} to {100 * max(found):.1f}")
    table.target(f"average precision of near duplicates, {name}", float(np.mean(found)), minimum=0.95)


# --- time ----------------------------------------------------------------------------------------------------------------


def measure(table: Table, n: int = 100_000, d: int = 512, C: int = 20_000) -> None:
    rng = np.random.default_rng(0)
    y = np.sort(rng.integers(0, C, n))
    X = (rng.standard_normal((C, d), dtype=np.float32)[y] + 0.7 * rng.standard_normal((n, d), dtype=np.float32)).astype(
        np.float32
    )
    neighbors = np.concatenate(((np.arange(n)[:, None] + [-2, -1, 1, 2]) % n, rng.integers(0, n, (n, NEIGHBORS - 4))), axis=1)
    D = np.empty(neighbors.shape)
    for at in range(0, n, 1024):
        D[at : at + 1024] = np.linalg.norm(X[at : at + 1024, None] - X[neighbors[at : at + 1024]], axis=2)
    order = np.argsort(D, axis=1)
    D, near = np.take_along_axis(D, order, 1), np.take_along_axis(neighbors, order, 1).astype(np.int64)
    items = Collection(X, y, [f"class {c}" for c in range(C)], D, near)
    table.section(f"{n:,} x {d} in {C:,} classes, neighbors given")
    lists = {
        "wrong labels": wrong_labels,
        "two that look like one": classes_like_one,
        "one that looks like two": classes_like_two,
    }
    lists |= {"outliers": outliers, "near duplicates, without images": near_duplicates}  # type: ignore[dict-item]
    total = 0.0
    for name, make in lists.items():
        took = seconds(lambda make=make: make(items))  # type: ignore[misc]
        total += took
        table.say(f"{took:8.2f} s  {name}")
        table.row(name, took, "s")
    table.target("seconds for all lists", total, maximum=120)


if __name__ == "__main__":
    main()
