"""Losses of pytorch-metric-learning by class name, such as `pml:ProxyAnchorLoss`. The package is imported on first use.

Each loss becomes a subclass of `PmlLoss` whose signature holds the numbers, switches and texts of the wrapped constructor. They
are its options, like those of the package's own losses. Parameters that are objects (distance, reducer, regularizer) keep their
defaults.
"""

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from liftedstruct.runtime.checks import EmbeddingsLike, LabelsLike, as_embeddings, as_labels, pick
from liftedstruct.runtime.extras import require
from liftedstruct.runtime.settings import Positive

__all__ = ["PREFIX", "PmlLoss", "PmlProxyLoss", "pml_loss"]

PREFIX = "pml:"
CLASSES, DIM = "num_classes", ("embedding_size", "descriptors_dim")  # required parameters that a run passes itself
UNUSED = ("embedding_reg_weight", "weight_reg_weight", "mat_based_loss")  # without effect, or set by the loss itself
EXCLUDED = (
    "DynamicSoftMarginLoss",  # its running histogram is not in the state dict, so a run could not resume
    "GenericPairLoss",  # a base class
    "ManifoldLoss",  # does not use labels
    "VICRegLoss",  # needs two views of each image
)


class PmlLoss(nn.Module):
    """Loss of pytorch-metric-learning.

    Args:
        miner: class name of a miner of pytorch-metric-learning, such as MultiSimilarityMiner, used with its defaults. Default:
            no miner.
        proxy_lr_scale: factor of the learning rate for the loss's own parameters, such as proxies.

    """

    wrapped: ClassVar[type[nn.Module]]
    required: ClassVar[frozenset[str]]  # parameters of the wrapped class without a default
    classes: Tensor | None

    def __init__(self, *, miner: str = "", proxy_lr_scale: Positive = 100.0, **options: Any) -> None:
        super().__init__()
        given = {name: value for name, value in options.items() if value is not None}
        self.options = {name: _number(value) for name, value in given.items()}
        self.proxy_lr_scale = proxy_lr_scale
        self.miner = pick(_classes("miners", "BaseMiner"), miner, "loss.miner")() if miner else None
        self.loss: nn.Module | None = None if CLASSES in self.required else self._make({})
        self.register_buffer("classes", None, persistent=False)

    def _make(self, handed: dict[str, int]) -> nn.Module:
        try:
            loss = self.wrapped(**handed, **self.options)
        except (AssertionError, TypeError, ValueError) as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"loss {PREFIX}{self.wrapped.__name__} must be given valid options, got {self.options}: {reason}. Change them."
            ) from error
        for parameter in loss.parameters():
            parameter.lr_scale = self.proxy_lr_scale  # type: ignore[attr-defined]  # read by parameter_groups
        return loss

    def forward(self, embeddings: EmbeddingsLike, labels: LabelsLike) -> Tensor:
        if self.loss is None:
            raise ValueError(
                f"{PREFIX}{self.wrapped.__name__} has no proxies yet. Call prepare(labels, dim) before the first batch."
            )
        X = as_embeddings(embeddings)
        labels = as_labels(labels, X)
        classes = labels.unique() if self.classes is None else self.classes
        y = torch.searchsorted(classes, labels).clamp(
            max=len(classes) - 1
        )  # small numbers: the package rounds labels to float32
        if not torch.equal(classes[y], labels):
            strange = labels[classes[y] != labels][0].item()
            raise ValueError(f"labels must be among those passed to prepare, got {strange}. Prepare with all training labels.")
        J: Tensor = self.loss(X, y) if self.miner is None else self.loss(X, y, self.miner(X, y))
        return J


class PmlProxyLoss(PmlLoss):
    """Loss of pytorch-metric-learning with proxies."""

    def prepare(self, labels: NDArray[np.int64], dim: int) -> None:
        """Create the proxies, if there are none yet: one or more per distinct label, of dimension `dim`."""
        if self.loss is not None:
            return
        distinct = np.unique(np.asarray(labels, np.int64))
        self.classes = torch.from_numpy(distinct)
        handed = {CLASSES: len(distinct), **dict.fromkeys(DIM, dim)}
        self.loss = self._make({name: handed[name] for name in self.required & handed.keys()})


def _number(value: Any) -> Any:
    """Return a whole number in a text as a number: `triplets_per_anchor` is "all" or a number."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


@cache
def pml_loss(name: str) -> type[PmlLoss]:
    """Return the loss of a name such as `pml:TripletMarginLoss`, with the options of the wrapped class as keywords."""
    known = {PREFIX + each: kind for each, kind in _classes("losses", "BaseMetricLossFunction").items()}
    wrapped = pick({key: kind for key, kind in known.items() if key.endswith("Loss")}, name, "loss")
    parameters = {each.name: each for each in _parameters(wrapped)}
    required = frozenset(key for key, each in parameters.items() if each.default is each.empty)
    options = [
        each.replace(kind=each.KEYWORD_ONLY, default=None if key in required else each.default, annotation=each.empty)
        for key, each in parameters.items()
        if key not in (CLASSES, *DIM) and (key in required or _is_plain(each))
    ]
    own = [each for each in inspect.signature(PmlLoss).parameters.values() if each.kind is each.KEYWORD_ONLY]
    text = (PmlLoss.__doc__ or "").replace("Loss of", f"{wrapped.__name__} of", 1)
    declared = {"wrapped": wrapped, "required": required, "__signature__": inspect.Signature([*options, *own]), "__doc__": text}
    return type(wrapped.__name__, (PmlProxyLoss if CLASSES in required else PmlLoss,), declared)


def _classes(module: str, base: str) -> dict[str, type[nn.Module]]:
    """Return the classes of a module of the package that are derived from a base class, by name."""
    found = vars(require(f"pytorch_metric_learning.{module}", "pml"))
    kinds: dict[str, Any] = {name: kind for name, kind in found.items() if name not in (base, *EXCLUDED)}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, found[base])}


def _parameters(wrapped: type) -> Iterator[inspect.Parameter]:
    """Yield the parameters of a constructor, and those of its base classes that it accepts as `**kwargs`."""
    seen = {"self", *UNUSED}
    for base in wrapped.__mro__:
        if "__init__" not in vars(base) or base is nn.Module:
            continue
        for each in inspect.signature(vars(base)["__init__"]).parameters.values():
            if each.name not in seen and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
                seen.add(each.name)
                yield each


def _is_plain(parameter: inspect.Parameter) -> bool:
    """Return whether a parameter with a default is a number, a switch or a text, by its default or annotation."""
    return isinstance(parameter.default, bool | int | float | str) or parameter.annotation in (int, float)
