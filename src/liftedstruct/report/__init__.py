"""Runs to one page: read from the disk, drawn, and written as one HTML file that needs nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from liftedstruct.report.page import write_report
    from liftedstruct.report.run_results import read_runs, read_scores

__all__ = ["read_runs", "read_scores", "write_report"]

# Imported when they are first used: the commands are listed where nothing that draws is installed.
_LATER = {
    "read_runs": "liftedstruct.report.run_results",
    "read_scores": "liftedstruct.report.run_results",
    "write_report": "liftedstruct.report.page",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(_LATER[name]), name)
    raise AttributeError(f"module 'liftedstruct.report' has no attribute {name!r}")
