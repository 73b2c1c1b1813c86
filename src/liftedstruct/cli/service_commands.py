"""The commands that answer requests until they are stopped: `serve` and `explore`."""

import contextlib
import threading
import webbrowser
from pathlib import Path

from liftedstruct.cli.arguments import names

__all__ = ["explore", "serve"]


def serve(
    store: str,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    hosts: str | None = None,
    run: Path | None = None,
    upload_megabytes: int = 32,
    timeout: float = 30.0,
) -> None:
    """Answer searches of a catalog over HTTP, until it is stopped; the address /docs describes the requests.

    Args:
        store: folder or address of the catalog.
        host: address to listen at; any other than 127.0.0.1 needs --token.
        port: port; 0 for a free one.
        token: secret that requests must have, in the header "Authorization: Bearer TOKEN".
        hosts: comma-separated names by which the server is addressed, such as shop.example behind a reverse proxy.
        run: run folder, embedder file or exported folder of the model, if the catalog cannot find its own.
        upload_megabytes: largest request.
        timeout: seconds after which a request that waits is given up.
    """
    _serve(store, host, port, token, hosts, run, upload_megabytes, timeout)


def explore(
    store: str,
    decisions: Path | None = None,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    hosts: str | None = None,
    run: Path | None = None,
    no_browser: bool = False,
) -> None:
    """Open a catalog in the browser: search by photo, walk the map of all images, and review labels and duplicates.

    Args:
        store: folder or address of the catalog.
        decisions: CSV file for the decisions of the review, created if missing. Default: decisions.csv in the current folder.
        host: address to listen at; any other than 127.0.0.1 needs --token.
        port: port; 0 for a free one.
        token: secret that requests must have, in the header "Authorization: Bearer TOKEN".
        hosts: comma-separated names by which the server is addressed, such as shop.example behind a reverse proxy.
        run: run folder, embedder file or exported folder of the model, if the catalog cannot find its own.
        no_browser: do not open the browser.
    """
    file = decisions or Path("decisions.csv")
    _serve(store, host, port, token, hosts, run, explorer=True, decisions=file.absolute(), browser=not no_browser)


def _serve(
    store: str,
    host: str,
    port: int,
    token: str | None,
    hosts: str | None,
    run: Path | None,
    upload_megabytes: int = 32,
    timeout: float = 30.0,
    explorer: bool = False,
    decisions: Path | None = None,
    browser: bool = False,
) -> None:
    from liftedstruct.catalog import Catalog
    from liftedstruct.service import create_app, run_server
    from liftedstruct.service.guard import LOOPBACK, check_binding

    check_binding(host, token)
    allowed = (*LOOPBACK, host, *(names("--hosts", hosts) if hosts else ()))
    with Catalog.open(store) as catalog:
        if run is not None:
            catalog.use(run)
        app = create_app(
            catalog,
            token=token,
            hosts=allowed,
            explorer=explorer,
            decisions=decisions,
            upload_bytes=upload_megabytes << 20,
            seconds=timeout,
        )

        def started(address: str) -> None:
            print(f"{catalog.count():,} items of {catalog.address} at {address} (stop with Ctrl-C)", flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        with contextlib.suppress(KeyboardInterrupt):
            run_server(app, host, port, started)
