"""Evaluated runs to one HTML report: read from the disk, drawn, and written as one file that needs nothing else."""

from typing import TYPE_CHECKING

from liftedstruct.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from liftedstruct.report.page import write_report
    from liftedstruct.report.run_results import read_runs, read_scores

__all__ = ["read_runs", "read_scores", "write_report"]

# Imported when they are first used: the commands are listed where nothing that draws is installed.
__getattr__ = lazy_names(__name__, {"page": ("write_report",), "run_results": ("read_runs", "read_scores")})
