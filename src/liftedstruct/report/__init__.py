"""HTML report of evaluated runs, as one self-contained file."""

from typing import TYPE_CHECKING

from liftedstruct.runtime.lazy import lazy_names

if TYPE_CHECKING:
    from liftedstruct.report.page import write_report
    from liftedstruct.report.run_results import read_runs, read_scores

__all__ = ["read_runs", "read_scores", "write_report"]

# Imported on first use, so that the CLI works without the packages for figures.
__getattr__ = lazy_names(__name__, {"page": ("write_report",), "run_results": ("read_runs", "read_scores")})
