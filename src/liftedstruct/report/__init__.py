"""Runs to one page: read from the disk, drawn, and written as one HTML file that needs nothing else."""
