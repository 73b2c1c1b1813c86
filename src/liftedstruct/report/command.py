"""The commands ``liftedstruct report`` and ``liftedstruct figure``; what draws is imported when one of them is called."""

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from liftedstruct.runtime.checks import check_count, check_out, pick

__all__ = ["figure_command", "report_command"]

MOST_DPI = 1200  # a figure of ten inches has 144 million pixels then


def report_command(runs: list[Path], out: Path, max_mb: float = 80.0, title: str | None = None) -> None:
    """Turn runs into one page to look at: a single HTML file, with nothing to install and nothing to load.

    Args:
        runs: folders of runs that hold embeddings.npz, or .npz files of embeddings; the first trained one is compared with all.
        out: .html file to write.
        max_mb: the file's size at most, in megabytes; more room makes the pictures of the map larger.
        title: of the page; by default the name of the data.
    """
    from liftedstruct.report.page import write_report

    file = write_report(runs, out, title=title, max_mb=max_mb)
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")


def figure_command(
    kind: str,
    out: Path,
    runs: list[Path] = [],  # noqa: B006, read only
    count: int | None = None,
    seed: int | None = None,
    side: int | None = None,
    dpi: int = 200,
) -> None:
    """Draw one figure, as PNG, SVG or PDF.

    Args:
        kind: of the figure (see "liftedstruct list figures").
        runs: folders of runs that hold embeddings.npz, or .npz files of embeddings; some figures need none.
        out: file to write; its ending says the format.
        count: how many queries or classes to show, where there is a choice.
        seed: of what is drawn at random.
        side: of a map, in pixels.
        dpi: dots per inch, of PNG files.
    """
    from liftedstruct.figures import FIGURES
    from liftedstruct.figures.style import FORMATS, save_figure

    draw = pick(FIGURES, kind, "the kind of a figure")
    check_out("--out", out)
    ending = pick(FORMATS, out.suffix.lower(), "the ending of a figure's file")
    if ending == "svg" and kind == "map":
        raise ValueError(f"a map is made of pixels and must be a .png or .pdf file, got {out}. Choose one of the two.")
    if check_count("--dpi", dpi) > MOST_DPI:
        raise ValueError(f"--dpi must be at most {MOST_DPI:,}, got {dpi:,}. Save as .svg or .pdf to print larger.")
    given = {"count": count, "seed": seed, "side": side}
    options = _options(kind, draw, {name: value for name, value in given.items() if value is not None})
    picture = draw(*_subjects(kind, draw, runs), **options)
    print(save_figure(picture, out, dpi))


def _options(kind: str, draw: Callable[..., Any], given: dict[str, int]) -> dict[str, int]:
    """The options that were given; each must be one that the figure has."""
    known = [name for name, parameter in inspect.signature(draw).parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]
    for name in given:
        if name not in known:
            there = " and ".join(f"--{each}" for each in known) or "none"
            raise ValueError(f"--{name} must be for a figure that has it, {kind} has {there}. Leave it out.")
    return given


def _subjects(kind: str, draw: Callable[..., Any], runs: Sequence[Path]) -> list[Any]:
    """What the figure is drawn from: its first argument says whether that is nothing, one run or several."""
    parameters = inspect.signature(draw).parameters
    if not {"subject", "subjects"} & parameters.keys():
        if runs:
            raise ValueError(f"runs must be left out for {kind}, which shows none, got {runs[0]}. Name a file with --out.")
        return []
    if not runs or ("subject" in parameters and len(runs) > 1):
        many = "one or more" if "subjects" in parameters else "one"
        raise ValueError(f"runs must be {many} for {kind}, got {len(runs)}. Name the folder of a run, or an .npz file.")
    from liftedstruct.report.run_results import read_runs

    found = read_runs(runs)
    return [found] if "subjects" in parameters else found
