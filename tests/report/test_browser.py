"""The harness itself: it sees what it is there to see."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser import open_file, watched


def test_a_quiet_page(browser_page: Page, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text("<title>quiet</title><img alt='' src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>")
    open_file(browser_page, tmp_path / "a.html")
    assert browser_page.title() == "quiet"


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("<script>console.error('aha')</script>", "error: aha"),
        ("<script>console.warn('aha')</script>", "warning: aha"),
        ("<script>null.x</script>", "exception: Cannot read properties of null"),
        ("<script>setTimeout(() => fetch('http://127.0.0.1:8/x'))</script>", "request of a fetch: http://127.0.0.1:8/x"),
        ("<img src='http://127.0.0.1:8/x.png'>", "request of a image: http://127.0.0.1:8/x.png"),
        ("<link rel=stylesheet href='other.css'>", "request of a stylesheet: file:"),
        ("<script src='other.js'></script>", "request of a script: file:"),
    ],
)
def test_what_is_seen(browser: Browser, tmp_path: Path, body: str, seen: str) -> None:
    (tmp_path / "a.html").write_text(f"<!doctype html><body>{body}")

    def look() -> None:
        with watched(browser) as page:
            open_file(page, tmp_path / "a.html")
            page.wait_for_timeout(50)

    with pytest.raises(AssertionError) as caught:
        look()
    assert seen in str(caught.value)
