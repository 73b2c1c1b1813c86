"""A catalog served on a free port of the loopback interface, for tests with a browser."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from liftedstruct.catalog import Catalog
from liftedstruct.service import create_app

__all__ = ["served"]


@contextmanager
def served(catalog: Catalog, **options: Any) -> Iterator[str]:
    """Serve the explorer of a catalog, and return its address, such as "http://127.0.0.1:49152"."""
    app = create_app(catalog, **{"explorer": True, "log": lambda line: None, **options})
    server = uvicorn.Server(uvicorn.Config(app, ws="none", log_level="error", access_log=False, timeout_graceful_shutdown=2))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        end = time.monotonic() + 60
        while not (server.started and app.state.service.ready):
            assert thread.is_alive(), "the server has stopped"
            assert time.monotonic() < end, "the server has not started in a minute"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive(), "the server has not stopped"
