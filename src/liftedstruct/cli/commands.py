"""What each command does; what trains, draws or renders is imported when it is called."""

import inspect
from pathlib import Path
from typing import Any, Literal

from liftedstruct.cli.arguments import names, open_data, whole_numbers
from liftedstruct.cli.flags import config_values
from liftedstruct.runtime.checks import check_count, check_out, pick
from liftedstruct.runtime.progress import say
from liftedstruct.runtime.settings import options_of

__all__ = [
    "check",
    "demo",
    "embed",
    "evaluate",
    "figure",
    "fit",
    "list_entries",
    "prepare",
    "products",
    "report",
    "reproduce",
    "train",
]

Entries = Literal[
    "augmentations",
    "datasets",
    "figures",
    "heads",
    "losses",
    "optimizers",
    "presets",
    "resize-modes",
    "samplers",
    "schedules",
    "trunks",
]
ResizeMode = Literal["squash", "letterbox", "trim-letterbox"]
MAX_DPI = 1200  # a figure of ten inches has 144 million pixels then


def list_entries(what: Entries) -> None:
    """List what there is to choose from, with its options.

    Args:
        what: kind of entries.
    """
    from liftedstruct.data import READERS, RESIZE_MODES
    from liftedstruct.training import PRESETS, REGISTRIES

    declaring: dict[str, Any] = {f"{name}{'es' if name.endswith('s') else 's'}": each for name, each in REGISTRIES.items()}
    registries: dict[str, Any] = {**declaring, "datasets": READERS, "resize-modes": RESIZE_MODES}
    if what == "figures":  # which needs matplotlib
        from liftedstruct.figures import FIGURES

        registries["figures"] = FIGURES
    if what == "presets":
        for name, settings in PRESETS.items():
            print(name)
            for setting, value in settings.items():
                print(f"    {setting}: {value}")
        return
    for name, entry in registries[what].items():
        print(f"{name:<20} {(inspect.getdoc(entry) or '').partition(chr(10))[0]}".rstrip())  # python -OO has no docstrings
        for option in options_of(entry) if what in declaring else ():
            print(f"    {option.name} = {option.default!r}: {option.help}")
    if what == "trunks":
        print(f"{'timm:MODEL':<20} A model of timm; transformers:FOLDER one of transformers. Each needs its package.")


def products(
    out: Path,
    n_classes: int = 1000,
    images_per_class: int | None = None,
    size: int = 128,
    seed: int = 0,
    format: Literal["png", "jpg", "webp"] = "png",
) -> None:
    """Render the built-in dataset, images of made-up products, into a folder of class folders.

    Args:
        out: folder to write to, created if absent; a second run resumes.
        n_classes: number of products, each a class of its own.
        images_per_class: images of each. Default: 2 to 12, 5.3 on average, as in Stanford Online Products.
        size: side of an image in pixels.
        seed: another seed makes other products.
        format: of the image files.
    """
    from liftedstruct.data.products import write_products

    image_set = write_products(out, n_classes=n_classes, images_per_class=images_per_class, size=size, seed=seed, format=format)
    print(f"{len(image_set):,} images of {n_classes:,} products in {out}")


def prepare(
    data: str,
    out: Path,
    kind: str | None = None,
    size: int = 256,
    resize_mode: ResizeMode = "squash",
    test_classes: str | None = None,
    validation: float = 0.0,
    bad_images: Literal["list", "stop"] = "list",
    workers: int | None = None,
    force: bool = False,
    seed: int = 0,
) -> None:
    """Decode every image of a dataset once, into one memory-mapped file.

    Args:
        data: folder, CSV file or archive; or products:N for N rendered products.
        out: folder to write to, created if absent.
        kind: layout of the data (see "liftedstruct list datasets"). Default: recognized.
        size: side of the prepared images in pixels.
        resize_mode: how a rectangle becomes a square.
        test_classes: fraction of the classes for the test, such as 0.3, or their comma-separated names.
        validation: fraction of the training classes to hold out.
        bad_images: list leaves unreadable ones out and lists them, stop stops at the first.
        workers: decoding threads. Default: one per core.
        force: replace a dataset of other sources or settings.
        seed: of the split.
    """
    from liftedstruct import data as datasets

    image_set = open_data(data, kind, test_classes, validation, seed, size)
    packed = datasets.prepare(
        image_set, out, size=size, resize_mode=resize_mode, bad_images=bad_images, workers=workers, force=force
    )
    parts = f"{len(packed.train):,} for training, {len(packed.test):,} for the test"
    if len(packed.validation):
        parts += f", {len(packed.validation):,} for validation"
    print(f"{len(packed):,} images of {len(packed.class_names):,} classes in {out}: {parts}")


def check(
    data: str,
    kind: str | None = None,
    fix: Path | None = None,
    json: bool = False,
    near: int = 10,
    test_classes: str | None = None,
    seed: int = 0,
) -> int:
    """Check a dataset: bad images, duplicates, leaks across the split, odd classes. Exit code 1 if anything is serious.

    Args:
        data: folder, CSV file or archive; or products:N for N rendered products.
        kind: layout of the data (see "liftedstruct list datasets"). Default: recognized.
        fix: write a CSV list without the offending images to this file; the images are not touched.
        json: print JSON.
        near: bits of 64 by which the perceptual hashes of near duplicates may differ.
        test_classes: fraction of the classes for the test, such as 0.3, or their comma-separated names.
        seed: of the split.
    """
    from liftedstruct.data import check_dataset, check_list_file, write_fixed_list

    image_set = open_data(data, kind, test_classes, 0.0, seed)
    if fix is not None:
        check_list_file(image_set, fix)
    found = check_dataset(image_set, near=near)
    print(found.to_json(image_set) if json else found)
    if fix is not None:
        left = write_fixed_list(image_set, found, fix)
        say(f"{len(left):,} of {len(image_set):,} images listed in {fix}")
    return 1 if found.serious else 0


def train(data: str | None = None, preset: str | None = None, config: Path | None = None, **settings: Any) -> None:
    """Train an embedding; the same command again resumes a run that was stopped.

    Args:
        data: folder of a prepared dataset.
        preset: named differences from the default recipe, paper or quick; the YAML file and flags win over it.
        config: YAML file of settings; flags win over it.
    """
    from liftedstruct.training import load_config
    from liftedstruct.training import train as train_run

    given = config_values({**({"data": data} if data is not None else {}), **settings})
    run = train_run(load_config(config, preset, **given))
    score = "" if run.recall_at_1 is None else f", Recall@1 {run.recall_at_1:.1%} on validation classes"
    print(f"{run.folder}: the embedder of step {run.best_step:,} of {run.steps:,}{score}")


def embed(
    source: str,
    folder: Path,
    out: Path | None = None,
    part: Literal["test", "train", "validation", "all"] = "test",
    dim: int | None = None,
    weights: Path | None = None,
    crop: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Embed the images of a prepared dataset with a run, an embedder's file or an untrained trunk.

    Args:
        source: run folder, an embedder's file, or the name of a trunk (see "liftedstruct list trunks").
        folder: prepared dataset.
        out: .npz file to write. Default: embeddings.npz in the run folder.
        part: of the split.
        dim: 0 gives the trunk's pooled features, without the head.
        weights: file with the weights of a trunk.
        crop: side of the center crops in pixels. Default: what the embedder was trained for.
        batch_size: images per forward pass.
        device: cpu, cuda or cuda:N. Default: cuda if available.
        seed: of the random weights of a trunk that has no others.
    """
    from liftedstruct.data import PackedImages
    from liftedstruct.embedder import open_embedder
    from liftedstruct.embeddings import EMBEDDINGS, OF
    from liftedstruct.embeddings import embed as embed_images
    from liftedstruct.training import find_device
    from liftedstruct.trunks import TRUNKS

    if out is None:
        if source in TRUNKS or not Path(source).is_dir() or dim == 0:
            raise ValueError("--out must be given, but for the embeddings of a run folder. Pass --out FILE.npz.")
        out = Path(source) / EMBEDDINGS
    check_out("--out", out)
    embedder, packed = open_embedder(source, weights, pooled=dim == 0, seed=seed), PackedImages(folder)
    if dim not in (None, 0, embedder.dim):
        raise ValueError(f"--dim must be 0 or that of the embedder, {embedder.dim}, got {dim}. Train one of that size.")
    rows = None if part == "all" else getattr(packed, part)
    result = embed_images(embedder.to(find_device(device)), packed, rows, batch_size, crop, progress=True)
    result.save(out)
    print(f"{len(result):,} embeddings of {embedder.width:,} dimensions in {out}: {result.protocol[OF]}")
    if result.seen and result.seen.any:
        say(f"warning: of these, training has seen {result.seen}")


def evaluate(
    file: Path,
    labels: Path | None = None,
    ks: str = "1,2,4,8",
    clustering: Literal["affinity", "kmeans", "both", "none"] = "affinity",
    n_clusters: int | None = None,
    singles: Literal["leave-out", "miss"] = "leave-out",
    compare: Path | None = None,
    out: Path | None = None,
    seed: int = 0,
) -> None:
    """Recall@K, NMI and F1 of saved embeddings, with 95 % intervals.

    Args:
        file: run folder, .npz with arrays embeddings (n, d) and labels (n,), or .npy with the embeddings alone.
        labels: a .npy file, or a text file with a label on each line. Default: the labels in the .npz file.
        ks: comma-separated values of K.
        clustering: what NMI and F1 are measured on.
        n_clusters: number of clusters. Default: the number of classes.
        singles: whether images alone in their class are left out of Recall@K or count as a miss.
        compare: another such run or file of the same images, or its saved scores, to test this one against.
        out: JSON file for the scores. Default: scores.json in the run folder, or FILE.json beside FILE.npz.
        seed: of the intervals and of k-means.
    """
    from liftedstruct import evaluation

    if out is None:
        out = evaluation.scores_file(file)
        if out.is_file() and not file.is_dir():
            evaluation.Scores.load(out)  # a file of something else is not replaced
    check_out("--out", out)
    if compare is not None and not compare.exists():
        raise ValueError(f"--compare must be a file or a run, there is none at {compare}. Check the path.")
    if compare is not None:
        evaluation.check_comparable(file, compare, labels)
    settings: dict[str, Any] = {"ks": whole_numbers("--ks", ks), "clustering": clustering, "n_clusters": n_clusters}
    settings |= {"labels": labels, "singles": singles, "seed": seed, "progress": True}
    scores = evaluation.evaluate_file(file, **settings)
    print(scores)
    scores.save(out)
    if compare is not None:
        titles = (file.stem, compare.stem) if file.stem != compare.stem else (str(file), str(compare))
        saved = compare.suffix == ".json"
        other = evaluation.Scores.load(compare) if saved else evaluation.evaluate_file(compare, **settings)
        print(f"\n{evaluation.compare(scores, other, names=titles, seed=seed)}")
        for name, each in zip(titles, (scores, other), strict=True):
            if each.describe():
                print(f"{name}: {each.describe()}")


def report(runs: list[Path], out: Path, max_mb: float = 80.0, title: str | None = None) -> None:
    """Write an HTML report of evaluated runs: a single file, with nothing to install and nothing to load.

    Args:
        runs: run folders that hold embeddings.npz, or .npz files of embeddings; the first trained one is compared with all.
        out: .html file to write.
        max_mb: size of the file, at most, in megabytes; more room makes the images of the map larger.
        title: of the report. Default: the name of the data.
    """
    from liftedstruct.report import write_report

    file = write_report(runs, out, title=title, max_mb=max_mb)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def figure(
    kind: str,
    out: Path,
    runs: list[Path] = [],  # noqa: B006, read only
    count: int | None = None,
    seed: int | None = None,
    side: int | None = None,
    dpi: int = 200,
) -> None:
    """Draw one figure, as PNG, SVG or PDF.

    Args:
        kind: of the figure (see "liftedstruct list figures").
        runs: run folders that hold embeddings.npz, or .npz files of embeddings; some figures need none.
        out: file to write; its suffix is the format.
        count: number of queries or classes to show, where there is a choice.
        seed: of what is drawn at random.
        side: of a map, in pixels.
        dpi: dots per inch, of PNG files.
    """
    from liftedstruct.figures import FIGURES, FORMATS, save_figure
    from liftedstruct.report import read_runs

    draw = pick(FIGURES, kind, "the kind of a figure")
    check_out("--out", out)
    suffix = pick(FORMATS, out.suffix.lower(), "the suffix of a figure's file")
    if suffix == "svg" and kind == "map":
        raise ValueError(f"a map is made of pixels and must be a .png or .pdf file, got {out}. Choose one of the two.")
    if check_count("--dpi", dpi) > MAX_DPI:
        raise ValueError(f"--dpi must be at most {MAX_DPI:,}, got {dpi:,}. Save as .svg or .pdf to print larger.")
    parameters = inspect.signature(draw).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    options = {name: value for name, value in (("count", count), ("seed", seed), ("side", side)) if value is not None}
    for name in options:
        if name not in known:
            there = " and ".join(f"--{each}" for each in known) or "none"
            raise ValueError(f"--{name} must be for a figure that has it, {kind} has {there}. Leave it out.")
    takes = next((name for name in ("run", "runs") if name in parameters), None)
    if takes is None and runs:
        raise ValueError(f"runs must be left out for {kind}, which shows none, got {runs[0]}. Name a file with --out.")
    if takes and (not runs or (takes == "run" and len(runs) > 1)):
        many = "one" if takes == "run" else "one or more"
        raise ValueError(f"runs must be {many} for {kind}, got {len(runs)}. Name a run folder, or an .npz file.")
    found = read_runs(runs) if takes else []
    print(save_figure(draw(*([found] if takes == "runs" else found), **options), out, dpi))


def demo(out: Path = Path("liftedstruct-demo"), seed: int = 0, full: bool = False) -> None:
    """Train on rendered products with each loss, evaluate on products never seen, and write a report.

    Args:
        out: folder for all of it, created if absent; a second run resumes.
        seed: of the products, the batches and the crops.
        full: the version of an hour, with embeddings of 64, 128, 256 and 512 dimensions and longer training.
    """
    from liftedstruct.recipes.demonstration import FULL, SHORT
    from liftedstruct.recipes.demonstration import demo as run_demo

    print(run_demo(out, seed=seed, scale=FULL if full else SHORT))


def fit(
    data: str,
    out: Path = Path("fitted"),
    kind: str | None = None,
    test_classes: str | None = None,
    preset: str | None = None,
    dim: int = 64,
    trunk: str | None = None,
    weights: Path | None = None,
    steps: int | None = None,
    size: int | None = None,
    crop: int | None = None,
    resize_mode: ResizeMode = "squash",
    force: bool = False,
    seed: int = 0,
) -> None:
    """Train an embedding of your own images: prepare, check, train, evaluate and report, in one command.

    Args:
        data: folder of class folders, CSV file or archive; or products:N for N rendered products.
        out: folder for all of it, created if absent; a second run resumes.
        kind: layout of the data (see "liftedstruct list datasets"). Default: recognized.
        test_classes: fraction of the classes for the test, such as 0.3, or their comma-separated names. Default: half.
        preset: named differences from the default recipe (see "liftedstruct list presets").
        dim: dimensions of the embedding.
        trunk: network below the head (see "liftedstruct list trunks").
        weights: file with the trunk's weights, or random.
        steps: training steps. Default: those of the recipe, fewer for a small dataset.
        size: side of the prepared images in pixels. Default: 256, more for larger crops.
        crop: side in pixels of the center crop that is embedded. Default: what suits the trunk.
        resize_mode: how a rectangle becomes a square.
        force: continue although the check found serious issues.
        seed: seed of every random choice.
    """
    from liftedstruct.data import DEFAULT_SIZE, META
    from liftedstruct.recipes import fit as fit_images

    if (Path(data) / META).is_file():
        raise ValueError(f"data must be images, {data} is prepared already. Train on it: liftedstruct train {data} --out RUN")
    image_set = open_data(data, kind, test_classes, 0.0, seed, size or DEFAULT_SIZE)
    settings: dict[str, Any] = {"preset": preset, "dim": dim, "trunk": trunk, "weights": weights, "steps": steps}
    settings |= {"size": size, "crop": crop, "resize_mode": resize_mode, "force": force, "seed": seed}
    print(fit_images(image_set, out, **settings))


def reproduce(
    name: Literal["cub", "cars", "online-products"],
    data: Path,
    out: Path | None = None,
    preset: Literal["default", "paper", "quick"] = "paper",
    losses: str = "contrastive,triplet,lifted_struct",
    sizes: str = "64,128,256,512",
    seeds: str = "0",
    only: str | None = None,
    trunk: str | None = None,
    weights: Path | None = None,
    steps: int | None = None,
    crop: int | None = None,
    force: bool = False,
    dry_run: bool = False,
) -> None:
    """Run the paper's experiment: train with every loss and dimension, evaluate, and show published results beside ours.

    Args:
        name: of the dataset.
        data: where it is, as downloaded, or prepared already.
        out: folder for all of it, created if absent; a second run resumes. Default: reproduce-NAME-PRESET.
        preset: settings of every training: the paper's, the default recipe, or the quick one.
        losses: comma-separated names.
        sizes: comma-separated dimensions of the embedding.
        seeds: comma-separated seeds, a training for each.
        only: train only these runs of the plan, such as triplet-64, comma-separated; the report shows all that are done.
        trunk: network below the head (see "liftedstruct list trunks"). Default: that of the preset.
        weights: file with the trunk's weights, which the preset paper needs.
        steps: training steps of every run. Default: those of the preset.
        crop: side in pixels of the center crop that is embedded. Default: that of the preset.
        force: continue if images are missing; the scores cannot be compared with those of others then.
        dry_run: print the plan with an estimate of its time, and do nothing.
    """
    from liftedstruct.recipes import reproduce as run_experiment

    settings: dict[str, Any] = {"trunk": trunk, "weights": weights, "steps": steps, "crop": crop, "force": force}
    text = run_experiment(
        name,
        data,
        out,
        preset=None if preset == "default" else preset,
        losses=names("--losses", losses),
        sizes=whole_numbers("--sizes", sizes),
        seeds=whole_numbers("--seeds", seeds),
        only=None if only is None else names("--only", only),
        dry_run=dry_run,
        **settings,
    )
    print(text)
