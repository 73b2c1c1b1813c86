"""Declared settings: type, range, default and help text of a setting in one place.

A setting is a field of a dataclass or a keyword parameter of a registry entry (a registry maps names to functions or
classes: losses, samplers, trunks, ...). The annotation gives the type and range, and the line `name: text` under `Args:` in
the docstring gives the help text. Command-line flags, YAML files, `liftedstruct list` and saved configurations are all
derived from this declaration.
"""

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from liftedstruct.runtime.checks import as_plain, pick

__all__ = [
    "Choice",
    "Count",
    "Fraction",
    "NonNegative",
    "Positive",
    "Range",
    "Registry",
    "Setting",
    "Whole",
    "check_value",
    "choose",
    "describe",
    "options_of",
    "unknown",
]

Registry = Mapping[str, Callable[..., Any]]
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Range:
    """Range of a number. Both ends are included unless `above` or `below` is set."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # exclude the low end
    below: bool = False  # exclude the high end

    def __contains__(self, value: float) -> bool:
        low = value > self.low if self.above else value >= self.low
        return math.isfinite(value) and low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        low = f"{'> ' if self.above else '>= '}{self.low:g}"
        return low if self.high == math.inf else f"{low} and {'< ' if self.below else '<= '}{self.high:g}"


Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]
Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1, below=True)]


@dataclass(frozen=True)
class Setting:
    """Declared setting."""

    name: str
    annotation: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Choice:
    """Registry entry with all its options. As plain data, it is a mapping `{"name": ..., option: value}`."""

    name: str
    options: Mapping[str, Any]
    entry: Callable[..., Any] = field(repr=False, compare=False)

    def make(self, *args: Any, **more: Any) -> Any:
        """Call the entry with its options."""
        return self.entry(*args, **self.options, **more)

    def plain(self) -> dict[str, Any]:
        """Return the choice as plain data, as in a YAML file."""
        return {"name": self.name, **self.options}

    def __str__(self) -> str:
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"{self.name} ({options})" if options else self.name


def choose(what: str, registry: Registry, value: Any, base: Choice | None = None) -> Choice:
    """Look up the registry entry that a value names, and check its options.

    Args:
        what: name of the setting, for error messages.
        registry: entries by name.
        value: a name, a mapping with `name` and options, or a `Choice`.
        base: fallback for what the value omits: the name, and the options if the name is the same.

    """
    value = as_plain(value)
    given = value.plain() if isinstance(value, Choice) else {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping):
        raise ValueError(f"{what} must be a name or a mapping with a name and options, got {value!r}. Pass either.")
    name = given.get("name", base.name if base else None)
    entry = pick(registry, name, what)  # type: ignore[arg-type]
    declared = {setting.name: setting for setting in options_of(entry)}
    options = {key: setting.default for key, setting in declared.items()}
    if base is not None and base.name == name:
        options |= base.options
    for key, option in given.items():
        if key != "name":
            if key not in declared:
                raise unknown(f"{what} {name}", key, declared)
            options[key] = check_value(f"{what}.{key}", option, declared[key].annotation, declared[key].help)
    return Choice(str(name), options, entry)


@cache
def options_of(entry: Callable[..., Any]) -> tuple[Setting, ...]:
    """Return the options of a registry entry: its parameters with defaults, except those that a run passes itself."""
    hints = get_type_hints(entry.__init__ if inspect.isclass(entry) else entry, include_extras=True)
    parameters = inspect.signature(entry).parameters
    handed = HANDED.get(next(iter(parameters), ""), set())
    return tuple(
        Setting(name, hints.get(name, _kind_of(parameter.default)), parameter.default, describe(entry, name))
        for name, parameter in parameters.items()
        if parameter.default is not parameter.empty and name not in handed
    )


# Parameters that a run passes itself, by the name of an entry's first parameter: samplers and trunks.
HANDED = {"labels": {"batch_size", "seed"}, "weights": {"weights", "pretrained"}}


def _kind_of(default: Any) -> Any:
    """Infer the type of an option without annotation from its default."""
    kind = type(default)
    return int | float if kind is int else kind if kind in WORDS else Any


def describe(declared: Any, name: str) -> str:
    """Return the docstring's description of a parameter, on one line."""
    found = re.search(rf"^\s*{name}: (.*(?:\n(?!\s*(\w+: |\n|Returns|Raises)).*\S.*)*)", declared.__doc__ or "", re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def check_value(name: str, value: Any, annotation: Any, help: str = "") -> Any:
    """Return the value converted to its declared type, as a built-in Python type. Raise ValueError if it does not fit."""
    value = as_plain(value)
    kinds = list(_kinds(annotation))
    if value is None and NoneType in kinds:
        return None
    remedy = f"{name}: {help}" if help else "Pass a valid value."
    for kind in kinds:
        if kind is Any:
            return value
        limits = None
        if get_origin(kind) is Annotated:
            kind, *limits = get_args(kind)
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
            continue
        converted = _converted(value, kind)
        if converted is not None:
            for limit in limits or ():
                if converted not in limit:
                    raise ValueError(f"{name} must be {WORDS[kind]} {limit}, got {value!r}. {remedy}")
            return converted
    wanted = " or ".join(_word(kind) for kind in kinds if kind is not NoneType)
    raise ValueError(f"{name} must be {wanted}, got {value!r}. {remedy}")


def unknown(where: str, name: object, known: Mapping[str, Any]) -> ValueError:
    """Return the error for an unknown setting."""
    close = difflib.get_close_matches(str(name), known, n=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"Its settings are: {', '.join(known) or 'none'}."
    return ValueError(f"{where} must be given known settings, got {name!r}. {hint}")


def _kinds(annotation: Any) -> Iterator[Any]:
    """Yield the members of a union, or the type itself."""
    parts = get_args(annotation)
    if parts and get_origin(annotation) not in (Annotated, Literal):
        for part in parts:
            yield from _kinds(part)
    else:
        yield annotation


def _converted(value: Any, kind: type) -> Any:
    """Convert a value to a type, or return None if it is of another type."""
    if isinstance(value, bool):
        return value if kind is bool else None
    if kind is float and isinstance(value, int | float | str):  # YAML parses 1e-4 as a string
        try:
            return float(value)
        except (ValueError, OverflowError):
            return None
    if kind is str and isinstance(value, Path):
        return str(value)
    return value if isinstance(value, kind) else None


def _word(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is Literal:
        return " or ".join(map(repr, get_args(kind)))
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))
