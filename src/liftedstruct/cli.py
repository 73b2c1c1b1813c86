"""The command line: a table of commands, each of which is one call that a notebook could make too."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from jsonargparse import ArgumentParser

from liftedstruct import __version__
from liftedstruct.batches import BATCHES
from liftedstruct.decoding import FITS
from liftedstruct.demo import demo
from liftedstruct.doctor import examine, write_fixed_list
from liftedstruct.images import READERS, ImageSet, read_images
from liftedstruct.losses import LOSSES
from liftedstruct.packed import prepare

__all__ = ["COMMANDS", "main"]

Kind = Literal["folder", "csv", "cub", "cars", "online-products"]


def list_registry(what: Literal["batches", "data", "fits", "losses"]) -> None:
    """List what there is to choose from.

    Args:
        what: the kind of thing to list.
    """
    registries: dict[str, Mapping[str, Any]] = {"batches": BATCHES, "data": READERS, "fits": FITS, "losses": LOSSES}
    registry = registries[what]
    for name, entry in registry.items():
        print(f"{name:<18} {(inspect.getdoc(entry) or '').splitlines()[0]}")


def products(
    out: Path, classes: int = 1000, images: int | None = None, size: int = 128, seed: int = 0, format: str = "png"
) -> None:
    """Render the embedded data set, product pictures of our own making, into a folder of class folders.

    Args:
        out: folder to write to, made if absent; a second run goes on where the first stopped.
        classes: number of products, each a class of its own.
        images: pictures of each; without it about 5.3, as in Stanford Online Products.
        size: side of a picture in pixels.
        seed: another seed makes other products.
        format: png, jpg or webp.
    """
    from liftedstruct.products import write_products

    image_set = write_products(out, classes=classes, images=images, size=size, seed=seed, format=format)
    print(f"{len(image_set):,} pictures of {classes:,} products in {out}")


def prepare_data(
    data: str,
    out: Path,
    kind: Kind | None = None,
    size: int = 256,
    fit: Literal["resize", "letterbox", "trim-letterbox"] = "resize",
    test_classes: float | list[str] | None = None,
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
        kind: the layout of the data, if it is not to be recognised.
        size: side of the squares in pixels.
        fit: how a rectangle becomes a square.
        test_classes: fraction of the classes for the test, or a list of their names; the benchmarks have their own split.
        validation: fraction of the training classes to hold out.
        bad_images: list leaves unreadable ones out and says so, tolerate also keeps truncated ones, stop stops.
        workers: threads; by default as many as there are cores.
        force: replace a set of other sources or settings.
        seed: of the split.
    """
    image_set = open_data(data, kind, test_classes, validation, seed)
    packed = prepare(image_set, out, size=size, fit=fit, bad_images=bad_images, workers=workers, force=force)
    parts = f"{len(packed.train):,} to train on, {len(packed.test):,} for the test"
    print(
        f"{len(packed):,} images of {len(packed.class_names):,} classes in {out}: {parts}" + _validation(len(packed.validation))
    )


def doctor(
    data: str,
    kind: Kind | None = None,
    fix: Path | None = None,
    json: bool = False,
    near: int = 10,
    test_classes: float | list[str] | None = None,
    seed: int = 0,
) -> int:
    """Check a data set: unreadable images, duplicates, leaks across the split, odd classes. Exit code 1 if it is serious.

    Args:
        data: folder, CSV file or archive; or products:N for N rendered products.
        kind: the layout of the data, if it is not to be recognised.
        fix: write a CSV list without the offenders to this file; the images are not touched.
        json: print for machines.
        near: bits of 64 by which the perceptual hashes of near duplicates may differ.
        test_classes: fraction of the classes for the test, or a list of their names.
        seed: of the split.
    """
    image_set = open_data(data, kind, test_classes, 0.0, seed)
    check_up = examine(image_set, near=near, progress=not json)
    print(check_up.to_json(image_set.paths) if json else check_up)
    if fix is not None:
        left = write_fixed_list(image_set, check_up, fix)
        print(f"{len(left):,} of {len(image_set):,} images listed in {fix}", file=sys.stderr if json else sys.stdout)
    return 1 if check_up.serious else 0


def open_data(data: str, kind: str | None, test_classes: float | list[str] | None, validation: float, seed: int) -> ImageSet:
    """The data set that a command names."""
    if data == "products" or data.startswith("products:"):
        from liftedstruct.products import product_images

        number = data.partition(":")[2] or "1000"
        if not number.isdecimal():
            raise ValueError(f"products:N must have a number of classes, got {data!r}. Try products:1000.")
        image_set = product_images(int(number), seed=seed)
        return image_set.with_validation(validation, seed) if validation else image_set
    image_set = read_images(data, kind, test_classes=test_classes, validation=validation, seed=seed)
    for warning in image_set.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return image_set


def _validation(n: int) -> str:
    return f", {n:,} for validation" if n else ""


@dataclass(frozen=True)
class Command:
    """A row of the table: what is called, which of its arguments have no flag, and how it is used."""

    function: Callable[..., Any]
    example: str
    positional: tuple[str, ...] = ()


COMMANDS: dict[str, Command] = {
    "demo": Command(demo, "liftedstruct demo --steps 300 --seed 0"),
    "doctor": Command(doctor, "liftedstruct doctor photos/ --fix photos-fixed.csv", ("data",)),
    "list": Command(list_registry, "liftedstruct list losses", ("what",)),
    "prepare": Command(prepare_data, "liftedstruct prepare photos/ --out prepared/ --fit letterbox", ("data",)),
    "products": Command(products, "liftedstruct products --out photos/ --classes 20 --images 4"),
}


class _Parser(ArgumentParser):
    """Says what was wrong in one line, and leaves with exit code 2."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        text = " ".join(str(message).split())
        literal = r'Parser key "(\w+)": Expected a typing\.Literal\[(.*)\]\. Got value: (.*)'
        text = re.sub(literal, r"\1 must be one of \2, got '\3'.", text)
        command = self.prog.replace(" [options]", "")
        print(f"{command}: {text} See '{command} --help'.", file=sys.stderr)
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; 0 done, 1 failed, 2 wrong usage."""
    parser = _Parser(prog="liftedstruct", description="Deep metric learning, done right.", version=__version__)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subcommands = parser.add_subcommands()
    for name, command in COMMANDS.items():
        summary = (command.function.__doc__ or "").split("\n", 1)[0]
        sub = _Parser(description=summary, epilog=f"example: {command.example}")
        parameters = inspect.signature(command.function).parameters
        for argument in command.positional:
            sub.add_argument(argument, type=parameters[argument].annotation, help=_described(command.function, argument))
        sub.add_function_arguments(command.function, skip=set(command.positional))
        subcommands.add_subcommand(name, sub, help=summary)
    config = parser.parse_args(None if argv is None else list(argv))
    function = COMMANDS[config.subcommand].function
    try:
        result = function(**config[config.subcommand].as_dict())
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        if config.debug:
            raise
        known = isinstance(error, ValueError | OSError)
        text = " ".join(str(error).split()) if known else f"{type(error).__name__}: {error} (run with --debug to see where)"
        print(f"liftedstruct {config.subcommand}: {text}", file=sys.stderr)
        return 1
    return result if isinstance(result, int) else 0


def _described(function: Callable[..., Any], argument: str) -> str:
    """What the docstring says of an argument."""
    found = re.search(rf"^\s*{argument}: (.*)$", function.__doc__ or "", flags=re.MULTILINE)
    return found[1] if found else ""
