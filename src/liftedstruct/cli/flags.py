"""Flags from declarations: the parameters of a command's function, and the settings of a training run."""

import argparse
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from liftedstruct.runtime.settings import check_value, describe, options_of

__all__ = ["add_config_flags", "add_flags", "config_values"]


def add_flags(parser: argparse.ArgumentParser, function: Callable[..., Any], positional: tuple[str, ...]) -> None:
    """A flag, or a positional argument, for each parameter of a command, with the help of its docstring."""
    hints = get_type_hints(function)
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            continue
        kind, required = _without_none(hints[name]), parameter.default is parameter.empty
        shown = "" if required or parameter.default in (None, False, []) else f" (default: {parameter.default})"
        settings: dict[str, Any] = {"help": (describe(function, name) + shown).replace("%", "%%")}
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
            parser.add_argument(_flag(name), required=required, dest=name, **default, **settings)


def add_config_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each setting of :class:`TrainConfig`, and for each option of each entry that a setting can choose."""
    from liftedstruct.training import REGISTRIES, config_settings

    for setting in config_settings():
        name, registry = setting.name, REGISTRIES.get(setting.name)
        if name == "data":  # the positional argument
            continue
        default = "" if setting.default is None else f" (default: {setting.default})"
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "dest": name, "metavar": "VALUE"}
        settings["help"] = (setting.help + default).replace("%", "%%")
        if registry is not None:
            parser.add_argument(_flag(name), type=str, **settings | {"metavar": "NAME"})
            for option, (annotation, text) in _options(registry).items():
                flag = f"--{name}.{option.replace('_', '-')}"
                settings |= {"dest": f"{name}.{option}", "help": text.replace("%", "%%")}
                parser.add_argument(flag, type=_reader(f"{name}.{option}", annotation), **_switch(annotation), **settings)
        else:
            reader = _reader(name, setting.annotation, setting.help)
            parser.add_argument(_flag(name), type=reader, **_switch(setting.annotation), **settings)


def config_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Settings from flags: ``{"loss": "x", "loss.margin": 2}`` becomes ``{"loss": {"name": "x", "margin": 2}}``."""
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
    """Every option of a registry's entries: its type, and its help with the names of the entries that have it."""
    kinds: dict[str, Any] = {}
    texts: dict[str, dict[str, list[str]]] = {}
    for name, entry in registry.items():
        for option in options_of(entry):
            kinds[option.name] = option.annotation if kinds.get(option.name, option.annotation) == option.annotation else Any
            texts.setdefault(option.name, {}).setdefault(option.help.rstrip("."), []).append(name)
    return {
        option: (kinds[option], "; ".join(f"{text} ({', '.join(names)})" for text, names in of_option.items()))
        for option, of_option in texts.items()
    }


def _reader(name: str, annotation: Any, help: str = "") -> Callable[[str], Any]:
    """From the text of a flag to a checked value."""

    def read(text: str) -> Any:
        import yaml

        try:
            value = text if _is_text(annotation) else yaml.safe_load(text)
            return check_value(name, value, _without_none(annotation), help)
        except (ValueError, yaml.YAMLError) as error:
            raise argparse.ArgumentTypeError(" ".join(str(error).split())) from error

    return read


def _switch(annotation: Any) -> dict[str, Any]:
    """The flag of a boolean alone means true."""
    return {"nargs": "?", "const": True} if annotation is bool else {}


def _is_text(annotation: Any) -> bool:
    kinds = {get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in get_args(annotation) or (annotation,)}
    return kinds <= {str, NoneType, Path}


def _without_none(annotation: Any) -> Any:
    """A type without None, which stands for a flag that is not given."""
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    if NoneType not in get_args(annotation):
        return annotation
    union = kinds[0]
    for kind in kinds[1:]:
        union = union | kind
    return union


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
