"""The explorer in a browser: queries with mouse, touch and keyboard, filters, history, odd catalogs, accessibility."""

import base64
import contextlib
import csv
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from PIL import Image
from playwright.sync_api import Browser, Error, Locator, Page, Route, expect

from browser import watched
from catalog.shop import catalog_of, make_embedder
from liftedstruct.catalog import Catalog
from service.served import served

COLORS = {"red": (214, 40, 40), "green": (40, 160, 70), "blue": (40, 70, 214), "gray": (128, 128, 128)}
HOSTILE = ("<img src=x onerror=alert(1)>", "كرسي (אדום) 12", "two\nlines", "😀" * 40, "w" * 300, "a/../b?c#d%20&e", "O'Neil")
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
NewPage = Callable[..., Page]


def paint(file: Path, *columns: str, shade: int = 0) -> Path:
    """Write an image of vertical stripes."""
    pixels = np.array([COLORS[each] for each in columns], np.uint8)[None] - np.uint8(shade)
    Image.fromarray(pixels.repeat(40, axis=0).repeat(120 // len(columns), axis=1)).save(file)
    return file


def calibrate(catalog: Catalog, threshold: float) -> None:
    with catalog.store.writing():
        catalog.store.write(catalog.record | {"calibration": {"threshold": threshold, "requested": 0.01}})


def make_shop(folder: Path) -> Catalog:
    """Create a catalog of twelve images: of each color three, of two products."""
    folder.mkdir()
    with (folder / "shop.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["path", "id", "product", "category", "price", "maker"])
        for number, color in enumerate(COLORS):
            for i in range(3):
                path = paint(folder / f"{color} {i}.png", color, shade=12 * i)
                table.writerow([path, f"{color}/{i}", f"{color} {min(i, 1)}", color, 10 * number + i, HOSTILE[i]])
    catalog = Catalog.open(folder / "shop", make_embedder(dim=16))
    catalog.add(folder / "shop.csv")
    return catalog


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    with make_shop(tmp_path_factory.mktemp("explorer") / "photos") as catalog:
        calibrate(catalog, 0.1)
        yield catalog


@pytest.fixture(scope="module")
def address(shop: Catalog) -> Iterator[str]:
    with served(shop, decisions=Path(shop.address).parent / "decisions.csv") as found:
        yield found


@pytest.fixture
def open_page(browser: Browser, address: str) -> Iterator[NewPage]:
    """Return a function that opens the explorer of the shop."""
    opened = []

    def make(hash: str = "", expected: str | None = None, **settings: Any) -> Page:
        opened.append(watched(browser, address, expected, **settings))
        page = opened[-1].__enter__()
        page.goto(f"{address}/{hash}")
        expect(page.locator(".answer > *").first).to_be_visible()
        return page

    yield make
    for each in opened:
        each.__exit__(None, None, None)


@pytest.fixture
def page(open_page: NewPage) -> Page:
    return open_page()


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a photo whose left half is red, and whose right half is blue."""
    return paint(tmp_path_factory.mktemp("query") / "half.png", "red", "blue")


def choose(page: Page, photo: Path) -> None:
    page.get_by_label(re.compile("Choose a photo|Another photo")).set_input_files(photo)
    expect(page.locator(".answer header")).to_be_visible()
    settle(page)


def settle(page: Page) -> None:
    """Wait until the answer to the last change is shown."""
    page.wait_for_timeout(300)  # longer than the page waits for further changes
    expect(page.locator(".answer")).not_to_have_attribute("aria-busy", "true")


def shown(page: Page) -> list[str]:
    found: list[str] = page.locator(".card").evaluate_all("cards => cards.map(card => card.dataset.id)")
    return found


def params(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")
    return found


def crop_of(page: Page) -> list[float]:
    return [float(each) for each in params(page)["crop"].split(",")] if "crop" in params(page) else [0, 0, 1, 1]


def best(page: Page) -> str:
    return shown(page)[0].split("/")[0]


# --- queries -------------------------------------------------------------------------------------------------------------


def test_a_photo_that_is_chosen(page: Page, shop: Catalog, tmp_path: Path) -> None:
    photo = paint(tmp_path / "photo of mine.png", "green")
    choose(page, photo)
    [answer] = shop.search(str(photo), k=20)
    assert shown(page) == [match.id for match in answer.matches]
    expect(page.locator(".answer h2")).to_have_text("green 0✓ match")
    expect(page.locator(".verdict")).to_contain_text("within the threshold of 0.1000, calibrated for a false-match rate of 1 %")
    assert answer.margin is not None
    expect(page.locator(".verdict")).to_contain_text(f"The next other product is {answer.margin:#.4g} farther")
    expect(page.locator(".why")).to_contain_text("Euclidean distance in the 16-d embedding")
    expect(page.locator(".why")).to_contain_text("exact search of 12 items")
    said = page.locator(".card").evaluate_all("cards => cards.map(card => card.querySelector('.said').textContent)")
    assert said == ["✓ match" if match.distance <= 0.1 else "– no match" for match in answer.matches]
    last = page.locator(".card").last.locator(".near")
    expect(last).to_contain_text(f"distance {answer.matches[-1].distance:#.4g}")
    expect(page.locator(".query")).to_contain_text("photo of mine.png")
    expect(page.locator(".live")).to_contain_text("12 answers")


def test_no_match(page: Page, tmp_path: Path) -> None:
    choose(page, paint(tmp_path / "stripes.png", "red", "green", "blue"))
    expect(page.locator(".answer h2")).to_have_text("No match")
    expect(page.locator(".verdict")).to_contain_text("beyond the threshold of 0.1000")


DROP = """([name, type, content, kind]) => {
    const transfer = new DataTransfer();
    transfer.items.add(new File([Uint8Array.from(atob(content), each => each.charCodeAt(0))], name, {type}));
    const at = document.querySelector('h1');
    if (kind === 'paste') at.dispatchEvent(new ClipboardEvent('paste', {clipboardData: transfer, bubbles: true}));
    else for (const each of kind.split(' ')) {
        at.dispatchEvent(new DragEvent(each, {dataTransfer: transfer, bubbles: true, cancelable: true}));
    }
}"""


def hand_over(page: Page, photo: Path, kind: str, type: str = "image/png") -> None:
    page.evaluate(DROP, [photo.name, type, base64.b64encode(photo.read_bytes()).decode(), kind])


@pytest.mark.parametrize("kind", ["dragover drop", "paste"])
@pytest.mark.parametrize("tab", ["#find", "#map"])
def test_a_photo_that_is_dropped_or_pasted(open_page: NewPage, photo: Path, kind: str, tab: str) -> None:
    page = open_page()
    page.evaluate(f"location.hash = '{tab}'")
    hand_over(page, photo, kind)
    expect(page.locator(".answer header")).to_be_visible()
    assert params(page) == {"photo": "1"}
    expect(page.locator(".dropping")).to_be_hidden()
    expect(page.get_by_role("link", name="Find")).to_have_attribute("aria-current", "page")


def test_the_target_of_a_drop(page: Page, photo: Path) -> None:
    hand_over(page, photo, "dragover")
    expect(page.locator(".dropping")).to_be_visible()
    hand_over(page, photo, "dragleave")
    expect(page.locator(".dropping")).to_be_hidden()


def test_a_file_that_is_no_image(open_page: NewPage, tmp_path: Path) -> None:
    page = open_page(expected="status of 422")
    (tmp_path / "letter.txt").write_text("words")
    hand_over(page, tmp_path / "letter.txt", "drop", "text/plain")
    expect(page.locator(".answer .error")).to_contain_text("image must be readable")
    expect(page.locator(".query")).to_contain_text("The browser cannot show this photo")


def test_any_card_is_the_next_query_and_the_back_button_returns(page: Page, shop: Catalog, photo: Path) -> None:
    choose(page, photo)
    first = shown(page)
    page.get_by_role("button", name=re.compile("Find similar")).nth(2).click()
    settle(page)
    assert params(page) == {"id": first[2]}
    item = next(shop.items(f"id = '{first[2]}'"))
    assert shown(page) == [match.id for match in shop.search(shop.vectors([item]), 12)[0].matches if match.id != first[2]]
    expect(page.locator(".query")).to_contain_text(first[2])
    page.go_back()
    settle(page)
    assert shown(page) == first
    expect(page.locator(".crop")).to_be_visible()
    page.go_forward()
    settle(page)
    assert params(page) == {"id": first[2]}
    page.get_by_role("button", name="Remove the query").click()
    settle(page)
    assert params(page) == {}
    expect(page.locator(".answer h2")).to_have_text("Start from an item")


def test_an_address_is_the_whole_query(open_page: NewPage) -> None:
    page = open_page("#find?id=red%2F0&k=10&where=category+%3D+%27blue%27&group=product")
    settle(page)
    assert sorted(shown(page)) == ["blue/0", "blue/1"]
    expect(page.get_by_role("button", name="blue", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_label("one per product")).to_be_checked()
    page.reload()
    settle(page)
    assert sorted(shown(page)) == ["blue/0", "blue/1"]


def test_a_photo_is_gone_after_a_reload(page: Page, photo: Path) -> None:
    choose(page, photo)
    page.reload()
    expect(page.locator(".zone")).to_contain_text("photos are not stored")


def test_an_id_that_does_not_exist(open_page: NewPage) -> None:
    page = open_page("#find?id=nothing", expected="status of 404")
    expect(page.locator(".answer .error")).to_contain_text("an id must be one of the catalog, got 'nothing'")


def test_older_answers_are_discarded(page: Page, photo: Path) -> None:
    choose(page, photo)
    held: list[Route] = []
    page.route("**/search", lambda route: held.append(route) if len(held) < 1 else route.continue_())
    page.locator(".card").filter(has_text="red/1").get_by_role("button", name="Find similar").click()
    page.wait_for_timeout(100)
    page.evaluate("location.hash = '#find?id=green%2F1'")
    settle(page)
    with_green = shown(page)
    with contextlib.suppress(Error):  # the page has given the request up
        held[0].fulfill(json={"matches": [], "margin": None, "verdict": None, "product": None, "threshold": None})
    page.wait_for_timeout(200)
    assert shown(page) == with_green
    assert "green/1" not in with_green


# --- the crop box --------------------------------------------------------------------------------------------------------


def corners(page: Page) -> tuple[float, float, float, float]:
    box = page.locator(".crop").bounding_box()
    assert box
    return box["x"], box["y"], box["width"], box["height"]


def test_crop_with_the_mouse(page: Page, photo: Path) -> None:
    choose(page, photo)
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    x, y, w, h = corners(page)
    page.mouse.move(x + 0.55 * w, y + 0.2 * h)  # draw a box on the right half
    page.mouse.down()
    for step in range(10):
        page.mouse.move(x + (0.55 + 0.04 * step) * w, y + (0.2 + 0.06 * step) * h)
    page.mouse.up()
    settle(page)
    assert crop_of(page) == pytest.approx([0.55, 0.2, 0.36, 0.54], abs=0.02)
    assert best(page) == "blue"
    assert len([url for url in requests if url.endswith("/search")]) <= 2  # not one for each movement
    page.mouse.move(x + 0.7 * w, y + 0.5 * h)  # move it to the left half
    page.mouse.down()
    page.mouse.move(x + 0.2 * w, y + 0.5 * h, steps=4)
    page.mouse.up()
    settle(page)
    assert crop_of(page) == pytest.approx([0.05, 0.2, 0.36, 0.54], abs=0.02)
    assert best(page) == "red"
    page.mouse.move(x + 0.41 * w, y + 0.74 * h)  # resize it by its corner, and beyond the photo
    page.mouse.down()
    page.mouse.move(x + 2 * w, y + 2 * h, steps=4)
    page.mouse.up()
    settle(page)
    assert crop_of(page) == pytest.approx([0.05, 0.2, 0.95, 0.8], abs=0.02)
    assert sum(crop_of(page)[::2]) <= 1 + 1e-6
    page.locator(".crop").dblclick()
    settle(page)
    assert "crop" not in params(page)


def test_crop_with_the_keyboard(page: Page, photo: Path) -> None:
    choose(page, photo)
    box = page.get_by_role("application", name="Part to search: the whole photo")
    box.focus()
    for _ in range(28):
        page.keyboard.press("Shift+ArrowLeft")
    settle(page)
    assert crop_of(page) == pytest.approx([0, 0, 0.44, 1], abs=1e-3)
    assert best(page) == "red"
    for _ in range(40):
        page.keyboard.press("ArrowRight")  # as far as the right side
    settle(page)
    assert crop_of(page) == pytest.approx([0.56, 0, 0.44, 1], abs=1e-3)
    assert best(page) == "blue"
    expect(page.locator(".box")).to_have_attribute("aria-label", re.compile("44 × 100 % of the photo, from 56, 0 %"))
    expect(page.locator(".box")).to_be_focused()
    page.keyboard.press("Escape")
    settle(page)
    assert "crop" not in params(page)


def test_crop_by_touch(open_page: NewPage, photo: Path) -> None:
    page = open_page(**PHONE)
    choose(page, photo)
    x, y, w, h = corners(page)
    touch = page.context.new_cdp_session(page)

    def send(kind: str, *at: float) -> None:
        points = [{"x": at[0], "y": at[1]}] if at else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", x + w - 4, y + h - 4)  # its corner
    for step in range(1, 9):
        send("touchMove", x + w - 4 - 0.08 * step * w, y + h - 4)
    send("touchEnd")
    settle(page)
    assert crop_of(page) == pytest.approx([0, 0, 0.36, 1], abs=0.03)
    assert best(page) == "red"
    send("touchStart", x + 0.18 * w, y + 0.5 * h)
    for step in range(1, 9):
        send("touchMove", x + (0.18 + 0.07 * step) * w, y + 0.5 * h)
    send("touchEnd")
    settle(page)
    assert crop_of(page) == pytest.approx([0.56, 0, 0.36, 1], abs=0.03)
    assert best(page) == "blue"
    expect(page.get_by_text("Take a photo")).to_be_visible()
    assert page.get_by_label("Take a photo").get_attribute("capture") == "environment"


# --- filters -------------------------------------------------------------------------------------------------------------


def writing(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Filter, as in --where")


def test_filters_are_the_text_of_where(page: Page, shop: Catalog) -> None:
    page.get_by_role("button", name="red", exact=True).click()
    settle(page)
    expect(writing(page)).to_have_value("category = 'red'")
    assert shown(page) == ["red/0", "red/1", "red/2"]
    page.get_by_role("button", name="blue", exact=True).click()
    page.get_by_role("spinbutton", name="price, at least").fill("1")
    page.get_by_role("spinbutton", name="price, at most").fill("21.5")
    page.keyboard.press("Enter")
    settle(page)
    text = "category in ('red', 'blue') and price >= 1 and price <= 21.5"
    expect(writing(page)).to_have_value(text)
    assert shown(page) == shop.ids(text) == ["red/1", "red/2", "blue/0", "blue/1"]
    page.reload()
    settle(page)
    expect(page.get_by_role("button", name="red", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("spinbutton", name="price, at most")).to_have_value("21.5")
    page.get_by_role("button", name="Clear the filter").click()
    settle(page)
    assert params(page) == {}
    assert len(shown(page)) == 12


def test_a_filter_written_by_hand(open_page: NewPage, shop: Catalog) -> None:
    page = open_page(expected="status of 422")
    writing(page).fill("price < 2 or product = 'blue 1'")
    page.keyboard.press("Enter")
    settle(page)
    assert shown(page) == ["red/0", "red/1", "blue/1", "blue/2"]
    page.get_by_role("button", name="blue", exact=True).click()
    settle(page)
    expect(writing(page)).to_have_value("(price < 2 or product = 'blue 1') and category = 'blue'")
    assert shown(page) == ["blue/1", "blue/2"]
    writing(page).fill("price <")
    page.keyboard.press("Enter")
    error = page.locator("#where-error")
    expect(error).to_contain_text('a filter must be like "category = chair and price < 100", got the end instead of a value')
    expect(writing(page)).to_have_attribute("aria-invalid", "true")
    assert params(page) == {"where": "price <"}
    writing(page).fill("price > 1e9")
    page.keyboard.press("Enter")
    expect(error).to_be_hidden()
    expect(page.locator(".answer h2")).to_have_text("The filter selects no item")
    assert shown(page) == shop.ids("price > 1e9") == []


def test_odd_values_can_be_selected(page: Page, shop: Catalog) -> None:
    for at, value in enumerate(HOSTILE[:3]):
        page.get_by_role("button", name=value, exact=True).click()
        settle(page)
        assert shown(page) == [f"{color}/{at}" for color in COLORS]
        page.get_by_role("button", name="Clear the filter").click()
        settle(page)


def test_number_of_answers_and_groups(page: Page, shop: Catalog, photo: Path) -> None:
    choose(page, photo)
    page.get_by_label("Show").select_option("10")
    settle(page)
    assert len(shown(page)) == 10
    page.get_by_label("one per product").check()
    settle(page)
    [answer] = shop.search(str(photo), k=10, group_by="product")
    assert shown(page) == [match.id for match in answer.matches]
    assert len(answer.matches) == 8
    assert params(page) == {"photo": "1", "k": "10", "group": "product"}


# --- the sheet of an item, and the tabs ----------------------------------------------------------------------------------


def test_the_sheet_of_an_item(open_page: NewPage) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    opener = page.get_by_role("button", name="Open red 1").first
    opener.click()
    sheet = page.get_by_role("dialog")
    expect(sheet.get_by_role("heading", name="red 1")).to_be_visible()
    expect(sheet.locator(".large img")).to_have_js_property("complete", True)
    assert sheet.locator(".large img").evaluate("image => image.naturalWidth") == 120
    fields = sheet.locator("dl div").evaluate_all("rows => rows.map(row => [...row.children].map(each => each.textContent))")
    assert fields[0] == ["id", "red/1"]
    assert sorted(fields[1:]) == [["category", "red"], ["maker", HOSTILE[1]], ["price", "1"]]
    expect(sheet.locator(".outcome")).to_contain_text("The nearest other item is of")
    sheet.get_by_role("button", name="Copy id").click()
    expect(sheet.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "red/1"
    sheet.locator(".strip button").first.click()
    expect(sheet.locator("dd").first).not_to_have_text("red/1")
    expect(sheet.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    opener.click()
    sheet.get_by_role("button", name="Find similar").click()
    settle(page)
    assert params(page) == {"id": "red/1"}
    page.locator(".card .open").first.click()
    sheet.get_by_role("button", name="Show on map").click()
    expect(sheet).to_be_hidden()
    assert page.evaluate("location.hash").startswith("#map?id=")


def test_tabs_keep_their_place(page: Page, photo: Path) -> None:
    choose(page, photo)
    found = shown(page)
    page.get_by_role("link", name="Review").click()
    expect(page.get_by_role("region", name="Review")).to_be_visible()
    expect(page.get_by_role("region", name="Find")).to_be_hidden()
    expect(page).to_have_title("Review – shop")
    page.get_by_role("link", name="Find").click()
    settle(page)
    assert params(page) == {"photo": "1"}
    assert shown(page) == found


def test_keyboard_only(page: Page, photo: Path) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Choose a photo")).to_be_focused()
    for _ in range(5):  # headless Chromium sometimes drops a request for files
        with contextlib.suppress(Error):
            with page.expect_file_chooser(timeout=3000) as chooser:
                page.keyboard.press("Space")
            chooser.value.set_files(photo)
            break
    expect(page.locator(".answer header")).to_be_visible()
    settle(page)
    expect(page.locator(".answer")).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".card .open").first).to_be_focused()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    settle(page)
    assert list(params(page)) == ["id"]


def test_the_service_has_stopped(open_page: NewPage) -> None:
    page = open_page(expected="ERR_FAILED")
    page.route("**/search", lambda route: route.abort())
    page.get_by_role("button", name="Find similar").first.click()
    expect(page.locator(".answer .error")).to_contain_text("The service does not answer")


# --- odd catalogs --------------------------------------------------------------------------------------------------------


def test_an_empty_catalog(browser: Browser, tmp_path: Path, photo: Path) -> None:
    with Catalog.open(tmp_path / "empty", make_embedder()) as catalog:
        catalog.add_vectors(["a"], np.ones((1, 8), np.float32))
        catalog.remove("a")
        with served(catalog) as address, watched(browser, address) as page:
            page.goto(address)
            expect(page.get_by_role("heading", name="The catalog is empty")).to_be_visible()
            expect(page.locator("code")).to_have_text(f"liftedstruct catalog add {catalog.address} photos/")
            hand_over(page, photo, "drop")
            expect(page.locator(".banner")).to_contain_text("The catalog is empty. Add images first.")
            page.get_by_role("button", name="Dismiss").click()
            expect(page.locator(".banner")).to_be_hidden()


def test_one_image_and_no_calibration(browser: Browser, tmp_path: Path, photo: Path) -> None:
    with Catalog.open(tmp_path / "one", make_embedder()) as catalog:
        catalog.add(paint(tmp_path / "red.png", "red"))
        with served(catalog) as address, watched(browser, address) as page:
            page.goto(address)
            expect(page.locator(".about")).to_contain_text("1 item · 0 products")
            expect(page.locator(".card")).to_have_count(1)
            choose(page, photo)
            assert shown(page) == ["red.png"]
            expect(page.locator(".verdict code")).to_have_text(f"liftedstruct catalog calibrate {catalog.address}")
            expect(page.locator(".verdict")).to_contain_text("No other product is among the nearest images.")
            page.get_by_role("button", name="Find similar").click()
            expect(page.locator(".answer")).to_contain_text("There is no other item in the catalog.")
            page.go_back()
            page.locator(".card .open").click()
            expect(page.get_by_role("dialog")).to_contain_text("There is no other item to compare it with.")


def test_images_that_have_moved_away(browser: Browser, tmp_path: Path) -> None:
    with make_shop(tmp_path / "photos") as catalog:
        for file in (tmp_path / "photos").glob("*.png"):
            file.unlink()
        with served(catalog) as address, watched(browser, address) as page:
            page.goto(f"{address}/#find?id=red%2F0")
            expect(page.locator(".cards .missing")).to_have_text(["no image file"] * 11)
            expect(page.locator(".query .missing")).to_have_text("no image file")
            page.locator(".card .open").first.click()
            expect(page.locator(".sheet .large .missing")).to_be_visible()


def test_vectors_without_a_model_and_odd_names(browser: Browser, tmp_path: Path, photo: Path) -> None:
    X = np.random.default_rng(0).normal(size=(len(HOSTILE), 4))
    names, fields = [f"{name}/1" for name in HOSTILE], [{"note": name} for name in HOSTILE]
    with catalog_of(tmp_path / "vectors", X, None) as catalog:
        catalog.remove(catalog.ids())
        catalog.add_vectors(names, X, HOSTILE, fields)
        with served(catalog) as address:
            for settings in ({}, PHONE):
                with watched(browser, address, **settings) as page:
                    page.goto(address)
                    expect(page.locator(".zone")).to_contain_text("the catalog holds vectors only, without a model")
                    expect(page.get_by_label("Choose a photo")).to_be_disabled()
                    hand_over(page, photo, "paste")
                    expect(page.locator(".banner")).to_contain_text("the catalog holds vectors only")
                    expect(page.locator(".card")).to_have_count(len(names))
                    assert shown(page) == names
                    fits(page)
                    for at, name in enumerate(names):
                        page.goto(f"{address}/#find?id={quote(name, safe='')}")
                        expect(page.locator(".query bdi.id")).to_have_js_property("textContent", name)
                        settle(page)
                        assert name not in shown(page)
                        assert len(shown(page)) == len(names) - 1
                        page.locator(".card .open").first.click()
                        expect(page.locator(".sheet dl bdi").nth(1)).to_have_js_property("textContent", shown(page)[0])
                        fits(page)
                        page.keyboard.press("Escape")
                        assert page.locator("img[src=x]").count() == 0, at


# --- looks ---------------------------------------------------------------------------------------------------------------


def fits(page: Page) -> None:
    """Check that nothing is wider than the page."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("[...document.querySelectorAll('.sheet')].every(each => each.scrollWidth <= each.clientWidth + 1)")


@pytest.mark.parametrize("width", [320, 390])
def test_phone(open_page: NewPage, photo: Path, width: int) -> None:
    page = open_page(**PHONE | {"viewport": {"width": width, "height": 700}})
    fits(page)
    tabs = page.get_by_role("navigation").bounding_box()
    assert tabs
    assert tabs["y"] + tabs["height"] == pytest.approx(700, abs=1)
    expect(writing(page)).to_be_hidden()
    choose(page, photo)
    fits(page)
    page.get_by_text("Filters and options").tap()
    expect(writing(page)).to_be_visible()
    fits(page)
    page.locator(".card .open").first.tap()
    expect(page.locator(".sheet dl")).to_be_visible()
    fits(page)


def test_dark_mode(open_page: NewPage) -> None:
    for scheme, color in (("light", "rgb(251, 250, 247)"), ("dark", "rgb(20, 23, 27)")):
        expect(open_page(color_scheme=scheme).locator("body")).to_have_css("background-color", color)


def test_reduced_motion(open_page: NewPage) -> None:
    page = open_page(reduced_motion="reduce")
    durations = page.evaluate("[...document.querySelectorAll('*')].map(each => getComputedStyle(each).transitionDuration)")
    assert set(durations) == {"0s"}


def violations(page: Page) -> list[str]:
    options = {"resultTypes": ["violations"], "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]}
    found = Axe().run(page, options=options).response["violations"]
    return [
        f"{each['id']}: {node['html'][:200]} {node['any'][:1]}"
        for each in found
        for node in each["nodes"]
        if each["impact"] in ("serious", "critical")
    ]


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("phone", [False, True], ids=["desktop", "phone"])
def test_axe_finds_nothing_serious(open_page: NewPage, photo: Path, scheme: str, phone: bool) -> None:
    page = open_page(color_scheme=scheme, reduced_motion="reduce", **(PHONE if phone else {}))
    check = partial(violations, page)
    page.locator(".filters").evaluate("details => { details.open = true }")
    assert check() == []
    choose(page, photo)
    page.get_by_role("button", name="red", exact=True).click()
    settle(page)
    assert check() == []
    page.locator(".card .open").first.click()
    expect(page.locator(".sheet dl")).to_be_visible()
    assert check() == []
    page.keyboard.press("Escape")
    for tab, ready in (("Map", ".map .plane"), ("Review", ".review figure")):
        page.get_by_role("link", name=tab).click()
        page.locator(ready).first.wait_for(timeout=60_000)
        assert check() == [], tab
    page.goto(re.sub("#.*", "", page.url) + "docs")
    expect(page.locator(".endpoint").first).to_be_visible()
    assert check() == []


def test_the_documentation_page_has_every_endpoint(browser: Browser, address: str) -> None:
    with watched(browser, address, **PHONE) as page:
        page.goto(f"{address}/docs")
        expect(page.locator(".endpoint").first).to_be_visible()
        paths = page.request.get(f"{address}/openapi.json").json()["paths"]
        expected = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
        assert page.locator(".endpoint h2").all_text_contents()[: len(expected)] == expected
        expect(page.locator(".endpoint").filter(has_text="POST /search")).to_contain_text("group_by")
        fits(page)
