"""A real server in a thread, on the loopback interface."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx

from liftedstruct.catalog import Catalog
from liftedstruct.service.app import create_app
from liftedstruct.service.guard import server_of

__all__ = ["Running", "client_of", "running", "wait_ready"]


class Running(NamedTuple):
    """A server: its port, a client, its log and a function that asks it to stop."""

    port: int
    client: httpx.Client
    log: list[str]
    server: Any
    thread: threading.Thread

    def stop(self) -> None:
        self.server.should_exit = True


@contextmanager
def client_of(catalog: Catalog, **options: Any) -> Iterator[httpx.Client]:
    """A client of a new server."""
    with running(catalog, **options) as found:
        yield found.client


@contextmanager
def running(catalog: Catalog, **options: Any) -> Iterator[Running]:
    """A server on a free port of the loopback interface."""
    log: list[str] = []
    server = server_of(create_app(catalog, log=log.append, **options))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
        thread.start()
        headers = {"Authorization": f"Bearer {options['token']}"} if options.get("token") else {}
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30) as client:
                wait_ready(client)
                yield Running(port, client, log, server, thread)
        finally:
            server.should_exit = True
            thread.join(60)
            assert not thread.is_alive()


def wait_ready(client: httpx.Client) -> None:
    for _ in range(1000):
        if client.get("/ready").status_code == 200:
            return
        time.sleep(0.02)
    raise TimeoutError("the service is not ready")
