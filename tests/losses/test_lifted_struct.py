import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import LpDistance
from pytorch_metric_learning.losses import LiftedStructureLoss
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from liftedstruct import LiftedStructLoss, StructuredHingeLoss, lifted_struct_loss, structured_hinge_loss
from liftedstruct.losses.lifted_struct import lifted_struct_loss_plain, structured_hinge_loss_plain
from losses import algorithm_1

Loss = Callable[..., Tensor]
ONE_ROW = 1  # a budget so small that every block is one row


def batch(
    m: int, d: int, classes: int, seed: int = 0, dtype: torch.dtype = torch.float64, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    X = scale * torch.randn(m, d, generator=generator, dtype=torch.float64)
    y = torch.randint(classes, (m,), generator=generator)
    return X.to(dtype).requires_grad_(), y


def value_and_gradient(loss: Loss, X: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
    value = loss(X, *args, **kwargs)
    return value.detach(), torch.autograd.grad(value, X)[0]


SHAPES = [(6, 2, 3), (24, 5, 2), (40, 8, 20), (31, 3, 4)]


@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("m", "d", "classes"), SHAPES)
def test_equals_algorithm_1(m: int, d: int, classes: int, scale: float) -> None:
    X, y = batch(m, d, classes, scale=scale)
    value, gradient = value_and_gradient(lifted_struct_loss, X, y)
    points, labels = X.detach().numpy(), y.tolist()
    assert value.item() == pytest.approx(algorithm_1.smooth(points, labels, 1.0), rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient.numpy(), algorithm_1.gradient(points, labels, 1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_bytes", [ONE_ROW, 40_000, 400_000, 1 << 30])
@pytest.mark.parametrize(("m", "d", "classes"), [*SHAPES, (150, 16, 35), (600, 4, 2)])
def test_equals_autograd_on_the_plain_version_in_blocks_of_any_size(m: int, d: int, classes: int, max_bytes: int) -> None:
    X, y = batch(m, d, classes, scale=2.0)
    for fast, plain, options in (
        (lifted_struct_loss, lifted_struct_loss_plain, {}),
        (structured_hinge_loss, structured_hinge_loss_plain, {"plus": False}),
        (structured_hinge_loss, structured_hinge_loss_plain, {"plus": True}),
    ):
        value, gradient = value_and_gradient(fast, X, y, max_bytes=max_bytes, **options)
        expected, expected_gradient = value_and_gradient(plain, X, y, **options)
        torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("k", [2, 4])
def test_equals_pytorch_metric_learning(k: int) -> None:
    X, _ = batch(64, 16, 1, seed=k)
    y = (torch.arange(64) // k)[torch.randperm(64, generator=torch.Generator().manual_seed(1))]
    peer = LiftedStructureLoss(neg_margin=1, pos_margin=0, distance=LpDistance(normalize_embeddings=False))
    value, gradient = value_and_gradient(lifted_struct_loss, X, y)
    expected, expected_gradient = value_and_gradient(peer, X, y)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize(("m", "d", "classes"), SHAPES)
def test_hinge_equals_the_loops(m: int, d: int, classes: int, plus: bool) -> None:
    X, y = batch(m, d, classes)
    expected = algorithm_1.structured(X.detach().numpy(), y.tolist(), 1.0, plus)
    assert structured_hinge_loss(X, y, plus=plus).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("max_bytes", [ONE_ROW, 1 << 30])
def test_gradcheck_and_second_derivatives(max_bytes: int) -> None:
    X, y = batch(9, 3, 3)
    for loss in (lifted_struct_loss, structured_hinge_loss):
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, y, max_bytes=max_bytes), X)
        assert torch.autograd.gradgradcheck(lambda x, f=loss: f(x, y, max_bytes=max_bytes), X)


def test_by_hand() -> None:
    X = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([5, 5, 2])
    J = math.log(math.exp(1 - 3) + math.exp(1 - 2)) + 1
    value, gradient = value_and_gradient(lifted_struct_loss, X, y)
    p, q = (math.exp(-2) / (math.exp(-2) + math.exp(-1)), math.exp(-1) / (math.exp(-2) + math.exp(-1)))
    assert value.item() == pytest.approx(J**2 / 2)
    # image 0 is pulled right and pushed left by p, image 1 is pulled left and pushed left by q, image 2 is pushed right
    np.testing.assert_allclose(gradient.ravel(), [J * (-1 + p), J * (1 + q), J * (-p - q)])


@given(
    st.integers(0, 10_000),
    st.integers(2, 24),
    st.integers(1, 6),
    st.sampled_from([0.01, 1.0, 30.0]),
    st.sampled_from([0.0, 1.0, 5.0]),
)
@settings(deadline=None, max_examples=60)
def test_smooth_bound_is_above_the_objective(seed: int, m: int, classes: int, scale: float, margin: float) -> None:
    X, y = batch(m, 3, classes, seed, scale=scale)
    assert lifted_struct_loss(X, y, margin) >= structured_hinge_loss(X, y, margin) - 1e-12


@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
def test_invariant_to_order_names_and_place(loss: Loss) -> None:
    X, y = batch(64, 16, 12, dtype=torch.float32)
    value, gradient = value_and_gradient(loss, X, y)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    renamed = torch.randperm(12, generator=torch.Generator().manual_seed(4))[y] - 2**40
    shuffled = X.detach()[order].requires_grad_()
    for again, names, back in (
        (shuffled, renamed[order], order.argsort()),
        (X.detach().add(1000).requires_grad_(), y, slice(None)),
    ):
        other, other_gradient = value_and_gradient(loss, again, names)
        torch.testing.assert_close(other, value, rtol=1e-4, atol=0)
        torch.testing.assert_close(other_gradient[back], gradient, rtol=1e-4, atol=1e-4 * gradient.abs().max().item())


@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
def test_labels_of_any_kind(loss: Loss) -> None:
    X, y = batch(20, 4, 5)
    expected = loss(X, y)
    names = [f"class {label}" for label in y.tolist()]
    for same in (
        y.int(),
        y.to(torch.uint64),
        y.numpy(),
        y.tolist(),
        names,
        np.array(names),
        (2**62 + y).numpy(),
        [2**70 + v for v in y.tolist()],
    ):
        assert loss(X, same) == expected
        assert loss(X.detach().numpy(), same) == expected
    near = 2**53 + torch.arange(4)  # these collide as floats
    assert loss(X[:4], near) == 0


@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
@pytest.mark.parametrize("max_bytes", [ONE_ROW, 1 << 30])
class TestEdges:
    def test_no_positive_pair(self, loss: Loss, max_bytes: int) -> None:
        X, _ = batch(5, 3, 1)
        value, gradient = value_and_gradient(loss, X, torch.arange(5), max_bytes=max_bytes)
        assert value == 0
        assert (gradient == 0).all()

    def test_no_negative(self, loss: Loss, max_bytes: int) -> None:
        X, _ = batch(5, 3, 1)
        value, gradient = value_and_gradient(loss, X, torch.zeros(5, dtype=torch.long), max_bytes=max_bytes)
        assert value == 0
        assert (gradient == 0).all()

    def test_one_image(self, loss: Loss, max_bytes: int) -> None:
        X, y = batch(1, 3, 1)
        value, gradient = value_and_gradient(loss, X, y, max_bytes=max_bytes)
        assert value == 0
        assert (gradient == 0).all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("value", [0.0, 0.1, 300.0])
    def test_all_equal(self, loss: Loss, max_bytes: int, dtype: torch.dtype, value: float) -> None:
        X = torch.full((12, 5), value, dtype=dtype, requires_grad=True)
        y = torch.arange(12) // 3
        result, gradient = value_and_gradient(loss, X, y, max_bytes=max_bytes)
        collapsed = (1 + math.log(18)) ** 2 / 2 if loss is lifted_struct_loss else 0.5
        assert result.item() == pytest.approx(collapsed, rel=1e-5)
        assert gradient.dtype == dtype
        assert (gradient == 0).all()

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    def test_duplicates(self, loss: Loss, max_bytes: int, dtype: torch.dtype) -> None:
        X, y = batch(40, 600, 8, dtype=dtype, scale=3.0)
        twice = torch.cat((X, X)).detach().requires_grad_()
        labels = torch.cat((y, (y + torch.arange(40) % 2) % 8))  # duplicates within and across classes
        value, gradient = value_and_gradient(loss, twice, labels, max_bytes=max_bytes)
        exact = twice.detach().double().requires_grad_()
        expected, expected_gradient = value_and_gradient(loss, exact, labels)
        tolerance = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            gradient.double(), expected_gradient, rtol=0, atol=tolerance * expected_gradient.abs().max().item()
        )

    @pytest.mark.parametrize("gap", [1e-2, 1e-4, 1e-6])
    @pytest.mark.parametrize("same_class", [True, False])
    def test_near_duplicates_keep_their_digits(self, loss: Loss, max_bytes: int, gap: float, same_class: bool) -> None:
        X, y = batch(32, 64, 16, dtype=torch.float32)
        close = torch.cat((X, X + gap * torch.randn(32, 64, generator=torch.Generator().manual_seed(9)))).detach()
        labels = torch.cat((y, y if same_class else y + 1))
        plain = lifted_struct_loss_plain if loss is lifted_struct_loss else structured_hinge_loss_plain
        value, gradient = value_and_gradient(loss, close.requires_grad_(), labels, max_bytes=max_bytes)
        expected, expected_gradient = value_and_gradient(plain, close.detach().double().requires_grad_(), labels)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
        if loss is structured_hinge_loss and gap < 1e-5:
            return  # rounding decides which of two near duplicates is the nearest negative
        torch.testing.assert_close(
            gradient.double(), expected_gradient, rtol=0, atol=1e-5 * expected_gradient.abs().max().item()
        )

    @pytest.mark.parametrize("gap", [1e-3, 1e-8, 1e-20])
    def test_a_pair_at_almost_no_distance_does_not_explode(self, loss: Loss, max_bytes: int, gap: float) -> None:
        X = torch.tensor([[1.0, 2.0, 0.0], [1.0, 2.0, gap], [1.5, 2.1, 0.0], [1.0, 2.5, 0.1]], requires_grad=True)
        plain = lifted_struct_loss_plain if loss is lifted_struct_loss else structured_hinge_loss_plain
        for labels in (torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])):
            _, gradient = value_and_gradient(loss, X, labels, max_bytes=max_bytes)
            _, expected = value_and_gradient(plain, X.detach().double().requires_grad_(), labels)
            torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-5)

    def test_tight_clusters_far_apart(self, loss: Loss, max_bytes: int) -> None:
        """Half of all pairs are close: they are computed around a center in each cluster, block by block."""
        X, y = batch(60, 16, 12, dtype=torch.float32, scale=1e-3)
        clusters = (X.detach() + 20 * (torch.arange(60) % 2)[:, None]).requires_grad_()
        plain = lifted_struct_loss_plain if loss is lifted_struct_loss else structured_hinge_loss_plain
        value, gradient = value_and_gradient(loss, clusters, y, max_bytes=max_bytes)
        expected, expected_gradient = value_and_gradient(plain, clusters.detach().double().requires_grad_(), y)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            gradient.double(), expected_gradient, rtol=0, atol=1e-5 * expected_gradient.abs().max().item()
        )

    @pytest.mark.parametrize("scale", [1e7, 1e12, 1e17])
    def test_any_scale_is_finite(self, loss: Loss, max_bytes: int, scale: float) -> None:
        X, y = batch(32, 8, 8, dtype=torch.float32, scale=scale)
        value, gradient = value_and_gradient(loss, X, y, max_bytes=max_bytes)
        assert value.isfinite()
        assert gradient.isfinite().all()

    def test_far_apart(self, loss: Loss, max_bytes: int) -> None:
        """All exponentials of -D would underflow; the loss does not."""
        X, y = batch(30, 4, 6, dtype=torch.float32, scale=5000.0)
        value, gradient = value_and_gradient(loss, X, y, max_bytes=max_bytes)
        expected, expected_gradient = value_and_gradient(loss, X.detach().double().requires_grad_(), y)
        torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
        torch.testing.assert_close(
            gradient.double(), expected_gradient, rtol=1e-3, atol=1e-3 * expected_gradient.abs().max().item()
        )


class Work(TorchDispatchMode):
    """Count the elements that operators write; for distances from differences, count the differences."""

    written = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        each = args[0].shape[1] if func is torch.ops.aten._cdist_forward.default else 1
        self.written += sum(each * tensor.numel() for tensor in tree_leaves(out) if isinstance(tensor, Tensor))
        return out


@pytest.mark.slow
@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clusters_take_little_more_work_than_a_random_batch(loss: Loss, dtype: torch.dtype) -> None:
    """This includes nested clusters with the same relative separation."""
    m, d = 512, 128
    X, y = batch(m, d, m // 4, dtype=dtype)
    at = torch.arange(m)
    apart = torch.randn(2, 8, d, generator=torch.Generator().manual_seed(1), dtype=dtype)
    two = 1e-3 * X.detach() + 10 * apart[0, at % 2]
    nested = 1e-6 * X.detach() + 1e-3 * apart[0, at // 2 % 8] + apart[1, at % 2]
    work = []
    for points in (X.detach(), two, nested):
        with Work() as counted:  # type: ignore[no-untyped-call]
            value_and_gradient(loss, points.requires_grad_(), y)
        work.append(counted.written)
    assert max(work) < 10 * work[0]


@pytest.mark.parametrize("spread", [1e-3, 1e-6])
@pytest.mark.parametrize("centers", [2, 5])
def test_clusters_within_clusters_keep_their_digits(spread: float, centers: int) -> None:
    X, y = batch(180, 24, 45, dtype=torch.float32)
    apart = torch.randn(2, centers, 24, generator=torch.Generator().manual_seed(1))
    at = torch.arange(180)
    points = spread * (1e-3 * X.detach() + apart[0, at % centers]) + 10 * apart[1, at // centers % centers]
    value, gradient = value_and_gradient(lifted_struct_loss, points.requires_grad_(), y)
    expected, expected_gradient = value_and_gradient(lifted_struct_loss_plain, points.detach().double().requires_grad_(), y)
    torch.testing.assert_close(value.double(), expected, rtol=1e-5, atol=0)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=0, atol=1e-5 * expected_gradient.abs().max().item())


def test_ties_go_to_the_first_image() -> None:
    X = torch.tensor([[2.0, 0.0], [0.0, 0.0], [-2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    y = torch.tensor([9, 4, 1, 4])  # 0 and 2 are equally near to 1 and to 3
    _, gradient = value_and_gradient(structured_hinge_loss, X, y, margin=3.0)
    assert gradient[0].abs().sum() > 0
    assert gradient[2].abs().sum() == 0
    _, plain = value_and_gradient(structured_hinge_loss_plain, X, y, margin=3.0)
    torch.testing.assert_close(gradient, plain)


def test_hinge_at_exactly_zero_has_no_gradient() -> None:
    X = torch.tensor([[0.0], [1.0], [3.0], [4.0]], requires_grad=True)
    value, gradient = value_and_gradient(structured_hinge_loss, X, torch.tensor([0, 0, 1, 1]))  # 1 - 2 + 1 = 0
    assert value == 0
    assert (gradient == 0).all()


@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_computes_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    X, y = batch(48, 32, 8, dtype=torch.float32, scale=4.0)
    expected, expected_gradient = value_and_gradient(loss, X, y)
    with torch.autocast("cpu", dtype=dtype):
        value, gradient = value_and_gradient(loss, X, y)
    assert value.dtype == torch.float32
    assert value == expected
    assert torch.equal(gradient, expected_gradient)


@pytest.mark.parametrize(
    "setting",
    [
        'torch.set_float32_matmul_precision("medium")',
        'torch.backends.fp32_precision = "tf32"',
        'torch.backends.mkldnn.matmul.fp32_precision = "bf16"',
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    ],
)
def test_reduced_matmul_precision_is_not_used(setting: str) -> None:
    """Run in a new process: torch does not let a process return from the new settings to the old ones."""
    code = f"""
import torch
from liftedstruct import lifted_struct_loss
X = 4 * torch.randn(48, 32, generator=torch.Generator().manual_seed(0))
expected = lifted_struct_loss(X, torch.arange(48) // 4)
{setting}
before = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
assert lifted_struct_loss(X, torch.arange(48) // 4) == expected
assert (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compile_without_a_graph_break(loss: Loss, backend: str) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    torch.compiler.reset()
    X, y = batch(32, 8, 8, dtype=torch.float32)
    layer = torch.nn.Linear(8, 4)

    def step(x: Tensor, labels: Tensor) -> Tensor:
        return loss(layer(x), labels) * 2

    expected, expected_gradient = value_and_gradient(step, X, y)
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    value, gradient = value_and_gradient(compiled, X, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    with pytest.raises(ValueError, match="row 3 holds nan"):
        compiled(torch.where(torch.arange(32)[:, None] == 3, torch.nan, X.detach()), y)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
def test_torch_compile_of_transposed_embeddings_and_of_any_size(loss: Loss) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda x, y, margin: loss(x.T, y, margin), fullgraph=True, dynamic=True, backend="aot_eager")
    for m, margin in ((12, 1.0), (20, 0.5)):
        X, y = batch(4, m, 1)[0], torch.arange(m) // 4
        expected, expected_gradient = value_and_gradient(lambda x, m=margin, y=y: loss(x.T, y, m), X)
        value, gradient = value_and_gradient(lambda x, m=margin, y=y: compiled(x, y, m), X)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(gradient, expected_gradient)
    transposed = batch(4, 12, 1)[0].detach().T
    settings = (1.0, 1 << 20, True) if loss is lifted_struct_loss else (1.0, False, 1 << 20, True)
    operator = getattr(torch.ops.liftedstruct, loss.__name__.removesuffix("_loss")).default
    torch.library.opcheck(
        operator, (transposed, torch.arange(12) // 4, *settings), test_utils=("test_schema", "test_faketensor")
    )


@pytest.mark.parametrize("device", ["cuda", "mps"])
@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
def test_devices(loss: Loss, device: str) -> None:
    if not getattr(torch, device).is_available():
        pytest.skip(f"{device} is not available")
    X, y = batch(64, 16, 10, dtype=torch.float32)
    expected, expected_gradient = value_and_gradient(loss, X, y)
    value, gradient = value_and_gradient(loss, X.detach().to(device).requires_grad_(), y)
    torch.testing.assert_close(value.cpu(), expected)
    torch.testing.assert_close(gradient.cpu(), expected_gradient)


def test_functional_gradient() -> None:
    X, y = batch(12, 3, 4)
    _, expected = value_and_gradient(lifted_struct_loss, X, y)
    torch.testing.assert_close(torch.func.grad(lambda x: lifted_struct_loss(x, y))(X.detach()), expected)


def test_gradient_can_be_asked_for_twice_and_is_scaled() -> None:
    X, y = batch(12, 3, 4)
    value = lifted_struct_loss(X, y)
    (once,) = torch.autograd.grad(value, X, retain_graph=True)
    (scaled,) = torch.autograd.grad(3 * value, X)
    torch.testing.assert_close(scaled, 3 * once)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["random", "collapsed", "clusters"])
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads peak memory from /proc")
def test_a_whole_set_in_bounded_memory(kind: str) -> None:
    scale = {"random": 1, "collapsed": 0, "clusters": 1e-3}[kind]
    code = f"""
import re, torch
from pathlib import Path
from liftedstruct import lifted_struct_loss
def status(field): return 1024 * int(re.search(field + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
X = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)) * {scale}
X = (X + {20 if kind == "clusters" else 0} * (torch.arange(4000) % 3)[:, None]).requires_grad_()
lifted_struct_loss(X[:64], torch.arange(64) // 4).backward()
before = status("VmRSS")
lifted_struct_loss(X, torch.arange(4000) // 4, max_bytes=4_000_000).backward()
print(status("VmHWM") - before)
"""
    tidy = {**os.environ, "MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}  # glibc returns freed memory at once
    extra = int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=tidy).stdout)
    assert extra < 0.75 * 4000 * 4000 * 4  # size of the matrix that is not built


@pytest.mark.parametrize("plus", [None, False, True])
@pytest.mark.parametrize("temperature", [0.05, 0.5, 3.0])
def test_temperature_divides_the_distances(temperature: float, plus: bool | None) -> None:
    X, y = batch(24, 5, 6, scale=0.2)
    loss, options = (lifted_struct_loss, {}) if plus is None else (structured_hinge_loss, {"plus": plus})
    value, gradient = value_and_gradient(loss, X, y, 1.0, temperature, **options)
    expected, expected_gradient = value_and_gradient(loss, X.detach().div(temperature).requires_grad_(), y, **options)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient / temperature)
    points, labels = X.detach().numpy() / temperature, y.tolist()
    by_loops = algorithm_1.smooth(points, labels, 1.0) if plus is None else algorithm_1.structured(points, labels, 1.0, plus)
    assert value.item() == pytest.approx(by_loops, rel=1e-12)


@pytest.mark.parametrize("loss", [lifted_struct_loss, structured_hinge_loss])
def test_gradcheck_with_a_temperature(loss: Loss) -> None:
    X, y = batch(9, 3, 3)
    assert torch.autograd.gradcheck(lambda x: loss(x, y, 1.0, 0.7), X)
    assert torch.autograd.gradgradcheck(lambda x: loss(x, y, 1.0, 0.7), X)


@pytest.mark.parametrize("temperature", [0, -1.0, math.nan, math.inf, "1", None])
def test_bad_temperature(temperature: Any) -> None:
    for make in (LiftedStructLoss, StructuredHingeLoss):
        with pytest.raises(ValueError, match="temperature must be a finite number > 0"):
            make(temperature=temperature)
    with pytest.raises(ValueError, match="temperature"):
        lifted_struct_loss(torch.zeros(2, 2), [0, 0], temperature=temperature)


def test_modules_are_the_functions() -> None:
    X, y = batch(16, 4, 4)
    assert LiftedStructLoss(margin=0.5, temperature=0.3)(X, y) == lifted_struct_loss(X, y, 0.5, 0.3)
    hinge = StructuredHingeLoss(margin=0.5, temperature=0.3, plus=True)
    assert hinge(X, y) == structured_hinge_loss(X, y, 0.5, 0.3, plus=True)
    assert LiftedStructLoss().layout is StructuredHingeLoss().layout is None
    assert repr(LiftedStructLoss()) == "LiftedStructLoss(margin=1.0, temperature=1.0)"
    assert repr(StructuredHingeLoss()) == "StructuredHingeLoss(margin=1.0, temperature=1.0, plus=False)"


def test_learning_happens() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.arange(40) // 4
    X = torch.nn.Parameter(torch.randn(40, 3, generator=generator))
    optimizer = torch.optim.Adam([X], lr=0.2)
    first = lifted_struct_loss(X, y).item()
    for _ in range(200):
        optimizer.zero_grad()
        lifted_struct_loss(X, y).backward()
        optimizer.step()
    nearest = torch.cdist(X, X).fill_diagonal_(torch.inf).argmin(dim=1)
    assert lifted_struct_loss(X, y).item() < first / 4
    assert (y[nearest] == y).all()
