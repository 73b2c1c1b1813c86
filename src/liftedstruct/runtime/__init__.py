"""Shared utilities: argument checks, settings, files, threads, memory, progress, compiled loops, optional packages."""
