"""A real browser for the tests: Debian's chromium or another of its family, headless, driven by playwright.

Without one the tests are skipped, and say so. With LIFTEDSTRUCT_REQUIRE_BROWSER=1 they fail instead.
"""

import os
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
    """What a page must not do: complain, or ask anybody for anything."""

    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(f"{message.type}: {message.text}")

    def on_request(self, request: Request) -> None:
        own = request.url.startswith(("data:", "blob:", "about:"))
        opened = request.url.startswith("file:") and request.is_navigation_request() and request.resource_type == "document"
        if not own and not opened:
            self.requests.append(f"request of a {request.resource_type}: {request.url}")

    def check(self) -> None:
        seen = [*self.errors, *self.requests]
        assert not seen, "the page complained, or asked for something:\n" + "\n".join(seen)


def find_browser() -> str | None:
    """LIFTEDSTRUCT_BROWSER, or the first of the family that is in PATH."""
    named = os.environ.get("LIFTEDSTRUCT_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


def no_browser() -> NoReturn:
    """Skip the test, or fail it where a browser has to be there."""
    reason = "NO BROWSER, so the page is NOT tested: install chromium, or name one in LIFTEDSTRUCT_BROWSER"
    if os.environ.get("LIFTEDSTRUCT_REQUIRE_BROWSER") == "1":
        pytest.fail(f"{reason} (LIFTEDSTRUCT_REQUIRE_BROWSER=1)")
    pytest.skip(reason)


@contextmanager
def launched() -> Iterator[Browser]:
    """The browser, with a profile that is new each time."""
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
def watched(browser: Browser, **settings: object) -> Iterator[Page]:
    """A page that may neither complain nor ask for anything; ``settings`` are those of playwright's ``new_context``."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **settings})  # type: ignore[arg-type]
    page, watch = context.new_page(), Watch()
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
    """Open a file from the disk, as a person would by a double click."""
    page.goto(path.resolve().as_uri())
