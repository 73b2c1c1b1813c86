"""Command-line flags, derived from the parameters of a command's function and from the settings of a training run."""

import argparse
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from liftedstruct.runtime.settings import check_value, describe, options_of

__all__ = ["add_config_flags", "add_flags", "config_values"]


def add_flags(parser: argparse.ArgumentParser, function: Callable[..., Any], positional: tuple[str, ...]) -> None:
    """Add a flag or positional argument for each parameter of a command. The help texts come from its docstring."""
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind, required = _without_none(hints[name]), parameter.default is parameter.empty
        shown = None if required or parameter.default is False or parameter.default == [] else parameter.default
        settings: dict[str, Any] = {"help": _help(describe(function, name), shown)}
        if get_origin(kind) is list:
            settings |= {"type": get_args(kind)[0], "nargs": "+" if required else "*"}
        elif get_origin(kind) is Literal:
            settings["choices"] = get_args(kind)
        elif kind is bool:
            settings["action"] = "store_true"
        else:
            settings["type"] = kind
        if name in positional:
            if not required and get_origin(kind) is not list:
                settings["nargs"] = "?"
            parser.add_argument(name, default=None if required else parameter.default, **settings)
        else:
            default = {} if required else {"default": parameter.default}
            if "type" in settings:
                settings["metavar"] = _metavar(kind)
            parser.add_argument(_flag(name), required=required, dest=name, **default, **settings)


def add_config_flags(parser: argparse.ArgumentParser, argv: Sequence[str] = ()) -> None:
    """Add a flag for each setting of `TrainConfig`, and for each option of the registry entries that a setting can choose.

    Entries that a registry only finds by name, such as `pml:NCALoss`, have flags if they are named in `argv`.
    """
    from liftedstruct.training import REGISTRIES, config_settings

    for setting in config_settings():
        name, registry = setting.name, REGISTRIES.get(setting.name)
        if name == "data":  # the positional argument
            continue
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name, "metavar": _metavar(setting.annotation)}
        settings["help"] = _help(setting.help, setting.default)
        if registry is not None:
            parser.add_argument(_flag(name), type=str, **settings | {"metavar": "NAME"})
            entries = dict(registry)
            for word in (word.removeprefix(f"{_flag(name)}=") for word in argv):
                if ":" in word and word in registry:
                    with contextlib.suppress(ValueError, ImportError):  # the command reports it
                        entries[word] = registry[word]
            for option, (annotation, text) in _options(entries).items():
                flag = f"--{name}.{option.replace('_', '-')}"
                settings |= {"dest": f"{name}.{option}", "help": _help(text), "metavar": _metavar(annotation)}
                parser.add_argument(flag, type=_reader(f"{name}.{option}", annotation), **_switch(annotation), **settings)
        else:
            reader = _reader(name, setting.annotation, setting.help)
            parser.add_argument(_flag(name), type=reader, **_switch(setting.annotation), **settings)


def config_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Convert flags to settings: `{"loss": "x", "loss.margin": 2}` becomes `{"loss": {"name": "x", "margin": 2}}`."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        setting, _, option = name.partition(".")
        if option:
            before = values.get(setting, {})
            values[setting] = {**({"name": before} if isinstance(before, str) else before), option: value}
        elif isinstance(values.get(setting), dict):
            values[setting]["name"] = value
        else:
            values[setting] = value
    return values


def _options(registry: Mapping[str, Callable[..., Any]]) -> dict[str, tuple[Any, str]]:
    """Return the type and the help text of every option in a registry. The text names the entries that have the option."""
    kinds: dict[str, Any] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for name, entry in registry.items():
        for option in options_of(entry):
            kinds[option.name] = option.annotation if kinds.get(option.name, option.annotation) == option.annotation else Any
            texts.setdefault(option.name, {}).setdefault(option.help.rstrip("."), []).append(name)
    return {
        option: (kinds[option], "; ".join(f"{', '.join(names)}: {text}" for text, names in of_option.items()))
        for option, of_option in texts.items()
    }


def _reader(name: str, annotation: Any, help: str = "") -> Callable[[str], Any]:
    """Return a function that converts the text of a flag to a checked value."""

    def read(text: str) -> Any:
        import yaml

        try:
            value = text if _is_text(annotation) else yaml.safe_load(text)
            return check_value(name, value, _without_none(annotation), help)
        except (ValueError, yaml.YAMLError) as error:
            raise argparse.ArgumentTypeError(" ".join(str(error).split())) from error

    return read


def _switch(annotation: Any) -> dict[str, Any]:
    """Return the argparse settings of a boolean flag, which means true without a value."""
    return {"nargs": "?", "const": True} if annotation is bool else {}


def _is_text(annotation: Any) -> bool:
    kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in get_args(annotation) or (annotation,)}
    return kinds <= {str, NoneType, Path}


def _without_none(annotation: Any) -> Any:
    """Return a type without None, the value of a flag that is not given."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if NoneType not in get_args(annotation):
        return annotation
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


def _help(text: str, default: Any = None) -> str:
    """Return a docstring's text as the help text of a flag, with the default in parentheses."""
    text, _, described = text.rstrip(".").partition(". Default: ")
    shown = described or default
    if shown is not None and shown != "":
        text = f"{text[:-1]}; default: {shown})" if text.endswith(")") else f"{text} (default: {shown})"
    return text.replace("%", "%%")


def _metavar(annotation: Any) -> str:
    """Return the placeholder for a flag's value: its choices, or a word for its type."""
    annotation = _without_none(annotation)
    if get_origin(annotation) is Literal:
        return f"{{{','.join(get_args(annotation))}}}"
    parts = (annotation,) if get_origin(annotation) is Annotated else get_args(annotation) or (annotation,)
    kinds = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in parts]
    words = {Path: "PATH", int: "N", float: "X", bool: "true|false"}
    return next((words[kind] for kind in kinds if kind in words), "VALUE")


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
