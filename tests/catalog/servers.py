"""Addresses of new stores for tests. Servers are started on loopback and a free port, and stopped afterward."""

from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["new_address"]


def new_address(scheme: str, folder: Path) -> Iterator[str]:
    """Yield the address of a new store."""
    if not scheme:
        yield str(folder / "catalog")
        return
    pytest.skip(f"{scheme} is not available")
