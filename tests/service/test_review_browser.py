"""The tab Review in a browser: keys, mouse and touch, undo, the file of decisions, accessibility."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Locator, Page, expect

from browser import watched
from catalog.shop import make_embedder
from liftedstruct.catalog import Catalog
from liftedstruct.data import read_decisions
from service.reviewed import WRONG, make_catalog
from service.served import served

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
Open = Callable[..., Page]


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with make_catalog(tmp_path_factory.mktemp("review") / "photos") as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "decisions.csv"


@pytest.fixture
def open_page(browser: Browser, catalog: Catalog, file: Path) -> Iterator[Open]:
    with ExitStack() as stack:
        address = stack.enter_context(served(catalog, decisions=file))

        def make(hash: str = "#review", **settings: Any) -> Page:
            page = stack.enter_context(watched(browser, address, **settings))
            page.goto(f"{address}/{hash}")
            expect(page.locator(".subject > *").first).to_be_visible(timeout=60_000)
            return page

        yield make


def subject(page: Page) -> Locator:
    return page.locator(".first .id")


def action(page: Page, name: str) -> Locator:
    return page.locator(f".review [data-action={name}]")


def actions(file: Path) -> list[str]:
    return [each.action for each in read_decisions(file)] if file.exists() else []


def test_keys_decide_and_undo(open_page: Open, file: Path) -> None:
    page = open_page("#review?kind=labels")
    first, second = (page.locator(".queue .row").nth(i) for i in range(2))
    expect(subject(page)).to_have_text(next(iter(WRONG)) if "product 1" in first.inner_text() else list(WRONG)[1])
    name = subject(page).inner_text()
    page.keyboard.press("j")
    expect(subject(page)).not_to_have_text(name)
    expect(second).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowUp")  # scrolls
    expect(second).to_have_attribute("aria-current", "true")
    page.keyboard.press("ArrowLeft")
    expect(subject(page)).to_have_text(name)
    page.keyboard.press("a")
    expect(first).to_contain_text(f"✓ relabeled to {WRONG[name][1]}")
    expect(second).to_have_attribute("aria-current", "true")
    [line] = read_decisions(file)
    assert (line.action, line.id, line.value) == ("relabel", name, WRONG[name][1])
    page.keyboard.press("d")
    expect(second).to_contain_text("✓ dropped")
    assert actions(file) == ["relabel", "drop"]
    expect(page.locator(".made h3")).to_have_text("2 decisions")
    page.keyboard.press("u")
    expect(second).not_to_contain_text("dropped")
    page.keyboard.press("u")
    expect(subject(page)).to_have_text(name)
    expect(first).not_to_contain_text("relabeled")
    assert actions(file) == []
    page.keyboard.press("x")
    expect(first).to_contain_text("✓ kept")
    assert actions(file) == ["keep"]


def test_another_product_is_typed(open_page: Open, file: Path) -> None:
    page = open_page("#review?kind=labels")
    page.keyboard.press("r")
    field = page.get_by_label("Product", exact=True)
    expect(field).to_be_focused()
    expect(page.locator("datalist option").first).to_be_attached()
    field.fill("kettle <b>7</b> a d u")
    page.keyboard.press("Escape")
    expect(action(page, "relabel")).to_be_focused()
    page.keyboard.press("m")
    page.keyboard.type("product 5")  # the suggestion is selected
    page.keyboard.press("Enter")
    expect(page.locator(".queue .row").first).to_contain_text("✓ merged")
    page.keyboard.press("r")
    page.get_by_label("Product", exact=True).fill("<img src=x>")
    page.get_by_role("button", name="Relabel", exact=True).click()
    expect(page.locator(".queue")).to_contain_text("✓ relabeled to <img src=x>")
    assert [(each.action, each.value) for each in read_decisions(file)] == [("merge", "product 5"), ("relabel", "<img src=x>")]


def test_mouse_lists_links_and_the_file(open_page: Open, file: Path) -> None:
    page = open_page()
    page.get_by_role("button", name="Near duplicates").click()
    expect(page.locator(".subject h2")).to_contain_text("Nearly the same image")
    expect(page.locator(".first img")).to_have_js_property("complete", True)
    assert page.locator(".first img").evaluate("image => image.naturalWidth") > 0
    action(page, "accept").click()
    expect(page.locator(".made h3")).to_have_text("1 decision")
    with page.expect_download() as download:
        page.get_by_role("link", name=str(file)).click()
    assert Path(download.value.path()).read_bytes() == file.read_bytes()
    expect(page.locator(".made code")).to_contain_text(f"--decisions {file}")
    page.get_by_role("button", name="Test leaks").click()
    expect(page.locator(".subject h2")).to_contain_text("in the test part and in another")
    page.locator(".first .open").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("d")  # not for the list behind the sheet
    assert actions(file) == ["drop"]


def test_a_link_opens_its_suggestion(open_page: Open) -> None:
    page = open_page("#review?kind=labels")
    page.keyboard.press("j")
    name, link = subject(page).inner_text(), page.url
    page.goto("about:blank")
    page.goto(link)
    expect(subject(page)).to_have_text(name)


def test_an_empty_list_says_so(open_page: Open) -> None:
    page = open_page("#review?kind=outliers")
    expect(page.locator(".subject")).to_contain_text("Nothing to review")
    page.keyboard.press("a")
    page.keyboard.press("j")


def test_touch_on_a_phone(open_page: Open, file: Path) -> None:
    page = open_page("#review?kind=labels", **PHONE)
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [390, 390]
    action(page, "accept").tap()
    expect(page.locator(".queue .row.done")).to_have_count(1)
    action(page, "next").tap()
    action(page, "undo").tap()
    expect(page.locator(".queue .row.done")).to_have_count(0)
    assert actions(file) == []
    for each in page.locator(".doing button").all():
        box = each.bounding_box()
        assert box is not None
        assert box["height"] >= 40


@pytest.mark.parametrize("settings", [{}, {"color_scheme": "dark"}, PHONE])
def test_accessibility(open_page: Open, settings: dict[str, Any]) -> None:
    page = open_page("#review?kind=labels", **settings)
    page.keyboard.press("x")
    expect(page.locator(".row.done")).to_have_count(1)
    expect(page.locator(".live")).to_contain_text("kept")
    found = Axe().run(page).response["violations"]
    assert [(each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")] == []


def test_an_empty_catalog(browser: Browser, tmp_path: Path) -> None:
    with Catalog.open(tmp_path / "shop", make_embedder()) as catalog:
        catalog.add_vectors(["a"], np.ones((1, 8), np.float32))
        catalog.remove(["a"])
        with served(catalog, decisions=tmp_path / "d.csv") as address, watched(browser, address) as page:
            page.goto(f"{address}/#review")
            expect(page.locator(".subject")).to_contain_text("Nothing to review", timeout=60_000)
