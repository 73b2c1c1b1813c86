"""Shared by all tests: one browser, since Playwright runs once in a process, and time limits for slow machines."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import settings
from playwright.sync_api import Browser, Page, expect

from browser import launched, watched

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
expect.set_options(timeout=30_000)  # milliseconds, on a busy machine


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with launched() as running:
        yield running


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Return a function that opens pages with settings such as viewport and color_scheme; all are checked at the end."""
    with ExitStack() as pages:
        yield lambda **settings: pages.enter_context(watched(browser, **settings))


@pytest.fixture
def browser_page(new_page: Callable[..., Page]) -> Page:
    """Open a page of 1280 x 800; the test fails if it logs an error or a warning, or makes a request."""
    return new_page()
