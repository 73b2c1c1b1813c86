"""Headless Chromium for the tests, driven by Playwright.

Without a browser the tests are skipped. With LIFTEDSTRUCT_REQUIRE_BROWSER=1 they fail instead.
"""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

__all__ = ["Watch", "find_browser", "launched", "open_file", "watched"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--force-color-profile=srgb", "--hide-scrollbars")


@dataclass
class Watch:
    """Console errors and requests of a page; `check` fails if there are any.

    Attributes:
        server: address whose requests are no failure, such as "http://127.0.0.1:8765".
        expected: regular expression of console messages that are no failure.
        errors: messages.
        requests: requests to anything else.

    """

    server: str | None = None
    expected: str | None = None
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        known = self.expected is not None and re.search(self.expected, message.text)
        if message.type in ("error", "warning") and not known:
            self.errors.append(f"{message.type}: {message.text}")

    def on_request(self, request: Request) -> None:
        own = request.url.startswith(("data:", "blob:", "about:"))
        opened = request.url.startswith("file:") and request.is_navigation_request() and request.resource_type == "document"
        served = self.server is not None and request.url.startswith(f"{self.server}/")
        if not own and not opened and not served:
            self.requests.append(f"request of a {request.resource_type}: {request.url}")

    def check(self) -> None:
        seen = [*self.errors, *self.requests]
        assert not seen, "the page logged an error or made a request:\n" + "\n".join(seen)


def find_browser() -> str | None:
    """Return LIFTEDSTRUCT_BROWSER, or the first known browser in PATH."""
    named = os.environ.get("LIFTEDSTRUCT_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def no_browser() -> NoReturn:
    """Skip the test, or fail it if a browser is required."""
    reason = "NO BROWSER, the report is NOT tested: install chromium, or set LIFTEDSTRUCT_BROWSER"
    if os.environ.get("LIFTEDSTRUCT_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{reason} (LIFTEDSTRUCT_REQUIRE_BROWSER=1)")
    pytest.skip(reason)


@contextmanager
def launched() -> Iterator[Browser]:
    """Launch the browser with a new profile."""
    path = find_browser()
    if path is None:
        no_browser()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched(browser: Browser, server: str | None = None, expected: str | None = None, **settings: object) -> Iterator[Page]:
    """Open a page that must not log errors or make requests to another server.

    `settings` are passed to Playwright's `new_context`.
    """
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})  # type: ignore[arg-type]
    page, watch = context.new_page(), Watch(server, expected)
    page.set_default_timeout(10_000)
    page.on("console", watch.on_console)
    page.on("pageerror", lambda error: watch.errors.append(f"exception: {error}"))
    page.on("request", watch.on_request)
    try:
        yield page
        watch.check()
    finally:
        context.close()


def open_file(page: Page, path: Path) -> None:
    """Open a local file."""
    page.goto(path.resolve().as_uri())
