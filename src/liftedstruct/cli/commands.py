"""The commands. Training, drawing and rendering code is imported when a command needs it."""

import inspect
from pathlib import Path
from typing import Any, Literal

from liftedstruct.cli.arguments import fractions, names, open_data, whole_numbers
from liftedstruct.cli.flags import config_values
from liftedstruct.runtime.checks import check_count, check_out, pick
from liftedstruct.runtime.progress import say
from liftedstruct.runtime.settings import options_of

__all__ = [
    "check",
    "demo",
    "embed",
    "evaluate",
    "export",
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
MAX_DPI = 1200  # 144 million pixels for a figure of 10 x 10 inches


def list_entries(what: Entries) -> None:
    """List the available entries of a kind, such as losses or trunks, with their options and defaults.

    Args:
        what: kind of entries.
    """
    from liftedstruct.data import READERS, RESIZE_MODES
    from liftedstruct.training import PRESETS, REGISTRIES

    declaring: dict[str, Any] = {f"{name}{'es' if name.endswith('s') else 's'}": each for name, each in REGISTRIES.items()}
    registries: dict[str, Any] = {**declaring, "datasets": READERS, "resize-modes": RESIZE_MODES}
    if what == "figures":  # needs matplotlib
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
    if what == "losses":
        text = "Most losses of pytorch-metric-learning, with their options. Install with: pip install 'liftedstruct[pml]'"
        print(f"{'pml:LOSS':<20} {text}")
    if what == "trunks":
        print(f"{'timm:MODEL':<20} Any timm model. Install with: pip install 'liftedstruct[timm]'")
        text = "Any transformers vision model, by folder or name. Install with: pip install 'liftedstruct[transformers]'"
        print(f"{'transformers:MODEL':<20} {text}")


def products(
    out: Path,
    n_classes: int = 1000,
    images_per_class: int | None = None,
    size: int = 128,
    seed: int = 0,
    format: Literal["png", "jpg", "webp"] = "png",
) -> None:
    """Render the built-in dataset: images of synthetic products, in one folder per class.

    Args:
        out: output folder, created if missing; the same command resumes where it stopped.
        n_classes: number of products, one class each.
        images_per_class: images per class. Default: 2 to 12, 5.3 on average, as in Stanford Online Products.
        size: side of the images in pixels.
        seed: seed of the products.
        format: file format of the images.
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
    decisions: Path | None = None,
) -> None:
    """Prepare a dataset for training: decode and resize every image once, into one memory-mapped file.

    Args:
        data: folder, CSV file or archive of images, or products:N for N rendered products.
        out: output folder, created if missing.
        kind: layout of the dataset (see "liftedstruct list datasets"). Default: detected.
        size: side of the prepared images in pixels.
        resize_mode: how a rectangular image becomes square (see "liftedstruct list resize-modes").
        test_classes: fraction of the classes to use as test classes, such as 0.3, or their comma-separated names. Default: the
            dataset's own split, or half of the classes.
        validation: fraction of the training classes to hold out for validation.
        bad_images: list skips unreadable images and lists them; stop fails at the first one.
        workers: decoding threads. Default: one per core.
        force: replace a prepared dataset that has other sources or settings.
        seed: seed of the split.
        decisions: CSV file of decisions to apply, such as correct labels, as "liftedstruct explore" writes it.
    """
    from liftedstruct import data as datasets

    image_set = open_data(data, kind, test_classes, validation, seed, size, decisions)
    packed = datasets.prepare(
        image_set, out, size=size, resize_mode=resize_mode, bad_images=bad_images, workers=workers, force=force
    )
    parts = f"{len(packed.train):,} for training, {len(packed.test):,} for testing"
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
    decisions: Path | None = None,
) -> int:
    """Check a dataset for bad images, duplicates, leaks across the split and small classes. Exit with 1 on serious issues.

    Args:
        data: folder, CSV file or archive of images, or products:N for N rendered products.
        kind: layout of the dataset (see "liftedstruct list datasets"). Default: detected.
        fix: CSV file to write, a list of the images without the offending ones; the image files are not changed.
        json: print the result as JSON.
        near: largest number of differing bits, of 64, between the perceptual hashes of near duplicates.
        test_classes: fraction of the classes to use as test classes, such as 0.3, or their comma-separated names. Default: the
            dataset's own split, or half of the classes.
        seed: seed of the split.
        decisions: CSV file of decisions to apply, such as correct labels, as "liftedstruct explore" writes it.
    """
    from liftedstruct.data import check_dataset, check_list_file, write_fixed_list

    image_set = open_data(data, kind, test_classes, 0.0, seed, decisions=decisions)
    if fix is not None:
        check_list_file(image_set, fix)
    found = check_dataset(image_set, near=near)
    print(found.to_json(image_set) if json else found)
    if fix is not None:
        left = write_fixed_list(image_set, found, fix)
        say(f"wrote a list of {len(left):,} of {len(image_set):,} images to {fix}")
    return 1 if found.serious else 0


def train(data: str | None = None, preset: str | None = None, config: Path | None = None, **settings: Any) -> None:
    """Train an embedding on a prepared dataset. The same command resumes a stopped run.

    Args:
        data: folder of a prepared dataset.
        preset: name of a preset (see "liftedstruct list presets"); the YAML file and flags override it. Default: the default
            recipe.
        config: YAML file of settings; flags override it.
    """
    from liftedstruct.training import load_config
    from liftedstruct.training import train as train_run

    given = config_values({**({"data": data} if data is not None else {}), **settings})
    run = train_run(load_config(config, preset, **given))
    score = "" if run.recall_at_1 is None else f", Recall@1 {100 * run.recall_at_1:.1f} % on the validation classes"
    print(f"{run.folder}: embedder from step {run.best_step:,} of {run.steps:,}{score}")


def embed(
    source: str,
    images: list[Path],
    out: Path | None = None,
    part: Literal["test", "train", "validation", "all"] = "test",
    dim: int | None = None,
    weights: Path | None = None,
    crop: int | None = None,
    hflip: bool = False,
    batch_size: int = 64,
    device: str | None = None,
    seed: int = 0,
) -> None:
    """Embed the images of a prepared dataset, or image files, with a run, an embedder file or a trunk that was not fine-tuned.

    Args:
        source: run folder, embedder file, or name of a trunk (see "liftedstruct list trunks").
        images: folder of a prepared dataset; or folders of images, CSV files with a column path, and images. The class of an
            image is its folder, or the column label.
        out: .npz file to write. Default: embeddings.npz in the run folder.
        part: part of the split of a prepared dataset to embed.
        dim: use only the first dimensions of the embedder, or 0 for the pooled features of the trunk, without the head.
            Default: all dimensions of the embedder.
        weights: file with the trunk's weights. Default: the pretrained weights that come with the trunk, if any.
        crop: side of the center crop in pixels. Default: the crop of the embedder.
        hflip: average the embeddings of each crop and of its mirror image; takes twice as long.
        batch_size: images per forward pass.
        device: cpu, cuda or cuda:N. Default: cuda if available.
        seed: seed of the weights of a trunk without pretrained weights.
    """
    from liftedstruct.data import META, PackedImages
    from liftedstruct.embedder import open_embedder
    from liftedstruct.embeddings import EMBEDDINGS, OF, embed_files
    from liftedstruct.embeddings import embed as embed_images
    from liftedstruct.training import find_device
    from liftedstruct.trunks import TRUNKS

    files = len(images) > 1 or not (images[0] / META).is_file()
    if files and (hflip or crop is not None or part != "test"):
        raise ValueError(f"--part, --crop and --hflip need a prepared dataset, got {images[0]}. Leave them out, or prepare it.")
    if out is None:
        if files or source in TRUNKS or not Path(source).is_dir() or dim is not None or hflip:
            raise ValueError(
                "--out must be given with image files, --dim or --hflip, or if the source is not a run folder, got none. "
                "Pass --out FILE.npz."
            )
        out = Path(source) / EMBEDDINGS
    check_out("--out", out)
    embedder = open_embedder(source, weights, pooled=dim == 0, seed=seed)
    if dim not in (None, 0, embedder.dim):
        embedder = embedder.truncated(dim)
    embedder = embedder.to(find_device(device))
    if files:
        result, left_out = embed_files(embedder, images, batch_size, progress=True)
        for file, reason in left_out.items():
            say(f"warning: {file} is left out: {reason}")
    else:
        packed = PackedImages(images[0])
        rows = None if part == "all" else getattr(packed, part)
        result = embed_images(embedder, packed, rows, batch_size, crop, progress=True, hflip=hflip)
    result.save(out)
    print(f"{len(result):,} embeddings of {embedder.width:,} dimensions in {out}: {result.protocol[OF]}")
    if result.seen and result.seen.any:
        say(f"warning: seen in training: {result.seen}")


def evaluate(
    file: Path,
    labels: Path | None = None,
    ks: str = "1,2,4,8",
    clustering: Literal["affinity", "kmeans", "both", "none"] = "affinity",
    n_clusters: int | None = None,
    singles: Literal["leave-out", "miss"] = "leave-out",
    queries: Path | None = None,
    open_set: str | None = None,
    compare: Path | None = None,
    out: Path | None = None,
    seed: int = 0,
) -> None:
    """Compute Recall@K, NMI and F1 of saved embeddings, with 95 % confidence intervals.

    Args:
        file: run folder, .npz file with the arrays embeddings (n, d) and labels (n,), or .npy file with the embeddings only.
        labels: .npy file, or text file with one label per line. Default: the labels in the .npz file.
        ks: comma-separated values of K.
        clustering: clustering algorithm for NMI and F1.
        n_clusters: number of clusters. Default: the number of classes.
        singles: whether images that are alone in their class are left out of Recall@K or count as a miss.
        queries: .npz file of queries by the same embedder; the images of FILE are their gallery. There is no clustering then.
        open_set: comma-separated rates of false accepts, such as 0.01. At each, compute the true accept rate of pairs, and how
            many queries are identified if queries of absent classes match at that rate.
        compare: run folder, file of embeddings or saved scores of the same images, to test for significant differences.
        out: JSON file for the scores. Default: scores.json in the run folder, or FILE.json next to FILE.npz.
        seed: seed of the bootstrap and of k-means.
    """
    from liftedstruct import evaluation

    if queries is not None and (compare is not None or out is None):
        raise ValueError("--queries must be given with --out FILE.json and without --compare, got other flags. Change them.")
    if out is None:
        out = evaluation.scores_file(file)
        if out.is_file() and not file.is_dir():
            evaluation.Scores.load(out)  # raises an error if the file does not hold scores, so that it is not replaced
    check_out("--out", out)
    if compare is not None and not compare.exists():
        raise ValueError(f"--compare must be a file or a run folder, got {compare}, which does not exist. Check the path.")
    if compare is not None:
        evaluation.check_comparable(file, compare, labels)
    settings: dict[str, Any] = {"ks": whole_numbers("--ks", ks), "clustering": clustering, "n_clusters": n_clusters}
    settings |= {"labels": labels, "queries": queries, "singles": singles, "seed": seed, "progress": True}
    if open_set is not None:
        settings["open_set"] = fractions("--open-set", open_set)
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
    """Write an HTML report of evaluated runs, as a single self-contained file.

    Args:
        runs: evaluated run folders, or .npz files of embeddings; the best trained run is compared with the others.
        out: .html file to write.
        max_mb: maximum size of the file in megabytes; a larger file has larger thumbnails on the map.
        title: title of the report. Default: the name of the dataset.
    """
    from liftedstruct.report import write_report

    file = write_report(runs, out, title=title, max_mb=max_mb)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def export(run: Path, out: Path, license: str = "other") -> None:
    """Export a trained embedder as ONNX, with a model card and a script that needs neither torch nor this package.

    Args:
        run: run folder or embedder file.
        out: new folder to write.
        license: identifier of the license of the model, such as apache-2.0.
    """
    from liftedstruct.exporting import export as export_run

    folder = export_run(run, out, license)
    size = sum(file.stat().st_size for file in folder.iterdir())
    print(f"{folder}: {size / 1e6:.1f} MB. Try: python {folder / 'embed.py'} photo.jpg")


def figure(
    kind: str,
    out: Path,
    runs: list[Path] = [],  # noqa: B006, read only
    count: int | None = None,
    seed: int | None = None,
    side: int | None = None,
    dpi: int = 200,
) -> None:
    """Draw a figure and save it as PNG, SVG or PDF.

    Args:
        kind: kind of figure (see "liftedstruct list figures").
        runs: evaluated run folders, or .npz files of embeddings; some figures need none.
        out: file to write, ending in .png, .svg or .pdf.
        count: number of queries or classes to show, if the figure has this option.
        seed: seed of random choices, if the figure has this option.
        side: side of the map in pixels, for the figure "map" only.
        dpi: resolution of PNG files in dots per inch.
    """
    from liftedstruct.figures import FIGURES, FORMATS, save_figure
    from liftedstruct.report import read_runs

    draw = pick(FIGURES, kind, "the kind of figure")
    check_out("--out", out)
    suffix = pick(FORMATS, out.suffix.lower(), "the suffix of --out")
    if suffix == "svg" and kind == "map":
        raise ValueError(f"a map must be saved as .png or .pdf, got {out}. Choose one of the two.")
    if check_count("--dpi", dpi) > MAX_DPI:
        raise ValueError(f"--dpi must be at most {MAX_DPI:,}, got {dpi:,}. Save as .svg or .pdf for larger prints.")
    parameters = inspect.signature(draw).parameters
    known = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    options = {name: value for name, value in (("count", count), ("seed", seed), ("side", side)) if value is not None}
    for name in options:
        if name not in known:
            options_text = " and ".join(f"--{each}" for each in known) or "none"
            raise ValueError(f"--{name} must be an option of the figure, but {kind} has {options_text}. Leave it out.")
    takes = next((name for name in ("run", "runs") if name in parameters), None)
    if takes is None and runs:
        raise ValueError(f"runs must be empty for {kind}, which shows no run, got {runs[0]}. Pass the output file with --out.")
    if takes and (not runs or (takes == "run" and len(runs) > 1)):
        many = "one run" if takes == "run" else "one or more runs"
        raise ValueError(f"{kind} must be given {many}, got {len(runs)}. Pass run folders or .npz files.")
    found = read_runs(runs) if takes else []
    print(save_figure(draw(*([found] if takes == "runs" else found), **options), out, dpi))


def demo(out: Path = Path("liftedstruct-demo"), seed: int = 0, full: bool = False) -> None:
    """Run a demo: train on rendered products with each loss, evaluate on test classes, and write an HTML report.

    Args:
        out: output folder, created if missing; the same command resumes a stopped run.
        seed: seed of the products, batches and crops.
        full: train longer, with 64, 128, 256 and 512 dimensions; takes about an hour.
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
    budget: str | None = None,
    size: int | None = None,
    crop: int | None = None,
    resize_mode: ResizeMode = "squash",
    force: bool = False,
    seed: int = 0,
) -> None:
    """Train an embedding on your own images in one command: prepare, check, train, evaluate and report.

    Args:
        data: folder with one folder per class, CSV file or archive of images, or products:N for N rendered products.
        out: output folder, created if missing; the same command resumes a stopped run.
        kind: layout of the dataset (see "liftedstruct list datasets"). Default: detected.
        test_classes: fraction of the classes to use as test classes, such as 0.3, or their comma-separated names. Default: the
            dataset's own split, or half of the classes.
        preset: name of a preset (see "liftedstruct list presets"). Default: the default recipe.
        dim: dimension of the embedding.
        trunk: network below the head (see "liftedstruct list trunks"). Default: the preset's.
        weights: file with the trunk's weights, or "random". Default: the pretrained weights that come with the trunk.
        steps: training steps. Default: the preset's, or chosen on held-out training classes.
        budget: time for training, such as 30m or 2h. Default: no limit.
        size: side of the prepared images in pixels. Default: 256, more for larger crops.
        crop: side of the center crop that is embedded, in pixels. Default: the preset's, or depends on the trunk.
        resize_mode: how a rectangular image becomes square (see "liftedstruct list resize-modes").
        force: continue even if the check finds serious issues.
        seed: seed of every random choice.
    """
    from liftedstruct.data import DEFAULT_SIZE, META
    from liftedstruct.recipes import fit as fit_images

    if (Path(data) / META).is_file():
        raise ValueError(f"data must be images, got the prepared dataset {data}. Run: liftedstruct train {data} --out RUN")
    image_set = open_data(data, kind, test_classes, 0.0, seed, size or DEFAULT_SIZE)
    settings: dict[str, Any] = {"preset": preset, "dim": dim, "trunk": trunk, "weights": weights, "steps": steps}
    settings |= {"budget": budget, "size": size, "crop": crop, "resize_mode": resize_mode, "force": force, "seed": seed}
    print(fit_images(image_set, out, **settings))


def reproduce(
    name: Literal["cub", "cars", "online-products"],
    data: Path,
    out: Path | None = None,
    preset: str = "paper",
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
    """Reproduce the paper's experiment: train with every loss and dimension, evaluate, and compare with published results.

    Args:
        name: name of the dataset.
        data: the dataset, as downloaded or prepared.
        out: output folder, created if missing; the same command resumes a stopped run. Default: reproduce-NAME-PRESET.
        preset: name of a preset (see "liftedstruct list presets"), or default for the default recipe.
        losses: comma-separated losses.
        sizes: comma-separated dimensions of the embedding.
        seeds: comma-separated seeds; every loss and dimension is trained once per seed.
        only: train only these comma-separated runs of the plan, such as triplet-64; the report shows all finished runs.
        trunk: network below the head (see "liftedstruct list trunks"). Default: the preset's.
        weights: file with the trunk's weights, or "random"; required by the preset paper.
        steps: training steps per run. Default: the preset's.
        crop: side of the center crop that is embedded, in pixels. Default: the preset's, or depends on the trunk.
        force: continue even if images are missing or the dataset was prepared with other settings; the scores are then not
            comparable with published scores.
        dry_run: print the plan with an estimate of its time, and train nothing.
    """
    from liftedstruct.recipes import reproduce as run_experiment
    from liftedstruct.training import PRESETS

    pick({"default": {}, **PRESETS}, preset, "--preset")
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
