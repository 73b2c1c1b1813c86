"""The package as a whole: its public names, the direction of its imports, and the cost of an import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import liftedstruct

SOURCE = Path(liftedstruct.__file__).parent

# A stage imports only from itself and the stages above it.
STAGES = [
    "runtime",
    "data",
    *("distances", "losses"),
    *("retrieval", "samplers", "clustering", "projection"),
    *("trunks", "encoding", "embedder", "embeddings", "evaluation", "training", "estimator"),
    "review",
    *("exporting", "catalog"),
    *("figures", "report"),
    "service",
    *("recipes", "cli", "__main__"),
]

PUBLIC = [
    "BalancedSampler",
    "BatchInspection",
    "Catalog",
    "Comparison",
    "ContrastiveLoss",
    "Embedder",
    "Embeddings",
    "HardNegativeSampler",
    "ImageSet",
    "LiftedEmbedding",
    "LiftedStructLoss",
    "PackedImages",
    "PairSampler",
    "Run",
    "Sampler",
    "Scores",
    "StructuredHingeLoss",
    "TrainConfig",
    "TripletLoss",
    "TripletSampler",
    "affinity_propagation",
    "check_dataset",
    "compare",
    "contrastive_loss",
    "embed",
    "evaluate",
    "evaluate_file",
    "export",
    "inspect_batch",
    "kmeans",
    "lifted_struct_loss",
    "load",
    "load_config",
    "map_at_r",
    "nearest_neighbors",
    "nmi",
    "open_embedder",
    "pairwise_f1",
    "precision_at_1",
    "prepare",
    "r_precision",
    "read_images",
    "recall_at_k",
    "retrieval_recall",
    "structured_hinge_loss",
    "train",
    "triplet_loss",
    "tsne",
]


def modules() -> list[Path]:
    return sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def imports(path: Path) -> set[str]:
    """Return the modules of the package that a file imports, anywhere in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            whole = node.module == "liftedstruct"
            found |= {f"{node.module}.{alias.name}" if whole else f"{node.module}" for alias in node.names}
    return {name.split(".", 1)[1] for name in found if name.startswith("liftedstruct.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    assert own in STAGES, f"{own} is missing from STAGES"
    for name in imports(path) - {"__version__"}:
        stage = name.split(".")[0]
        assert STAGES.index(stage) <= STAGES.index(own), f"{own} imports {stage}, which comes after it"
        if own == "losses" and stage == "losses" and path.name != "__init__.py":
            assert name == "losses.closed_form", "a loss must not import another loss"


def test_public_surface() -> None:
    assert liftedstruct.__all__ == sorted(PUBLIC)
    assert all(hasattr(liftedstruct, name) for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(liftedstruct))
    exported = {name for name in vars(liftedstruct) if not name.startswith("_")}
    submodules = {path.stem if path.name != "__init__.py" else path.parent.name for path in modules()}
    assert exported - submodules - set(PUBLIC) == {"TYPE_CHECKING", "lazy_names"}
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = liftedstruct.nothing


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_all_is_sorted_and_exists(path: Path) -> None:
    if path.name == "__main__.py":
        return
    name = ".".join(("liftedstruct", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    module = importlib.import_module(name)
    names = getattr(module, "__all__", None)
    if names is None:
        assert not [node for node in ast.parse(path.read_text()).body if not isinstance(node, ast.Expr)], (
            "the module needs an __all__"
        )
        return
    assert sorted(names) == sorted(set(names))
    assert all(hasattr(module, public) for public in names)
    assert module.__doc__


def test_import_and_a_loss_load_torch_and_numpy_and_nothing_else() -> None:
    code = """
import sys, time
import numpy, torch
before, start = set(sys.modules), time.perf_counter()
import liftedstruct
seconds = time.perf_counter() - start
X = torch.randn(4, 2, requires_grad=True)
liftedstruct.lifted_struct_loss(X, [0, 0, 1, 1]).backward()
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(seconds, *sorted(new - set(sys.stdlib_module_names)))
"""
    times = []
    for _ in range(3):  # best of three: the machine may be busy
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        seconds, *loaded = done.stdout.split()
        assert set(loaded) <= {"liftedstruct", "numpy", "torch"}
        times.append(float(seconds))
    assert min(times) < 0.2


def test_typed() -> None:
    assert (SOURCE / "py.typed").exists()


def test_no_two_modules_or_public_classes_of_one_name() -> None:
    stems = [path.stem for path in modules() if path.name != "__init__.py"]
    assert len(stems) == len(set(stems))
    classes = [
        node.name
        for path in modules()
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert len(classes) == len(set(classes))


def test_packages_are_found_by_attribute() -> None:
    for name in ("data", "training", "evaluation", "samplers", "losses"):
        assert getattr(liftedstruct, name).__name__ == f"liftedstruct.{name}"
