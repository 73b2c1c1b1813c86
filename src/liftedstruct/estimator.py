"""scikit-learn compatible estimator for feature vectors or images, for use in pipelines and grid searches."""

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

from liftedstruct.data import SIZE_PER_CROP, ImageSet, Indices, MemorySource, PackedImages, prepare
from liftedstruct.runtime.checks import as_classes, check_count, pick
from liftedstruct.runtime.extras import require
from liftedstruct.training import PRESETS, TrainConfig, count_pairable, find_device, merge_settings, train
from liftedstruct.training.linear import Layer, choose_lr, fit_linear
from liftedstruct.trunks import make_trunk

__all__ = ["LiftedEmbedding"]

base = require("sklearn.base", "sklearn")
validation = require("sklearn.utils.validation", "sklearn")

# Defaults for feature vectors; for images, those of TrainConfig apply.
ON_VECTORS: dict[str, Any] = {
    "steps": 300,
    "batch_size": 128,
    "schedule": "cosine",
    "warmup": 0,
    "loss": {"name": "lifted_struct", "margin": 1.0, "temperature": 1.0},
    "sampler": {"name": "balanced", "samples_per_class": 2},
}
# Settings that apply to feature vectors.
OF_VECTORS = {"head", "loss", "sampler", "optimizer", "schedule", "warmup", "clip_norm"}
OWN = {"data": "folder", "out": "folder", "seed": "random_state"}  # setting -> parameter of the estimator


class LiftedEmbedding(base.ClassNamePrefixFeaturesOutMixin, base.TransformerMixin, base.BaseEstimator):  # type: ignore[misc, name-defined]
    """Embedding that places images of the same class close together and images of different classes far apart.

    On **feature vectors**, (n, d), it is a linear layer, trained in seconds. On **images**, uint8 (n, h, w, 3), it is a whole
    network, trained by `liftedstruct.train`. It is designed for classes that are not in the training data; evaluate it on such
    classes (`liftedstruct.recall_at_k`).

    Args:
        dim: embedding dimension. On vectors it is at most d and at most n - 1.
        loss: name in `liftedstruct.losses.LOSSES`, or a mapping with a name and options, `{"name": ..., "margin": 0.5}`.
        batch_size: maximum number of images per batch. Default: 128 on vectors, 64 on images or the value of the preset. With
            few classes, a batch has more images per class.
        steps: number of training steps. Default: 300 on vectors; on images, the value of the recipe or the preset.
        lr: learning rate. Default on vectors: one of four values, selected on a held-out fifth of the classes before
            training on all of them (with fewer than ten classes of at least two images, the lowest). Default on images: the
            value of the recipe or the preset.
        trunk: network that computes the features (images only; see "liftedstruct list trunks"). If `settings` has no `crop`,
            the crop size is the default of the preset or the trunk, reduced for small images so that they are not enlarged.
        preset: changes to the default recipe (images only), a name in `liftedstruct.training.PRESETS`.
        settings: other settings of `liftedstruct.TrainConfig`, such as `{"sampler": "hard_negatives"}`. On vectors, the scale
            of the head multiplies a scale that depends on the loss.
        folder: folder for the prepared images and the run (images only). Default: a temporary folder, deleted afterwards.
        random_state: random seed.
        verbose: show progress.

    Attributes:
        classes_: sorted labels of the training data.
        loss_curve_: loss per step (on images, per logged step).
        lr_: learning rate.
        mean_, components_: (d,) and (dim, d); an embedding is `components_ @ (x - mean_)` (vectors only).
        embedder_: trained network, a `liftedstruct.Embedder` (images only).
        n_features_in_, feature_names_in_: as in other scikit-learn estimators (vectors only).

    In this example, three of thirty features separate the classes; the others are noise of a much larger scale.

    Examples:
        >>> import numpy as np
        >>> import liftedstruct as ls
        >>> rng = np.random.default_rng(0)
        >>> y = np.arange(800) // 20
        >>> X = rng.normal(0, 30, (800, 30))
        >>> X[:, :3] = rng.uniform(0, 6, (40, 3))[y] + rng.normal(0, 0.3, (800, 3))
        >>> seen = y < 20
        >>> embedding = ls.LiftedEmbedding(dim=8, lr=0.064).fit(X[seen], y[seen])
        >>> ls.precision_at_1(X[~seen], y[~seen]) < 0.1  # on classes that were not in the training data
        True
        >>> ls.precision_at_1(embedding.transform(X[~seen]), y[~seen]) > 0.8  # the three features alone: 0.885
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
        """Fit to vectors (n, d) or images (n, h, w, 3) with labels (n,): integers, strings or booleans.

        At least two classes must have at least two images; a class with a single image provides only negatives.
        """
        for name in [name for name in vars(self) if name.endswith("_")]:  # of an earlier fit, perhaps on other inputs
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
        """Return the embeddings (n, dim) of vectors or images, of the same kind as in `fit`."""
        validation.check_is_fitted(self)
        if hasattr(self, "embedder_"):
            network = deepcopy(self.embedder_).to(find_device((self.settings or {}).get("device")))
            return network.encode(_as_images(X), progress=self.verbose)
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
        """Set `classes_` and return the class number of each label."""
        if labels.dtype.kind == "f" and ((np.trunc(labels) == labels) & (np.abs(labels) < 2**53)).all():
            labels = labels.astype(np.int64)  # integers stored as floats, as in many scikit-learn datasets
        numbers, self.classes_ = as_classes(labels)
        several, all_of = count_pairable(numbers), len(self.classes_)
        if several < 2:
            raise ValueError(
                f"y must have at least two classes with at least two images each, got {several} of "
                f"{'one class' if all_of == 1 else f'{all_of} classes'}. Give images of the same class the same label."
            )
        return numbers

    def _config(self, defaults: Mapping[str, Any], **places: str) -> TrainConfig:
        """Return the checked settings: parameters override `settings`, which override the defaults and the preset."""
        settings = dict(self.settings or {})
        for name in settings:
            if name in OWN or name in self.get_params(deep=False):
                raise ValueError(
                    f"settings must not contain {name!r}, which is a parameter of the estimator. Pass {OWN.get(name, name)}=."
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
            raise ValueError(f"{min(only)} is only for images, (n, h, w, 3), got feature vectors {X.shape}. Omit it.")
        check_count("dim", self.dim)
        if self.steps is not None:
            check_count("steps", self.steps)
        config = self._config(ON_VECTORS, data="vectors", out="memory")
        if self.lr is None:
            names = [str(label) for label in self.classes_]
            config = replace(config, lr=choose_lr(X, labels, config, names, progress=self.verbose))
        layer = fit_linear(X, labels, config, progress=self.verbose)
        self.mean_, self.components_ = layer.mean.astype(X.dtype), layer.weight.astype(X.dtype)
        self.lr_, self.loss_curve_ = float(config.lr or 0.0), list(layer.losses)

    def _fit_images(self, X: NDArray[np.uint8], labels: Indices) -> None:
        names = tuple(str(label) for label in self.classes_)
        with torch.random.fork_rng(devices=[]), ExitStack() as stack:  # new networks draw random weights
            folder = self.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="liftedstruct-"))
            data, out = Path(folder) / "prepared", Path(folder) / "run"
            config = self._config({"log_every": 1}, data=str(data), out=str(out))
            crop = config.crop if config.crop and "crop" in (self.settings or {}) else _crop_for(config, X)
            _pack(X, labels, names, data, crop, self.verbose)
            if config.train_crop is not None:
                config = replace(config, train_crop=min(config.train_crop, crop))
            run = train(replace(config, crop=crop), progress=self.verbose)
            self.embedder_ = run.embedder()
            self.lr_, self.loss_curve_ = float(run.config.lr or 0.0), [line["loss"] for line in run.log() if "loss" in line]


def _as_images(X: ArrayLike) -> NDArray[np.uint8]:
    images = np.asarray(X)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or not images.size:
        raise ValueError(f"images must be uint8 of shape (n, h, w, 3), got {images.dtype} of {images.shape}. Convert them.")
    return images


def _crop_for(config: TrainConfig, X: NDArray[np.uint8]) -> int:
    """Return the crop size of the preset or the trunk, reduced if needed so that small images are not enlarged."""
    side: int = max(X.shape[1:3])
    suggested = make_trunk(config.trunk.name, pretrained=False, **config.trunk.options).suggested["crop"]
    return min(config.crop or suggested, round(side / SIZE_PER_CROP))


def _pack(
    X: NDArray[np.uint8], labels: Indices, class_names: tuple[str, ...], folder: str | Path, crop: int, progress: bool
) -> PackedImages:
    """Prepare the images in a folder, at the size that the crops need, without test classes."""
    none, paths = np.empty(0, np.int64), tuple(str(i) for i in range(len(X)))
    image_set = ImageSet("arrays", Path("memory"), MemorySource(X), paths, labels, class_names, test_classes=none)
    return prepare(image_set, folder, size=round(crop * SIZE_PER_CROP), bad_images="stop", progress=progress)
