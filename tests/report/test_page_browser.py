"""The report in a browser: no errors, phone width, dark mode, keyboard and printing."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser import open_file
from liftedstruct.report.page import write_report
from report.runs import NASTY, embeddings, save_evaluated, squares, write_run

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a report of two runs with hostile class names."""
    folder = tmp_path_factory.mktemp("page")
    packed = squares(folder / "squares", classes=7, images=4, names=NASTY)
    run = write_run(folder / "run", packed, embeddings(packed, spread=3.0), steps=50)
    save_evaluated(embeddings(packed, spread=6.0, dim=12), folder / f"{'<b>&' * 20}.npz")
    return write_report([run, folder / f"{'<b>&' * 20}.npz"], folder / "report.html", progress=False)


def test_names_are_shown_and_run_nothing(browser_page: Page, file: Path) -> None:
    open_file(browser_page, file)
    assert browser_page.evaluate("window.hit") is None
    for name in NASTY:
        shown = browser_page.locator(".gallery bdi.name", has_text=" ".join(name.split()))
        assert shown.count() > 0
    assert browser_page.locator(".gallery script, .gallery b, .numbers b").count() == 0
    expect(browser_page.get_by_role("heading", level=1)).to_contain_text("Recall@1 on")
    expect(browser_page.locator(".warnings li")).to_have_text("The training of run is not finished: step 20 of 50.")


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_screen(new_page: Callable[..., Page], file: Path, width: int) -> None:
    page = new_page(viewport={"width": width, "height": 844}, is_mobile=width < 500, has_touch=width < 500)
    open_file(page, file)
    page.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sizes = page.evaluate("[...document.querySelectorAll('.near img')].map(each => each.getBoundingClientRect().width)")
    assert min(sizes) >= 40


def test_dark(new_page: Callable[..., Page], file: Path) -> None:
    light, dark = new_page(color_scheme="light"), new_page(color_scheme="dark")
    for page in (light, dark):
        open_file(page, file)
        assert contrast(style(page, "body", "backgroundColor"), style(page, "h1", "color")) > 7
        assert contrast(style(page, "body", "backgroundColor"), style(page, ".lead", "color")) > 4.5
        assert style(page, "body", "color") in strokes(page)  # axes use the text color of the page
    for selector in ("body", "#figure-recall .sheet", ".dot"):
        assert style(light, selector, "backgroundColor") != style(dark, selector, "backgroundColor")
    assert "rgb(122, 31, 162)" in strokes(light)  # lifted structured
    assert "rgb(122, 31, 162)" not in strokes(dark)
    dark.emulate_media(media="print")  # print is always light
    assert style(dark, "body", "backgroundColor") == "rgb(255, 255, 255)"
    assert "rgb(122, 31, 162)" in strokes(dark)
    assert contrast("rgb(255, 255, 255)", style(dark, ".lead", "color")) > 7


def style(page: Page, selector: str, name: str) -> str:
    return str(page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{name}"))


def strokes(page: Page) -> set[str]:
    """Return the colors of the lines of a figure."""
    return set(page.evaluate("[...document.querySelectorAll('#figure-recall path')].map(p => getComputedStyle(p).stroke)"))


def test_by_keys_alone(browser_page: Page, file: Path) -> None:
    open_file(browser_page, file)
    browser_page.keyboard.press("Tab")
    expect(browser_page.get_by_role("link", name="Skip to content")).to_be_focused()
    assert browser_page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]
    browser_page.keyboard.press("Enter")
    assert browser_page.evaluate("location.hash") == "#main"
    for name in ("Scores", "Map", "Galleries", "Figures", "How the loss works", "Protocol"):
        link = browser_page.get_by_role("navigation").get_by_role("link", name=name)
        link.focus()
        browser_page.keyboard.press("Enter")
        section = browser_page.get_by_role("heading", level=2, name=name)
        expect(section).to_be_in_viewport()
    summary = browser_page.locator("summary")
    summary.focus()
    expect(browser_page.locator("#figure-mining")).to_be_hidden()
    browser_page.keyboard.press("Enter")
    expect(browser_page.locator("#figure-mining")).to_be_visible()


def test_wide_things_scroll_by_keys(new_page: Callable[..., Page], file: Path) -> None:
    page = new_page(**PHONE)
    open_file(page, file)
    for region in (page.get_by_role("region", name="Table of scores"), page.locator("#figure-training .sheet")):
        region.focus()
        assert region.evaluate("each => each.scrollWidth > each.clientWidth")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("each => each.scrollLeft > 0", arg=region.element_handle())


def test_to_a_screen_reader(browser_page: Page, file: Path) -> None:
    open_file(browser_page, file)
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert browser_page.get_by_role(role).count() == 1
    assert browser_page.get_by_role("img", name="Recall@K. Share of images with an image of their class").count() == 1
    table = browser_page.get_by_role("table", name="Scores in percent")
    expect(table.get_by_role("columnheader").first).to_have_text("Run")
    assert table.get_by_role("rowheader").count() == 2


def test_print_opens_what_is_folded(browser_page: Page, file: Path, tmp_path: Path) -> None:
    open_file(browser_page, file)
    expect(browser_page.locator("#figure-networks")).to_be_hidden()
    browser_page.pdf(path=tmp_path / "page.pdf", format="A4")
    expect(browser_page.locator("#figure-networks")).to_be_visible()
    browser_page.emulate_media(media="print")
    browser_page.set_viewport_size({"width": 700, "height": 1000})  # A4 without its margins
    assert browser_page.evaluate("document.documentElement.scrollWidth") <= 700


def contrast(one: str, two: str) -> float:
    """Return the WCAG contrast ratio of two CSS colors."""

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color[4:-1].split(",")]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(two)))
    return (high + 0.05) / (low + 0.05)
