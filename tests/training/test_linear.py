import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from liftedstruct.data.image_set import Indices
from liftedstruct.retrieval import precision_at_1
from liftedstruct.training import TrainConfig, linear, merge_settings
from liftedstruct.training.linear import LEARNING_RATES, Layer, choose_lr, fit_linear

Floats = NDArray[np.floating]
NAMES = [str(c) for c in range(30)]


def configured(**changes: Any) -> TrainConfig:
    one: dict[str, Any] = {"data": "-", "out": "-", "dim": 8, "steps": 60, "lr": 0.064, "batch_size": 128, "warmup": 0}
    one |= {"schedule": "cosine", "loss": {"margin": 1.0, "temperature": 1.0}, "sampler": {"samples_per_class": 2}}
    return merge_settings(one, changes)


def hidden_directions(classes: int = 20, noise: float = 20.0, seed: int = 0) -> tuple[Floats, Indices]:
    """Return vectors in which 3 of 20 directions separate the classes and the rest is noise, randomly rotated."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), 12)
    along = rng.uniform(0, 6, (classes, 3))[labels] + rng.normal(0, 0.3, (len(labels), 3))
    turn, _ = np.linalg.qr(rng.normal(size=(20, 20)))
    return np.hstack((along, rng.normal(0, noise, (len(labels), 17)))) @ turn.T, labels


def distances(X: Floats) -> Floats:
    D: Floats = np.linalg.norm(X[:, None] - X[None], axis=2)
    return D


def other_class_distance(X: Floats, labels: Indices) -> float:
    return float(distances(X)[labels[:, None] != labels].mean())


def test_layer() -> None:
    layer = Layer(np.array([1.0, 2.0]), np.array([[3.0, 0.0], [1.0, 1.0], [0.0, -1.0]]))
    for dtype in (np.float32, np.float64):
        made = layer(np.array([[1, 2], [2, 4]], dtype=dtype))
        assert made.dtype == dtype
        assert made.tolist() == [[0, 0, 0], [3, 3, -2]]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 1 + math.log(2 * (120 - 2))),  # a batch of ten classes with twelve vectors each
        ({"loss": {"margin": 3.0}, "batch_size": 20}, 3 + math.log(2 * (20 - 2))),
        ({"head": {"scale": 2.0}}, 2 * (1 + math.log(2 * (120 - 2)))),
        ({"loss": {"name": "contrastive", "margin": 3.0}}, 6.0),
        ({"loss": "triplet"}, 2.0),
        ({"loss": {"name": "structured_hinge", "margin": 0.0}}, 2.0),
    ],
)
def test_start_is_pca_at_the_starting_distance_of_the_loss(changes: dict[str, Any], expected: float) -> None:
    X, labels = hidden_directions(classes=10)
    layer = fit_linear(X, labels, configured(lr=0.0, **changes))
    components = PCA(8).fit_transform(X)
    made = layer(X)
    assert other_class_distance(made, labels) == pytest.approx(expected, rel=0.02)  # a sample of pairs
    ratio = distances(made)[np.triu_indices(120, 1)] / distances(components)[np.triu_indices(120, 1)]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)
    if changes == {}:
        assert len(layer.losses) == 60
        assert 0.3 < layer.losses[0] / ((1 + math.log(2 * 118)) ** 2 / 2) < 3  # near the collapsed loss, not 0 or 1e4


@pytest.mark.parametrize("head", ["orthogonal", "uniform"])
def test_other_heads(head: str) -> None:
    X, labels = hidden_directions(classes=10)
    layers = [fit_linear(X, labels, configured(lr=0.0, head=head, seed=seed)) for seed in (0, 0, 1)]
    assert other_class_distance(layers[0](X), labels) == pytest.approx(1 + math.log(2 * 118), rel=0.02)
    np.testing.assert_array_equal(layers[0].weight, layers[1].weight)
    assert not np.allclose(layers[0].weight, layers[2].weight)
    gram = layers[0].weight @ layers[0].weight.T
    right_angles = bool(np.allclose(gram, gram[0, 0] * np.eye(8), atol=1e-5 * gram[0, 0]))
    assert right_angles == (head == "orthogonal")


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": "lifted_struct"},
        {"loss": "structured_hinge"},
        {"loss": "contrastive"},
        {"loss": "triplet", "steps": 200},
        {"sampler": "pairs"},
        {"sampler": {"name": "hard_negatives", "refresh_every": 50}},
        {"optimizer": "sgd", "lr": 0.016, "steps": 200},
        {"schedule": "constant", "warmup": 20},
        {"head": "orthogonal"},
        {"clip_norm": 1.0},
    ],
    ids=str,
)
def test_finds_the_directions(changes: dict[str, Any]) -> None:
    X, labels = hidden_directions(classes=40)
    seen = labels < 20
    layer = fit_linear(X[seen], labels[seen], configured(**{"steps": 100} | changes))
    before, after = precision_at_1(X[~seen], labels[~seen]), precision_at_1(layer(X[~seen]), labels[~seen])
    assert before < 0.1
    assert after > 0.7, changes
    assert len(layer.losses) == changes.get("steps", 100)
    assert np.mean(layer.losses[-20:]) < 0.8 * layer.losses[0]


def test_settings_change_what_is_learned() -> None:
    X, labels = hidden_directions(classes=10)
    changes: list[dict[str, Any]] = [
        *({}, {"loss": "triplet"}, {"loss": {"name": "triplet", "triplets": "semi-hard"}}, {"loss": "contrastive"}),
        *({"loss": {"margin": 2.0}}, {"sampler": "hard_negatives"}, {"sampler": {"name": "hard_negatives", "n_hard": 1}}),
        *({"sampler": {"name": "hard_negatives", "hard_fraction": 0.7}}, {"loss": {"temperature": 0.5}}, {"warmup": 5}),
        *({"sampler": {"name": "hard_negatives", "refresh_every": 6}}, {"sampler": "pairs"}, {"seed": 1}, {"steps": 13}),
        *({"sampler": {"name": "pairs", "self_pairs": True}}, {"sampler": {"samples_per_class": 20}}, {"batch_size": 16}),
        *({"optimizer": "sgd"}, {"optimizer": {"beta1": 0.5}}, {"optimizer": {"weight_decay": 0.5}}, {"schedule": "step"}),
        *({"schedule": {"name": "step", "decays": 3}}, {"schedule": {"name": "step", "factor": 0.5}}, {"dim": 7}),
        *({"head": {"scale": 2.0}}, {"optimizer": "sgd", "clip_norm": 0.01}, {"head": "orthogonal"}, {"lr": 0.03}),
    ]
    weights = {
        fit_linear(
            X, labels, configured(steps=12, **change) if "steps" not in change else configured(**change)
        ).weight.tobytes()
        for change in changes
    }
    assert len(weights) == len(changes)


def test_invariant_to_scale_offset_and_rotation() -> None:
    X, labels = hidden_directions(classes=10)
    config = configured(steps=20)
    made = fit_linear(X, labels, config)(X)
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(20, 20)))
    for other in (X * 1000, X * 1e-9, X * 1e200, X + 1e6, X @ turn.T):
        np.testing.assert_allclose(distances(fit_linear(other, labels, config)(other)), distances(made), atol=0.02)
    assert distances(made).max() > 3


def test_float32_and_float64() -> None:
    X, labels = hidden_directions(classes=10)
    made, made32 = (fit_linear(each, labels, configured())(each) for each in (X, X.astype(np.float32)))
    assert [made.dtype.name, made32.dtype.name] == ["float64", "float32"]
    np.testing.assert_allclose(distances(made32), distances(made), atol=0.05)


def test_dim_is_limited_by_the_data() -> None:
    X, labels = hidden_directions(classes=10)
    assert fit_linear(X, labels, configured(dim=64)).weight.shape == (20, 20)
    few = np.flatnonzero(labels < 3)[::3]  # 12 vectors, 20-d, span 11 dimensions
    layer = fit_linear(X[few], labels[few], configured(dim=64))
    assert layer.weight.shape == (11, 20)
    assert np.isfinite(layer(X)).all()


def test_identical_vectors() -> None:
    layer = fit_linear(np.full((8, 3), 7.0), np.arange(8) // 2, configured())
    assert np.isfinite(layer.weight).all()
    assert not layer(np.full((2, 3), 7.0)).any()


def test_reproducible_without_side_effects() -> None:
    X, labels = hidden_directions(classes=10)
    before, state, threads = X.copy(), torch.get_rng_state(), torch.get_num_threads()
    layers = [fit_linear(X, labels, configured()) for _ in range(2)]
    assert layers[0].weight.tobytes() == layers[1].weight.tobytes()
    assert torch.get_rng_state().equal(state)
    assert torch.get_num_threads() == threads
    np.testing.assert_array_equal(X, before)


def test_learning_rate_is_chosen_on_held_out_classes() -> None:
    config = configured(steps=60)
    assert choose_lr(*hidden_directions(classes=30), config, NAMES) >= 0.016  # the start is poor
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(30), 8)
    noise = rng.normal(size=(240, 40))  # nothing to learn
    good = rng.normal(size=(30, 40))[labels] + 0.3 * noise  # already separated
    assert choose_lr(noise, labels, config, NAMES) == choose_lr(good, labels, config, NAMES) == LEARNING_RATES[0]
    assert choose_lr(*hidden_directions(classes=9), config, NAMES) == LEARNING_RATES[0]  # too few classes to hold some out


def test_similar_names_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    X, labels = hidden_directions(classes=24)
    names = [f"{'Cc'[i % 2]}lass {i // 2}" for i in range(24)]
    seen: list[set[str]] = []
    begin = linear._start

    def begin_and_note(X: Any, labels: Any, config: TrainConfig) -> Any:
        seen.append({names[c] for c in labels})
        return begin(X, labels, config)

    monkeypatch.setattr(linear, "_start", begin_and_note)
    for seed in range(5):
        choose_lr(X, labels, configured(steps=1, seed=seed), names)
    assert all(len(trained) == 20 and trained == {name.swapcase()[0] + name[1:] for name in trained} for trained in seen)
    assert len({frozenset(trained) for trained in seen}) == 5


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    X, labels = hidden_directions(classes=10)
    fit_linear(X, labels, configured(steps=3))
    assert capsys.readouterr().err == ""
    fit_linear(X, labels, configured(steps=3), progress=True)
    assert "fit, lr 0.064: 360 of 360 images" in capsys.readouterr().err
