"""A scikit-learn compatible estimator: ``fit``, ``transform``, pipelines and grid searches, on feature vectors or images."""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from liftedstruct.data import SIZE_PER_CROP, ArraySource, ImageSet, Indices, PackedImages, prepare
from liftedstruct.embeddings import embed_rows
from liftedstruct.runtime.checks import as_classes, check_count, pick
from liftedstruct.runtime.extras import require
from liftedstruct.training import PRESETS, TrainConfig, count_pairable, find_device, merge_settings, train
from liftedstruct.training.linear import Layer, choose_rate, fit_linear
from liftedstruct.trunks import make_trunk

__all__ = ["LiftedEmbedding"]

base = require("sklearn.base", "sklearn")
validation = require("sklearn.utils.validation", "sklearn")

# Defaults on feature vectors; TrainConfig has those for images.
ON_VECTORS: dict[str, Any] = {
    "steps": 300,
    "batch_size": 128,
    "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0},
    "sampler": {"name": "balanced", "samples_per_class": 2},
}
# Settings that a linear layer on feature vectors can have.
OF_VECTORS = {"head", "loss", "sampler", "optimizer", "schedule", "warmup", "clip_norm"}
OWN = {"data": "folder", "out": "folder", "seed": "random_state"}  # settings that are a parameter of another name here


class LiftedEmbedding(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]
    """An embedding in which images of one class are near and others are far, learned from feature vectors or from images.

    Of **feature vectors**, (n, d), of any network or other origin, it is a linear layer, trained in seconds. Of **images**,
    (n, h, w, 3) bytes, it is a whole network, trained by :func:`liftedstruct.train`. It is made for classes that are not in
    the training data: look at its worth on such classes (:func:`liftedstruct.recall_at_k`).

    Args:
        dim: dimensions of the embedding; of vectors no more than they have themselves, nor than n - 1.
        loss: a name in ``liftedstruct.losses.LOSSES``, or a mapping of a name and options, ``{"name": ..., "margin": 0.5}``.
        batch_size: images per batch, at most; 128 vectors or 64 images if not given. With few classes more images of each meet.
        steps: training steps; 300 on vectors if not given, on images those of the recipe or the preset.
        lr: learning rate. If not given, of vectors one of four, by a fifth of the classes, which are held out for that and then
            trained on like the others (with fewer than ten classes the lowest); of images that of the recipe or the preset.
        trunk: of images, the network below the head (see "liftedstruct list trunks"). If ``settings`` have no ``crop``, crops
            are as large as suits the trunk, or less: small images are not enlarged.
        preset: of images, differences from the default recipe, a name in ``liftedstruct.training.PRESETS``.
        settings: any others of :class:`liftedstruct.TrainConfig`, such as ``{"sampler": "hard_negatives"}``. On vectors the
            scale of the head multiplies a scale that suits the loss.
        folder: of images, where to keep the prepared images and the run; by default nothing is kept.
        random_state: seed of every random choice.
        verbose: show progress.

    Attributes:
        classes_: the labels that it was trained on, sorted.
        loss_curve_: the loss of each step.
        lr_: the learning rate.
        mean_, components_: of vectors, (d,) and (dim, d): an embedding is ``components_ @ (x - mean_)``.
        embedder_: of images, the network, an :class:`liftedstruct.Embedder`.
        n_features_in_, feature_names_in_: of vectors, as everywhere in scikit-learn.

    Example: three of thirty numbers tell classes apart, the others are noise, and much larger.

    >>> import numpy as np
    >>> import liftedstruct as ls
    >>> rng = np.random.default_rng(0)
    >>> y = np.arange(800) // 20
    >>> X = rng.normal(0, 30, (800, 30))
    >>> X[:, :3] = rng.uniform(0, 6, (40, 3))[y] + rng.normal(0, 0.3, (800, 3))
    >>> seen = y < 20
    >>> embedding = ls.LiftedEmbedding(dim=8, lr=0.064).fit(X[seen], y[seen])
    >>> ls.precision_at_1(X[~seen], y[~seen]) < 0.1  # of classes that it has never seen
    True
    >>> ls.precision_at_1(embedding.transform(X[~seen]), y[~seen]) > 0.8  # the three numbers alone: 0.885
    True
    """

    def __init__(
        self,
        dim: int = 64,
        *,
        loss: str | Mapping[str, Any] = "lifted_struct",
        batch_size: int | None = None,
        steps: int | None = None,
        lr: float | None = None,
        trunk: str | None = None,
        preset: str | None = None,
        settings: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.dim = dim
        self.loss = loss
        self.batch_size = batch_size
        self.steps = steps
        self.lr = lr
        self.trunk = trunk
        self.preset = preset
        self.settings = settings
        self.folder = folder
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from vectors (n, d) or images (n, h, w, 3) and their labels (n,), integers, strings or booleans.

        Two classes or more must have two images or more; a class of one image can only be a negative.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit, perhaps of the other kind
            delattr(self, name)
        if isinstance(X, list | tuple):
            X = np.asarray(X)
        if getattr(X, "ndim", None) == 4:
            if y is None:
                raise ValueError("LiftedEmbedding requires y to be passed, but the target y is None. Pass a label per image.")
            images, labels = _as_images(X), validation.column_or_1d(y, warn=True)
            validation.check_consistent_length(images, labels)
            self._fit_images(images, self._classes(labels))
        else:
            vectors, labels = validation.validate_data(self, X, y, dtype=(np.float64, np.float32), ensure_min_samples=2)
            self._fit_vectors(vectors, self._classes(labels))
        return self

    def transform(self, X: ArrayLike) -> NDArray[Any]:
        """The embeddings, (n, dim), of vectors or of images, as in training."""
        validation.check_is_fitted(self)
        if hasattr(self, "embedder_"):
            images = _as_images(X)
            with tempfile.TemporaryDirectory(prefix="liftedstruct-") as folder:
                packed = _pack(images, np.zeros(len(images), np.int64), ("unknown",), folder, self.embedder_.crop, self.verbose)
                network = deepcopy(self.embedder_).to(find_device((self.settings or {}).get("device")))
                return embed_rows(network, packed, np.arange(len(packed)), 64, network.crop, self.verbose)
        vectors = validation.validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        return Layer(self.mean_, self.components_)(vectors)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "components_") or hasattr(self, "embedder_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return int(self.embedder_.width) if hasattr(self, "embedder_") else len(self.components_)

    def _classes(self, labels: NDArray[np.generic]) -> Indices:
        """Class numbers of the labels, which become ``classes_``."""
        if labels.dtype.kind == "f" and ((np.trunc(labels) == labels) & (np.abs(labels) < 2**53)).all():
            labels = labels.astype(np.int64)  # whole numbers, as much of scikit-learn's data has them
        numbers, self.classes_ = as_classes(labels)
        several, all_of = count_pairable(numbers), len(self.classes_)
        if several < 2:
            raise ValueError(
                f"y must have two classes or more with at least two images each, got {several} of "
                f"{'one class' if all_of == 1 else f'{all_of} classes'}. Label images of one thing alike."
            )
        return numbers

    def _config(self, defaults: Mapping[str, Any], **places: str) -> TrainConfig:
        """All settings, checked: what is given here, over the settings, over the preset."""
        settings = dict(self.settings or {})
        for name in settings:
            if name in OWN or name in self.get_params(deep=False):
                raise ValueError(
                    f"settings must leave out {name!r}, it is a parameter of its own. Pass {OWN.get(name, name)}=."
                )
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size, 4)
        own = {name: getattr(self, name) for name in ("dim", "loss", "batch_size", "steps", "lr", "trunk")}
        given = {name: value for name, value in own.items() if value is not None}
        seed = int(validation.check_random_state(self.random_state).randint(2**31 - 1))
        preset = pick(PRESETS, self.preset, "preset") if self.preset is not None else {}
        return merge_settings(preset, defaults, settings, given, {**places, "seed": seed})

    def _fit_vectors(self, X: NDArray[np.floating], labels: Indices) -> None:
        only = {name for name in ("trunk", "preset", "folder") if getattr(self, name) is not None}
        only |= {name for name in self.settings or {} if name not in (*OF_VECTORS, *OWN, *self.get_params(deep=False))}
        if only:
            raise ValueError(f"{min(only)} must be for images, (n, h, w, 3), got feature vectors {X.shape}. Leave it out.")
        check_count("dim", self.dim)
        config = self._config(ON_VECTORS, data="vectors", out="memory")
        if self.lr is None:
            names = [str(label) for label in self.classes_]
            config = replace(config, lr=choose_rate(X, labels, config, names, progress=self.verbose))
        layer = fit_linear(X, labels, config, progress=self.verbose)
        self.mean_, self.components_ = layer.mean.astype(X.dtype), layer.weight.astype(X.dtype)
        self.lr_, self.loss_curve_ = config.lr, list(layer.losses)

    def _fit_images(self, X: NDArray[np.uint8], labels: Indices) -> None:
        names = tuple(str(label) for label in self.classes_)
        with torch.random.fork_rng(devices=[]), ExitStack() as stack:  # a network is made with random weights first
            folder = self.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="liftedstruct-"))
            data, out = Path(folder) / "prepared", Path(folder) / "run"
            config = self._config({"log_every": 1}, data=str(data), out=str(out))
            crop = config.crop if config.crop and "crop" in (self.settings or {}) else _crop_for(config, X)
            _pack(X, labels, names, data, crop, self.verbose)
            if config.train_crop is not None:
                config = replace(config, train_crop=min(config.train_crop, crop))
            run = train(replace(config, crop=crop), progress=self.verbose)
            self.embedder_ = run.embedder()
            self.lr_, self.loss_curve_ = config.lr, [line["loss"] for line in run.log() if "loss" in line]


def _as_images(X: ArrayLike) -> NDArray[np.uint8]:
    images = np.asarray(X)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not images.size:
        raise ValueError(f"images must be uint8 of shape (n, h, w, 3), got {images.dtype} of {images.shape}. Pass such bytes.")
    return images


def _crop_for(config: TrainConfig, X: NDArray[np.uint8]) -> int:
    """The side that the preset has or the trunk was trained with, or less: small images are not enlarged."""
    side: int = max(X.shape[1:3])
    suggested = make_trunk(config.trunk.name, pretrained=False, **config.trunk.options).suggested["crop"]
    return min(config.crop or suggested, round(side / SIZE_PER_CROP))


def _pack(
    X: NDArray[np.uint8], labels: Indices, class_names: tuple[str, ...], folder: str | Path, crop: int, progress: bool
) -> PackedImages:
    """The images in a folder, as large as the crops need; no class is for the test."""
    none, paths = np.empty(0, np.int64), tuple(str(i) for i in range(len(X)))
    image_set = ImageSet("arrays", Path("memory"), ArraySource(X), paths, labels, class_names, test_classes=none)
    return prepare(image_set, folder, size=round(crop * SIZE_PER_CROP), bad_images="stop", progress=progress)
