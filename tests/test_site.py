"""The documentation site: it builds without warnings, loads nothing from other hosts, and its figures match the code."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["--strict", "--config-file", str(ROOT / "mkdocs.yml"), "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options], env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


def test_every_page_is_there(site: Path) -> None:
    pages = {page.stem for page in DOCS.glob("*.md")}
    assert pages == {page.stem for page in site.glob("*.html")} - {"404"}
    assert not list(site.rglob("*.py"))


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loading = r"<(?:script|img|iframe|link|source|video)\b[^>]*?(?:src|href)=\"?((?:https?:)?//[^\"\s>]+)"
    for page in site.glob("*.html"):
        assert re.findall(loading, page.read_text()) == [], page
        assert "mermaid" not in page.read_text()  # the theme would load it from another host
    for style in site.rglob("*.css"):
        assert re.findall(r"url\(['\"]?(?:https?:)?//", style.read_text()) == [], style


def test_equations_are_mathml(site: Path) -> None:
    text = (site / "loss.html").read_text()
    assert (
        text.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">')
        == (DOCS / "loss.md").read_text().count("$$\n") // 2
    )
    assert "arithmatex" not in text
    assert "<mi>𝒫</mi>" in text


@pytest.mark.parametrize("latex", [r"\unheard{x}", r"\begin{aligned} a &= b \end{aligned}", r"\mathbf x"])
def test_an_equation_that_browsers_would_not_show(latex: str) -> None:
    with pytest.raises(ValueError, match=r"^an equation must use LaTeX that .* support, got .* Simplify it\.$"):
        load("equations").as_mathml(latex)


def test_figures_are_those_of_the_code(tmp_path: Path) -> None:
    figures = load("figures")
    figures.draw_illustrations(tmp_path)
    for kind in figures.ILLUSTRATIONS:
        (now, numbers), (kept, kept_numbers) = (taken_apart(folder / f"{kind}.svg") for folder in (tmp_path, DOCS / "figures"))
        assert now == kept, f"{kind} has changed. Run: python docs/figures.py"
        assert numbers == pytest.approx(kept_numbers, abs=0.5), f"{kind} has changed. Run: python docs/figures.py"


def taken_apart(file: Path) -> tuple[str, list[float]]:
    """Return the elements of an SVG file, and its numbers in points, which may differ slightly between machines."""
    text = re.sub(r"#?\b[mp][0-9a-f]{10}\b", "", file.read_text())  # ids derived from numbers
    number = r"-?\d+\.\d+|(?<![\w#.-])-?\d+(?![\w.])"
    return re.sub(number, "0", text), [float(each) for each in re.findall(number, text)]


def test_pictures_of_products(tmp_path: Path) -> None:
    load("figures").draw_products(tmp_path, classes=6, trunk="small")
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in (DOCS / "figures").glob("*.jpg")}
