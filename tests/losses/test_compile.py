import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from liftedstruct import contrastive_loss, triplet_loss


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("loss", "options", "operator", "settings"),
    [
        (contrastive_loss, {"pairs": "all"}, "contrastive", (1.0, True)),
        (contrastive_loss, {"pairs": "rows"}, "contrastive_positives", ()),
        (triplet_loss, {"triplets": "all"}, "triplet", (1.0, False, True)),
        (triplet_loss, {"triplets": "semi-hard"}, "triplet", (1.0, True, True)),
        (triplet_loss, {"triplets": "rows"}, "triplet_negatives", (False,)),
        (triplet_loss, {"triplets": "rows-semi-hard"}, "triplet_negatives", (True,)),
    ],
)
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compile_without_a_graph_break(
    backend: str, loss: Callable[..., Tensor], options: dict[str, str], operator: str, settings: tuple[Any, ...]
) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    torch.compiler.reset()

    def step(x: Tensor, y: Tensor) -> Tensor:
        return 2 * loss(3 * x, y, **options)

    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend=backend)
    for m in (12, 18):
        X = torch.randn(m, 3, generator=torch.Generator().manual_seed(m), dtype=torch.float64, requires_grad=True)
        y = (torch.arange(m) + 1) // 3 % (m // 3)  # 0 0 1 1 1 2 2 2 3 ... 0: rows of triplets, and pairs of both kinds
        value = compiled(X, y)
        torch.testing.assert_close(value, step(X, y))
        torch.testing.assert_close(torch.autograd.grad(value, X), torch.autograd.grad(step(X, y), X))
    with pytest.raises(ValueError, match="row 3 holds nan"):
        compiled(torch.where(torch.arange(m)[:, None] == 3, torch.nan, X.detach()), y)
    if operator == "triplet_negatives":
        with pytest.raises(ValueError, match="in rows 0 to 2"):
            compiled(X, torch.zeros_like(y))
    tensors = (X.detach(), X.detach()[::2, 0], y) if operator == "contrastive_positives" else (X.detach(), y)
    call = getattr(torch.ops.liftedstruct, operator).default, (*tensors, *settings)
    torch.library.opcheck(*call, test_utils=("test_schema", "test_faketensor"))
