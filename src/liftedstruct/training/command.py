"""The command ``liftedstruct train``: its flags are the settings of :class:`TrainConfig`, as its docstring describes them."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from liftedstruct.training.config import TrainConfig, describe, load_config
from liftedstruct.training.runs import resume as go_on
from liftedstruct.training.runs import train

__all__ = ["train_command"]

OWN = {  # flags that are no settings
    "preset": (str, "a named set of settings, paper, quick or best; flags and the YAML file win over it."),
    "config": (Path, "YAML file of settings; flags win over it."),
    "resume": (Path, "folder of a run to go on with, instead of beginning one."),
}


def train_command(
    data: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    resume: Path | None = None,
    **settings: Any,
) -> None:
    """Train an embedding, or go on with a run that was stopped."""
    given = {name: value for name, value in settings.items() if value is not None}
    if resume is not None:
        others = [name for name, value in {"preset": preset, "config": config, **given}.items() if value is not None]
        if others:
            raise ValueError(f"a run must go on with the settings that it began with, got {others[0]} too. Leave it out.")
        run = go_on(resume, data=data)
    else:
        run = train(load_config(config, preset, **({"data": data} if data is not None else {}), **given))
    score = "" if run.recall_at_1 is None else f", Recall@1 {run.recall_at_1:.1%} on held-out training classes"
    print(f"{run.folder}: the embedder of step {run.best_step:,} of {run.steps:,}{score}")


def _signature() -> inspect.Signature:
    """One flag per setting, all of them optional: what is not given is left to the preset and the file."""
    hints = get_type_hints(TrainConfig)
    kinds = {"data": str, **{name: kind for name, (kind, _) in OWN.items()}}
    kinds |= {field.name: hints[field.name] for field in fields(TrainConfig)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Signature(
        [inspect.Parameter(name, keyword, default=None, annotation=kind | None) for name, kind in kinds.items()]
    )


def _docstring() -> str:
    texts = {"data": describe("data"), **{name: text for name, (_, text) in OWN.items()}}
    texts |= {field.name: describe(field.name) for field in fields(TrainConfig)}
    lines = [f"    {name}: {text}" for name, text in texts.items()]
    return "\n".join((train_command.__doc__ or "", "", "Args:", *lines))


train_command.__doc__ = _docstring()
train_command.__signature__ = _signature()  # type: ignore[attr-defined]
