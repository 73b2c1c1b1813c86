"""Runs to one page: read from the disk, drawn, and written as one HTML file that needs nothing else."""

from liftedstruct.report.page import write_report
from liftedstruct.report.run_results import read_runs, read_scores

__all__ = ["read_runs", "read_scores", "write_report"]
