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
) -> None:
    """Answer searches of a catalog over HTTP until it is stopped; its address /docs describes the requests.

    Args:
        store: folder or address of the catalog.
        host: address to listen at; any other than 127.0.0.1 needs --token.
        port: port; 0 for a free one.
        token: secret of at least 16 characters that requests must have, in a header "Authorization: Bearer TOKEN".
        hosts: comma-separated names by which the server is addressed, such as shop.example behind a reverse proxy.
        run: run folder, embedder file or exported folder of the model, if the catalog cannot find its own.
    """
    _serve(store, host, port, token, hosts, run)


def explore(
    store: str,
    decisions: Path = Path("decisions.csv"),
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
        decisions: CSV file for the decisions of the review, created if missing.
        host: address to listen at; any other than 127.0.0.1 needs --token.
        port: port; 0 for a free one.
        token: secret of at least 16 characters that requests must have, in a header "Authorization: Bearer TOKEN".
        hosts: comma-separated names by which the server is addressed, such as shop.example behind a reverse proxy.
        run: run folder, embedder file or exported folder of the model, if the catalog cannot find its own.
        no_browser: do not open the browser.
    """
    _serve(store, host, port, token, hosts, run, decisions.absolute(), not no_browser)


def _serve(
    store: str,
    host: str,
    port: int,
    token: str | None,
    hosts: str | None,
    run: Path | None,
    decisions: Path | None = None,
    browser: bool = False,
) -> None:
    """Run the server; with a file for decisions, it has the pages of the explorer."""
    from liftedstruct.catalog import Catalog
    from liftedstruct.service import check_binding, create_app, run_server
    from liftedstruct.service.guard import LOOPBACK

    check_binding(host, token)
    allowed = (*LOOPBACK, f"[{host}]" if ":" in host else host, *(names("--hosts", hosts) if hosts else ()))
    with Catalog.open(store) as catalog, contextlib.suppress(KeyboardInterrupt):
        if run is not None:
            catalog.use(run)

        def started(address: str) -> None:
            print(f"{catalog.count():,} items of {catalog.address} at {address} (stop with Ctrl-C)", flush=True)
            if browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        app = create_app(catalog, token=token, hosts=allowed, explorer=decisions is not None, decisions=decisions)
        run_server(app, host, port, started)
