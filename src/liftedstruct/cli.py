"""The command line: a table of commands, each of which is one call that a notebook could make too."""

import contextlib
import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args, get_origin

from jsonargparse import ArgumentParser

from liftedstruct import __version__
from liftedstruct.arguments import open_data, whole_numbers
from liftedstruct.data import READERS, PackedImages, prepare
from liftedstruct.data.checkup import check_list_file, examine, write_fixed_list
from liftedstruct.data.decoding import FITS
from liftedstruct.losses import LOSSES
from liftedstruct.recipes.command import demo_command, fit_command, reproduce_command
from liftedstruct.report.command import figure_command, report_command
from liftedstruct.runtime.checks import check_out
from liftedstruct.runtime.progress import say
from liftedstruct.samplers import BATCHES
from liftedstruct.training.command import train_command
from liftedstruct.training.presets import PRESETS
from liftedstruct.trunks import TRUNKS

__all__ = ["COMMANDS", "main"]


def list_registry(what: Literal["batches", "data", "figures", "fits", "losses", "presets", "trunks"]) -> None:
    """List what there is to choose from.

    Args:
        what: the kind of thing to list.
    """
    registries: dict[str, Mapping[str, Any]] = {
        "batches": BATCHES,
        "data": READERS,
        "fits": FITS,
        "losses": LOSSES,
        "trunks": TRUNKS,
    }
    if what == "figures":  # which needs matplotlib
        from liftedstruct.figures import FIGURES

        registries["figures"] = FIGURES
    if what == "presets":
        for name, settings in PRESETS.items():
            print(f"{name:<18} {', '.join(f'{key} {settings[key]}' for key in ('trunk', 'loss', 'dim', 'optimizer', 'steps'))}")
        return
    for name, entry in registries[what].items():
        print(f"{name:<18} {(inspect.getdoc(entry) or '').partition(chr(10))[0]}".rstrip())  # python -OO keeps no docstrings


def products(
    out: Path,
    classes: int = 1000,
    images: int | None = None,
    size: int = 128,
    seed: int = 0,
    format: Literal["png", "jpg", "webp"] = "png",
) -> None:
    """Render the embedded data set, product pictures of our own making, into a folder of class folders.

    Args:
        out: folder to write to, made if absent; a second run goes on where the first stopped.
        classes: number of products, each a class of its own.
        images: pictures of each; without it about 5.3, as in Stanford Online Products.
        size: side of a picture in pixels.
        seed: another seed makes other products.
        format: of the files.
    """
    from liftedstruct.data.products import write_products

    image_set = write_products(out, classes=classes, images=images, size=size, seed=seed, format=format)
    print(f"{len(image_set):,} pictures of {classes:,} products in {out}")


def prepare_data(
    data: str,
    out: Path,
    kind: str | None = None,
    size: int = 256,
    fit: Literal["resize", "letterbox", "trim-letterbox"] = "resize",
    test_classes: str | None = None,
    validation: float = 0.0,
    bad_images: Literal["list", "tolerate", "stop"] = "list",
    workers: int | None = None,
    force: bool = False,
    seed: int = 0,
) -> None:
    """Decode every image of a data set once, into one memory-mapped file.

    Args:
        data: folder, CSV file or archive; or products:N for N rendered products.
        out: folder to write to, made if absent.
        kind: layout of the data, if it is not to be recognised (see "liftedstruct list data").
        size: side of the squares in pixels.
        fit: how a rectangle becomes a square.
        test_classes: fraction of the classes for the test, such as 0.3, or their names with commas between.
        validation: fraction of the training classes to hold out.
        bad_images: list leaves unreadable ones out and says so, tolerate also keeps truncated ones, stop stops.
        workers: threads; by default as many as there are cores.
        force: replace a set of other sources or settings.
        seed: of the split.
    """
    image_set = open_data(data, kind, test_classes, validation, seed, size)
    packed = prepare(image_set, out, size=size, fit=fit, bad_images=bad_images, workers=workers, force=force)
    parts = f"{len(packed.train):,} to train on, {len(packed.test):,} for the test"
    if len(packed.validation):
        parts += f", {len(packed.validation):,} for validation"
    print(f"{len(packed):,} images of {len(packed.class_names):,} classes in {out}: {parts}")


def doctor(
    data: str,
    kind: str | None = None,
    fix: Path | None = None,
    json: bool = False,
    near: int = 10,
    test_classes: str | None = None,
    seed: int = 0,
) -> int:
    """Check a data set: bad images, duplicates, leaks across the split, odd classes. Exit code 1 if anything is serious.

    Args:
        data: folder, CSV file or archive; or products:N for N rendered products.
        kind: layout of the data, if it is not to be recognised (see "liftedstruct list data").
        fix: write a CSV list without the offenders to this file; the images are not touched.
        json: print for machines.
        near: bits of 64 by which the perceptual hashes of near duplicates may differ.
        test_classes: fraction of the classes for the test, such as 0.3, or their names with commas between.
        seed: of the split.
    """
    image_set = open_data(data, kind, test_classes, 0.0, seed)
    if fix is not None:
        check_list_file(image_set, fix)
    check_up = examine(image_set, near=near)
    print(check_up.to_json(image_set) if json else check_up)
    if fix is not None:
        left = write_fixed_list(image_set, check_up, fix)
        say(f"{len(left):,} of {len(image_set):,} images listed in {fix}")
    return 1 if check_up.serious else 0


def embed_images(
    source: str,
    folder: Path,
    out: Path | None = None,
    part: Literal["test", "train", "validation", "all"] = "test",
    dim: int | None = None,
    weights: Path | None = None,
    crop: int | None = None,
    batch_size: int = 64,
    seed: int = 0,
) -> None:
    """Embed the images of a prepared data set with a run, an embedder's file or an untrained trunk.

    Args:
        source: folder of a run, an embedder's file, or the name of a trunk (see "liftedstruct list trunks").
        folder: of the prepared data set.
        out: .npz file to write; by default embeddings.npz in the folder of a run.
        part: of the split.
        dim: 0 gives the trunk's pooled features, without the last layer.
        weights: file with the weights of a trunk.
        crop: side of the centre crops in pixels; by default what the embedder was trained with.
        batch_size: images at a time.
        seed: of the random weights of a trunk that has no others.
    """
    from liftedstruct.embedder import open_embedder
    from liftedstruct.embeddings import EMBEDDINGS, OF, embed

    if out is None:
        if source in TRUNKS or not Path(source).is_dir() or dim == 0:
            raise ValueError("--out must be given, but for the embeddings of a run's folder. Pass --out FILE.npz.")
        out = Path(source) / EMBEDDINGS
    embedder, packed = open_embedder(source, weights, pooled=dim == 0, seed=seed), PackedImages(folder)
    if dim not in (None, 0, embedder.dim):
        raise ValueError(f"--dim must be 0 or that of the embedder, {embedder.dim}, got {dim}. Train one of that size.")
    rows = None if part == "all" else getattr(packed, part)
    check_out("--out", out)
    result = embed(embedder, packed, rows, batch_size, crop, progress=True)
    result.save(out)
    print(f"{len(result):,} embeddings of {embedder.width:,} dimensions in {out}: {result.protocol[OF]}")
    if result.seen and result.seen.any:
        say(f"warning: of these, training has seen {result.seen}")


def evaluate_file(
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
        file: folder of a run, .npz with arrays embeddings (n, d) and labels (n,), or .npy with the embeddings alone.
        labels: a .npy file, or a text file with a label on each line; the labels in the .npz file by default.
        ks: values of K with commas between.
        clustering: what NMI and F1 are measured on.
        n_clusters: by default as many as there are classes.
        singles: whether images alone in their class are left out of Recall@K or count as a miss.
        compare: another such run or file of the same images, or its scores saved with --out, to test this one against.
        out: JSON file for the scores; default: scores.json in the folder of a run, or FILE.json beside FILE.npz.
        seed: of the intervals and of k-means.
    """
    from liftedstruct import evaluation
    from liftedstruct.evaluation import check_comparable, scores_file

    if out is None:
        out = scores_file(file)
        if out.is_file() and not file.is_dir():
            evaluation.Scores.load(out)  # a file of something else is not replaced
    check_out("--out", out)
    if compare is not None and not compare.exists():
        raise ValueError(f"--compare must be a file or a run, there is none at {compare}. Check the path.")
    if compare is not None:
        check_comparable(file, compare)
    read = partial(
        evaluation.evaluate_file,
        labels=labels,
        ks=whole_numbers("--ks", ks),
        clustering=clustering,
        n_clusters=n_clusters,
        singles=singles,
        seed=seed,
        progress=True,
    )
    scores = read(file)
    print(scores)
    scores.save(out)
    if compare is not None:
        names = (file.stem, compare.stem) if file.stem != compare.stem else (str(file), str(compare))
        other = evaluation.Scores.load(compare) if compare.suffix == ".json" else read(compare)
        print(f"\n{evaluation.compare(scores, other, names=names, seed=seed)}")
        for name, each in zip(names, (scores, other), strict=True):
            if each.describe():
                print(f"{name}: {each.describe()}")


@dataclass(frozen=True)
class Command:
    """A row of the table: what is called, how it is used, which arguments have no flag, and the exit code of a failure."""

    function: Callable[..., Any]
    example: str
    positional: tuple[str, ...] = ()
    failed: int = 1


COMMANDS: dict[str, Command] = {
    "demo": Command(demo_command, "liftedstruct demo"),
    "doctor": Command(doctor, "liftedstruct doctor photos/ --fix photos-fixed.csv", ("data",), failed=2),  # 1: it is ill
    "embed": Command(embed_images, "liftedstruct embed run/ prepared/ --out test.npz --part test", ("source", "folder")),
    "evaluate": Command(evaluate_file, "liftedstruct evaluate embeddings.npz --ks 1,2,4,8 --clustering both", ("file",)),
    "figure": Command(figure_command, "liftedstruct figure failures run/ --out failures.pdf --count 6", ("kind", "runs")),
    "fit": Command(fit_command, "liftedstruct fit photos/ --out fitted/", ("data",)),
    "list": Command(list_registry, "liftedstruct list losses", ("what",)),
    "prepare": Command(prepare_data, "liftedstruct prepare photos/ --out prepared/ --fit letterbox", ("data",)),
    "products": Command(products, "liftedstruct products --out photos/ --classes 20 --images 4"),
    "report": Command(report_command, "liftedstruct report run/ pool5.npz --out report.html", ("runs",)),
    "reproduce": Command(
        reproduce_command, "liftedstruct reproduce cub --data CUB_200_2011.tgz --preset quick --sizes 64,512", ("name",)
    ),
    "train": Command(train_command, "liftedstruct train prepared/ --out run/ --preset quick", ("data",)),
}


class _Parser(ArgumentParser):
    """Says what was wrong in one line, and leaves with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = " ".join(str(message).split())
        literal = r'Parser key "(\w+)": Expected a typing\.Literal\[(.*)\]\. Got value: (.*)'
        text = re.sub(literal, r"\1 must be one of \2, got '\3'.", text)
        text = re.sub(r'Parser key "(\w+)": (.*Expected a <class .*) (?:Given|Got) value: (.*)', _wrong_kind, text)
        command = self.prog.replace(" [options]", "")
        absent = re.search(r"arguments are required: (\w+)\.(\w+)", text)
        if absent:
            flag = absent[2] if absent[2] in COMMANDS[absent[1]].positional else f"--{absent[2].replace('_', '-')}"
            command, text = f"{command} {absent[1]}", f"{flag} is required."
        say(f"{command}: {text} See '{command} --help'.")
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, 2 wrong usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show is no reason to fail
    try:
        code = _run(argv)
    finally:  # also after --help, wrong usage and --debug
        lost = _drop_unwritten()
    return code or lost


def _drop_unwritten() -> int:
    """1 if stdout cannot be written. What is left of it is dropped, or the interpreter would complain as it ends."""
    failed = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            failed |= stream is sys.stdout
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failed


def _run(argv: Sequence[str] | None) -> int:
    config = _parser().parse_args(None if argv is None else list(argv))
    command = COMMANDS[config.subcommand]
    try:
        result = command.function(**config[config.subcommand].as_dict())
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk is said here
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    except BrokenPipeError:  # of "| head"
        return command.failed
    except Exception as error:
        if config.debug:
            raise
        known = isinstance(error, ValueError | OSError)
        kind = "" if known else f"{type(error).__name__}: "
        where = "" if known else f" (to see where: liftedstruct --debug {config.subcommand} ...)"
        text = kind + " ".join(str(error).split()) + where
        say(f"liftedstruct {config.subcommand}: {text}")
        return command.failed
    return result if isinstance(result, int) else 0


def _parser() -> ArgumentParser:
    parser = _Parser(prog="liftedstruct", description="Deep metric learning, done right.", version=__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subcommands = parser.add_subcommands()
    for name, command in COMMANDS.items():
        summary = (command.function.__doc__ or "").split("\n", 1)[0]
        sub = _Parser(description=summary, epilog=f"example: {command.example}")
        for argument, parameter in inspect.signature(command.function).parameters.items():
            text, needed = _described(command.function, argument), parameter.default is parameter.empty
            flag, kind = f"--{argument.replace('_', '-')}", _without_none(parameter.annotation)
            if argument in command.positional and get_origin(kind) is list:
                sub.add_argument(argument, type=get_args(kind)[0], nargs="+" if needed else "*", help=text)
            elif argument in command.positional and needed:
                sub.add_argument(argument, type=kind, help=text)
            elif argument in command.positional:
                sub.add_argument(argument, type=kind, default=parameter.default, nargs="?", help=text)
            elif parameter.annotation is bool:
                sub.add_argument(flag, action="store_true", help=text)
            elif kind is bool:  # the flag alone means true
                sub.add_argument(flag, type=bool, default=parameter.default, nargs="?", const=True, help=text)
            elif needed:
                sub.add_argument(flag, type=kind, required=True, help=text)
            else:
                sub.add_argument(flag, type=kind, default=parameter.default, help=text)
        subcommands.add_subcommand(name, sub, help=summary)
    return parser


def _without_none(annotation: Any) -> Any:
    """A type without None, which stands for a flag that is not given: jsonargparse would take the text "null" for it."""
    kinds = get_args(annotation)
    return reduce(or_, (kind for kind in kinds if kind is not type(None))) if type(None) in kinds else annotation


def _wrong_kind(found: re.Match[str]) -> str:
    """What jsonargparse says of a value that is of none of the kinds that a flag takes, in our words."""
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}
    kinds = [words[kind] for kind in re.findall(r"Expected a <class '(\w+)'>", found[2]) if kind in words]
    return f"--{found[1].replace('_', '-')} must be {' or '.join(kinds)}, got '{found[3]}'."


def _described(function: Callable[..., Any], argument: str) -> str:
    """What the docstring says of an argument."""
    found = re.search(rf"^\s*{argument}: (.*)$", function.__doc__ or "", flags=re.MULTILINE)
    return found[1] if found else ""
