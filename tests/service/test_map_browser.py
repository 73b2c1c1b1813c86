"""The map of a catalog in a browser: mouse, touch, keyboard, lasso, colors, links, and odd catalogs."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from playwright.sync_api import Browser, Locator, Page, expect

from browser import watched
from catalog.shop import make_embedder
from liftedstruct.catalog import Catalog, Item
from liftedstruct.service import layout, tiles
from service.served import served

ATLAS = "document.querySelector('.lifted-map').atlas"
N, CLASSES, DIM = 420, 6, 8
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
HOSTILE = "<img src=x onerror=\"document.title='run'\"> طائر 🦜"
RNG = np.random.default_rng(0)
LABELS = np.arange(N) % CLASSES  # of NAMES
X = (2.5 * RNG.normal(size=(CLASSES, DIM))[LABELS] + RNG.normal(size=(N, DIM))).astype(np.float32)
NAMES = [*(f"Chäir {i}" for i in range(CLASSES - 1)), HOSTILE]
NewPage = Callable[..., Page]


def color_of(i: int) -> tuple[int, int, int]:
    return 18 + 36 * (i % 7), 18 + 36 * (i // 7 % 7), 18 + 36 * (i // 49 % 7)


def create(folder: Path, n: int, files: bool = True) -> Catalog:
    """Create a catalog of the first n items, each of its own color."""
    folder.mkdir(parents=True)
    items = []
    for i in range(n):
        path = folder / f"{i}.png"
        if files:
            Image.new("RGB", (64, 64), color_of(i)).save(path)
        fields: dict[str, Any] = {"price": i, "maker": HOSTILE if i % 4 == 1 else f"maker {i % 4}"}
        items.append(Item(f"{NAMES[LABELS[i]][:5]}/{i}", NAMES[LABELS[i]], str(path), metadata=fields))
    catalog = Catalog.open(folder / "store", make_embedder(dim=DIM))
    with catalog.store.writing():
        table = catalog.begin(make_embedder(dim=DIM), DIM)["table"]
        catalog.store.put(table, items, X[:n])
    return catalog


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "CAPACITY", 64)  # so that there are several levels
        patch.setattr(layout, "LANDMARKS", 300)
        with create(tmp_path_factory.mktemp("map") / "shop", N) as catalog, served(catalog) as found:
            yield found


@pytest.fixture
def open_map(browser: Browser, address: str) -> Iterator[NewPage]:
    """Return a function that opens the map at a hash; all pages are checked at the end."""
    with ExitStack() as pages:

        def make(hash: str = "#map", server: str = address, ready: bool = True, **settings: Any) -> Page:
            page = pages.enter_context(watched(browser, server, **settings))
            page.goto(f"{server}/{hash}")
            if ready:
                settle(page)
            return page

        yield make


def settle(page: Page) -> None:
    """Wait until nothing moves and everything in view is drawn, and the hash is written."""
    page.wait_for_function(
        f"() => document.querySelector('.lifted-map')?.atlas?.painted && !{ATLAS}.camera.flight", timeout=60_000
    )
    page.wait_for_timeout(350)


def camera(page: Page) -> dict[str, float]:
    found: dict[str, float] = page.evaluate(f"(({{x, y, zoom}}) => ({{x, y, zoom}}))({ATLAS}.camera)")
    return found


def params(page: Page) -> dict[str, str]:
    found: dict[str, str] = page.evaluate("Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? ''))")
    return found


def said(page: Page) -> Locator:
    return page.locator("body > .live")


def spot(page: Page, row: int) -> tuple[float, float]:
    """Return the position of an item on the screen."""
    box = page.locator(".plane").bounding_box()
    assert box
    x, y = page.evaluate(f"{ATLAS}.place({row})")
    return box["x"] + x, box["y"] + y


def lonely(page: Page) -> list[int]:
    """Return items that are shown, and on top, with no other item close to them."""
    scale = page.evaluate(f"{ATLAS}.camera.zoom * {ATLAS}.scene.ratio")
    shown = page.evaluate(f"[...{ATLAS}.view.within(0, 0, 1, 1, {scale}, {ATLAS}.scene.thumbnails({scale}))]")
    places = np.array(page.evaluate(f"[...Array({N}).keys()].map(i => {ATLAS}.place(i))"))
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 1e9 * np.eye(N)
    size = np.array(page.evaluate(f"[{ATLAS}.camera.width, {ATLAS}.camera.height]"))
    inside = ((places > 40) & (places < size - 70)).all(axis=1) & np.isin(np.arange(N), shown)
    inside &= (places[:, 0] > 290) | (places[:, 1] < size[1] - 160)  # not below the legend
    found = [int(i) for i in np.flatnonzero(inside)[np.argsort(-apart.min(axis=1)[inside])]]
    return [i for i in found if page.evaluate(f"{ATLAS}.hit(...{ATLAS}.place({i}))") == i][:3]


def pixels(canvas: Locator, place: tuple[float, float], side: int) -> NDArray[np.float64]:
    """Return pixels around a point of a canvas, (side, side, 3)."""
    script = """(canvas, [x, y, side]) => {
        const copy = new OffscreenCanvas(side, side).getContext('2d', {willReadFrequently: true});
        copy.drawImage(canvas, -Math.round(x - side / 2), -Math.round(y - side / 2));
        return [...copy.getImageData(0, 0, side, side).data];
    }"""
    return np.array(canvas.evaluate(script, [*place, side]), np.float64).reshape(side, side, 4)[:, :, :3]


def near(row: int, k: int = 8) -> list[int]:
    D = np.linalg.norm(X.astype(np.float64) - X[row], axis=1)
    return [int(i) for i in np.argsort(D, kind="stable") if i != row][:k]


def item_id(row: int) -> str:
    return f"{NAMES[LABELS[row]][:5]}/{row}"


# --- mouse, touch, keyboard ----------------------------------------------------------------------------------------------


def test_drag_and_wheel(open_map: NewPage) -> None:
    page = open_map()
    before, (x, y) = camera(page), spot(page, 3)
    page.mouse.move(400, 400)
    page.mouse.down()
    page.mouse.move(430, 410)
    page.mouse.move(490, 360)
    page.mouse.up()
    assert spot(page, 3) == pytest.approx((x + 90, y - 40))
    page.mouse.wheel(0, -400)
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(before["zoom"] * np.exp(0.6))  # the step of the wheel is limited
    expect(page.locator(".nothing")).to_be_visible()  # a drag is not a click


def test_hover_and_click(open_map: NewPage) -> None:
    page = open_map()
    for row in lonely(page)[:2]:
        page.mouse.move(*spot(page, row))
        card = page.locator(".stage > .card")
        expect(card.locator(".caption")).to_have_text(item_id(row))
        expect(card.locator(".class")).to_have_text(NAMES[LABELS[row]])
        page.mouse.click(*spot(page, row))
        expect(page.locator(".query .caption")).to_have_text(item_id(row))
        ids = page.locator(".near .card").evaluate_all("cards => cards.map(card => card.dataset.id)")
        assert ids == [item_id(i) for i in near(row)]
        right = sum(LABELS[i] == LABELS[row] for i in near(row))
        expect(said(page)).to_contain_text(f"Selected: {item_id(row)}, {NAMES[LABELS[row]]}; {right} of 8 neighbors")
        assert page.locator(".near .card.same").count() == right
    settle(page)
    assert params(page)["id"] == item_id(row)


def test_a_neighbor_is_gone_to_and_deselected(open_map: NewPage) -> None:
    page = open_map()
    row = lonely(page)[0]
    page.mouse.click(*spot(page, row))
    page.locator(".near .card button").nth(1).click()
    going = near(row)[1]
    expect(page.locator(".query .caption")).to_have_text(item_id(going))
    settle(page)
    box = page.locator(".plane").bounding_box()
    assert box
    assert spot(page, going) == pytest.approx((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), abs=1)
    page.keyboard.press("Escape")
    expect(page.locator(".nothing")).to_be_visible()
    expect(page.locator(".plane")).to_be_focused()


def test_from_the_whole_to_a_single_photo(open_map: NewPage) -> None:
    page = open_map()
    row = lonely(page)[0]
    x, y = page.evaluate(f"[{ATLAS}.view.positions[{2 * row}], {ATLAS}.view.positions[{2 * row + 1}]]")
    whole = camera(page)["zoom"]
    for zoom in (whole, 4 * whole, 60 * whole, 1e9):
        page.evaluate(f"{ATLAS}.camera.set({x}, {y}, {zoom})")
        settle(page)
    place = page.evaluate(f"{ATLAS}.place({row})")
    side = page.evaluate(f"{ATLAS}.scene.side({ATLAS}.camera.zoom)")
    assert side > 150
    seen = pixels(page.locator(".plane"), place, 60)
    assert abs(seen.mean(axis=(0, 1)) - color_of(row)).max() < 12


def test_keys(open_map: NewPage) -> None:
    page = open_map()
    page.locator(".plane").focus()
    first = camera(page)
    page.keyboard.press("ArrowRight")
    assert camera(page)["x"] > first["x"]
    page.keyboard.press("+")
    assert camera(page)["zoom"] == pytest.approx(1.5 * first["zoom"])
    settle(page)
    page.keyboard.press("ArrowLeft")
    expect(said(page)).to_contain_text("Closest to the center: ")
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .query")).to_be_visible()
    expect(page.locator(".near .card button").first).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    assert camera(page) == pytest.approx(first)


def test_fingers(open_map: NewPage) -> None:
    page = open_map(**PHONE)
    row = lonely(page)[0]
    page.touchscreen.tap(*spot(page, row))
    expect(page.locator(".query .caption")).to_have_text(item_id(row))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        fingers = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

    box = page.locator(".plane").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = camera(page)
    touch("touchStart", (x - 40, y))
    touch("touchStart", (x - 40, y), (x + 40, y))
    touch("touchMove", (x - 60, y), (x + 60, y))
    touch("touchMove", (x - 80, y), (x + 80, y))
    touch("touchEnd")
    assert camera(page)["zoom"] == pytest.approx(2 * before["zoom"], rel=0.02)
    page.get_by_role("button", name="Lasso").tap()
    corners = [(x - 120, y - 120), (x + 120, y - 120), (x + 120, y + 120), (x - 120, y + 120)]
    touch("touchStart", corners[0])
    for corner in [*corners[1:], corners[0]]:
        touch("touchMove", corner)
    touch("touchEnd")
    expect(page.locator(".chosen .title")).to_have_text(re.compile(r"\d+ items?$"))
    assert camera(page)["zoom"] == pytest.approx(2 * before["zoom"], rel=0.02)  # the lasso does not move the map


# --- lasso ---------------------------------------------------------------------------------------------------------------


def test_lasso(open_map: NewPage, address: str) -> None:
    page = open_map()
    box = page.locator(".plane").bounding_box()
    assert box
    left, top, right, bottom = box["x"] + 150, box["y"] + 100, box["x"] + 500, box["y"] + 400
    places = np.array([spot(page, row) for row in range(N)])
    inside = ((places > (left, top)) & (places < (right, bottom))).all(axis=1)
    assert 20 < inside.sum() < N - 20
    button = page.get_by_role("button", name="Lasso")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    page.mouse.move(left, top)
    page.mouse.down()
    for corner in [(right, top), (right, bottom), (left, bottom), (left, top)]:
        page.mouse.move(*corner, steps=6)
    page.mouse.up()
    expect(page.locator(".chosen .title")).to_have_text(re.compile(r"\d+ items$"))
    count = int(str(page.locator(".chosen .title").text_content()).split()[0])
    assert abs(count - inside.sum()) <= 2  # at the edge
    expect(button).to_have_attribute("aria-pressed", "false")
    classes = page.locator(".chosen .classes li bdi").all_text_contents()
    assert set(classes) == {NAMES[LABELS[row]] for row in np.flatnonzero(inside)}
    shown = np.array(page.evaluate(f"[...{ATLAS}.scene.shown]"))
    assert (shown == 2).sum() == count
    with page.expect_download() as download:
        page.get_by_role("button", name="Export list").click()
    lines = download.value.path().read_text(encoding="utf-8").splitlines()
    assert lines[0] == "id,path,product"
    assert len(lines) == 1 + count
    rows = np.flatnonzero(shown == 2)
    assert lines[1].startswith(f"{item_id(rows[0])},/")
    assert any('"<img src=x onerror=""document' in line for line in lines) == (HOSTILE in classes)  # quoted
    page.get_by_role("button", name="Search with it").click()
    page.wait_for_function("() => location.hash.startsWith('#find?id=')")


def test_lasso_by_keys(open_map: NewPage) -> None:
    page = open_map()
    page.locator(".plane").focus()
    page.keyboard.press("l")
    expect(page.get_by_role("button", name="Lasso")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Lasso")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("L")
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .title")).to_have_text(f"{N} items")
    expect(said(page)).to_have_text(f"{N} items of {CLASSES} classes selected.")
    page.keyboard.press("Escape")
    expect(page.locator(".nothing")).to_be_visible()
    assert set(page.evaluate(f"[...{ATLAS}.scene.shown]")) == {2}
    searching = page.get_by_role("combobox", name="Search for a class")
    searching.fill("l")  # a letter, not the key
    expect(page.get_by_role("button", name="Lasso")).to_have_attribute("aria-pressed", "false")


# --- search, colors, links -----------------------------------------------------------------------------------------------


def test_search(open_map: NewPage) -> None:
    page = open_map()
    field = page.get_by_role("combobox", name="Search for a class")
    field.click()
    field.press_sequentially("CHAIR")  # without case and accents
    expect(page.get_by_role("listbox").get_by_role("option")).to_have_count(5)
    page.get_by_role("option", name="Chäir 3").click()
    settle(page)
    count = int((LABELS == 3).sum())
    expect(said(page)).to_have_text(f"{count} items of class Chäir 3 shown.")
    shown = np.array(page.evaluate(f"[...{ATLAS}.scene.shown]"))
    assert np.array_equal(shown == 2, LABELS == 3)
    page.wait_for_function("() => new URLSearchParams(location.hash.split('?')[1]).get('class') === 'Chäir 3'")
    page.get_by_role("button", name="Clear the search").click()
    assert set(page.evaluate(f"[...{ATLAS}.scene.shown]")) == {2}


def test_colors(open_map: NewPage) -> None:
    page = open_map()
    select = page.get_by_label("Color")
    assert select.locator("option").all_text_contents() == ["by class", "by outcome", "by maker", "by price"]

    def kinds() -> NDArray[np.int64]:
        return np.array(page.evaluate(f"[...{ATLAS}.view.kinds]"))

    loaded = np.array(page.evaluate(f"[...{ATLAS}.view.home]")) > 0
    assert np.array_equal(kinds()[loaded], np.array([sorted(NAMES).index(NAMES[label]) for label in LABELS])[loaded])
    select.select_option("by outcome")
    expect(page.locator(".legend")).to_contain_text("nearest neighbor of the same class")
    settle(page)
    wrong = np.array([LABELS[near(row, 1)[0]] != LABELS[row] for row in range(N)])
    assert np.array_equal(kinds()[loaded], wrong[loaded])
    assert page.locator(".legend .count").all_text_contents() == [str(N - wrong.sum()), str(wrong.sum()), "0"]
    select.select_option("by maker")
    expect(page.locator(".legend h3")).to_have_text("maker")
    settle(page)
    assert HOSTILE in page.locator(".legend li bdi").all_text_contents()
    assert len(set(kinds()[loaded])) == 4
    select.select_option("by price")
    expect(page.locator(".legend .ramp")).to_be_visible()
    settle(page)
    order = np.argsort(np.arange(N)[loaded])
    assert (np.diff(kinds()[loaded][order]) >= 0).all()
    assert params(page)["color"] == "field:price"
    assert page.title() != "run"
    assert page.locator(".lifted-map img[src=x]").count() == 0


def test_a_link_restores_the_place(open_map: NewPage) -> None:
    page = open_map()
    page.evaluate(f"{ATLAS}.camera.set(0.4, 0.6, 3 * {ATLAS}.camera.whole())")
    page.get_by_label("Color").select_option("by price")
    settle(page)
    row = lonely(page)[0]
    page.mouse.click(*spot(page, row))
    expect(page.locator(".query .caption")).to_have_text(item_id(row))
    settle(page)
    page.wait_for_function("() => /id=/.test(location.hash) && /color=/.test(location.hash)")  # written after a moment
    link = page.evaluate("location.hash")
    other = open_map(link)
    expect(other.locator(".query .caption")).to_have_text(item_id(row))
    settle(other)
    assert camera(other) == pytest.approx(camera(page), rel=2e-3)
    assert other.evaluate(f"{ATLAS}.view.color") == "field:price"
    expect(other.get_by_label("Color")).to_have_value("field:price")
    assert params(other) == params(page)
    by_class = open_map("#map?class=Chäir 2")
    expect(by_class.get_by_role("combobox", name="Search for a class")).to_have_value("Chäir 2")
    expect(said(by_class)).to_contain_text("of class Chäir 2 shown")
    settle(by_class)
    by_class.goto(by_class.url.split("#")[0] + "#map?x=0.3&y=0.3&z=4")
    by_class.wait_for_function(f"() => Math.abs({ATLAS}.camera.x - 0.3) < 1e-6")


@pytest.mark.parametrize("hash", ["#map?x=a&y=&z=9999", "#map?class=nothing&color=nothing&id=nothing", "#map?x=9&y=-9&z=99"])
def test_a_wrong_link(open_map: NewPage, hash: str) -> None:
    page = open_map(hash)
    found = camera(page)
    assert 0 <= found["x"] <= 1
    assert 0 <= found["y"] <= 1


def test_another_tab_and_back(open_map: NewPage) -> None:
    page = open_map()
    page.evaluate(f"{ATLAS}.camera.set(0.4, 0.6, 900)")
    settle(page)
    before = camera(page)
    page.locator(".tabs a", has_text="Find").click()
    expect(page.locator(".tab.map")).to_be_hidden()
    page.go_back()
    expect(page.locator(".tab.map")).to_be_visible()
    settle(page)
    assert camera(page) == pytest.approx(before, rel=1e-3)


# --- looks ---------------------------------------------------------------------------------------------------------------


def test_dark(open_map: NewPage) -> None:
    page = open_map(color_scheme="dark")
    assert pixels(page.locator(".plane"), (4, 4), 4).max() < 60
    page.emulate_media(color_scheme="light")
    settle(page)
    assert pixels(page.locator(".plane"), (4, 4), 4).min() > 200


def test_less_motion(open_map: NewPage) -> None:
    page = open_map(reduced_motion="reduce")
    zoom = camera(page)["zoom"]
    page.get_by_role("button", name="Zoom in").click()
    assert camera(page)["zoom"] == pytest.approx(2 * zoom)  # at once


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_no_sideways_scrolling(open_map: NewPage, width: int) -> None:
    page = open_map("#map?color=field:maker", viewport={"width": width, "height": 800})
    page.locator(".plane").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".chosen .query")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_density_is_drawn_where_items_are_not_shown_yet(open_map: NewPage) -> None:
    page = open_map()
    page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, 1)")  # as far as possible
    settle(page)
    place = page.evaluate(f"{ATLAS}.place({lonely(page)[0]})")
    tile = f"[...{ATLAS}.view.tiles.values()]"
    assert page.evaluate(f"{tile}.find(({{z}}) => z === 0).counts.reduce((a, b) => a + b)") == N
    page.evaluate(
        f"{ATLAS}.view.tiles.forEach((tile) => (tile.rows = new Uint32Array(0))); {ATLAS}.scene.photo = 0; {ATLAS}.repaint()"
    )
    page.evaluate(f"{ATLAS}.view.covering = () => [{ATLAS}.view.tiles.get('0/0/0')]")
    page.evaluate(f"{ATLAS}.view.state = null; {ATLAS}.repaint()")
    page.wait_for_timeout(500)
    around = pixels(page.locator(".plane"), place, 16)
    assert abs(around - pixels(page.locator(".plane"), (4, 4), 1)).max() > 30


# --- states --------------------------------------------------------------------------------------------------------------


def test_the_map_is_made_with_progress(open_map: NewPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path / "shop", 40) as catalog:
        calls = []
        arrange = layout.arrange

        def slow(*arguments: Any) -> Any:
            calls.append(arguments)
            arguments[-1](0.5)
            import time

            time.sleep(2)
            return arrange(*arguments)

        monkeypatch.setattr(tiles, "arrange", slow)
        with served(catalog) as found:
            page = open_map(server=found, ready=False)
            expect(page.get_by_role("progressbar")).to_be_visible()
            expect(page.locator(".making")).to_contain_text("The map is being made.")
            expect(said(page)).to_contain_text("The map is being made.")
            settle(page)
            expect(page.locator(".counts")).to_have_text("40 items of 6 classes.")
            assert len(calls) == 1


def test_a_large_catalog_asks_first(open_map: NewPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path / "shop", 40) as catalog, served(catalog) as found:
        page = open_map("", server=found, ready=False)
        page.route("**/static/map_tab.js", lambda route: route.fulfill(response=route.fetch(), body=_asking(route)))
        page.goto(f"{found}/#map")
        expect(page.locator(".making")).to_contain_text("The map of 40 items is made once, in about a minute, and kept.")
        page.get_by_role("button", name="Make the map").click()
        settle(page)


def _asking(route: Any) -> str:
    text: str = route.fetch().text()
    return text.replace("const SOON = 3000", "const SOON = 3")


def test_a_failure_is_told(open_map: NewPage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("openTSNE must be installed. Run: pip install")

    monkeypatch.setattr(tiles, "arrange", fail)
    with create(tmp_path / "shop", 4) as catalog, served(catalog) as found:
        page = open_map(server=found, ready=False)
        expect(page.locator(".making")).to_contain_text("The map cannot be made: openTSNE must be installed.")
        expect(page.get_by_role("button", name="Make the map")).to_be_visible()


def test_an_empty_catalog(open_map: NewPage, tmp_path: Path) -> None:
    with create(tmp_path / "shop", 1) as catalog:
        catalog.remove([item_id(0)])
        with served(catalog) as found:
            page = open_map(server=found, ready=False)
            expect(page.locator(".making")).to_have_text("The catalog is empty. Add images, and they appear here.")


@pytest.mark.parametrize("n", [1, 2])
def test_few_items(open_map: NewPage, tmp_path: Path, n: int) -> None:
    with create(tmp_path / "shop", n) as catalog, served(catalog) as found:
        page = open_map(server=found)
        page.locator(".plane").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".chosen h3")).to_have_text("No other items" if n == 1 else "Its 1 nearest neighbor")
        page.get_by_label("Color").select_option("by price")
        settle(page)


def test_moved_files(open_map: NewPage, tmp_path: Path) -> None:
    with create(tmp_path / "shop", 30, files=False) as catalog, served(catalog) as found:
        page = open_map(server=found)
        page.locator(".plane").focus()
        page.keyboard.press("Enter")
        expect(page.locator(".near .missing").first).to_have_text("no image file")
        page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, 1e9)")
        settle(page)
