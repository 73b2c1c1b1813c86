"""The map in a browser: panning, zooming, selection and search with mouse, touch and keyboard."""

import functools
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Locator, Page, expect

from browser import open_file
from liftedstruct.report.interactive_map import map_html
from liftedstruct.retrieval import nearest_neighbors
from report.maps import Squares, write_page

SQUARES = Squares(n=120, views=2)
ATLAS = "document.querySelector('.lifted-map').atlas"


@functools.cache
def fragment(squares: Squares) -> str:
    return squares.html()


def show(page: Page, folder: Path, squares: Squares = SQUARES) -> Locator:
    """Open the map and return its canvas."""
    open_file(page, write_page(folder, fragment(squares)))
    settle(page)
    return page.locator(".plane")


def settle(page: Page) -> None:
    """Wait until nothing moves and everything is drawn."""
    page.wait_for_function(f"() => {ATLAS}.painted && !{ATLAS}.camera.flight && !{ATLAS}.morph")


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """Poll for changes that the page does not signal, such as another color scheme."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "the page has not changed in 20 seconds"
        page.wait_for_timeout(20)


def searching(page: Page) -> Locator:
    return page.get_by_role("combobox", name="Search for a class")


def camera(page: Page) -> dict[str, float]:
    found: dict[str, float] = page.evaluate(f"(({{x, y, zoom}}) => ({{x, y, zoom}}))({ATLAS}.camera)")
    return found


def spot(page: Page, image: int) -> tuple[float, float]:
    """Return the position of an image on the screen."""
    box = page.locator(".plane").bounding_box()
    assert box
    x, y = page.evaluate(f"{ATLAS}.place({image})")
    return box["x"] + x, box["y"] + y


def lonely(page: Page, squares: Squares = SQUARES) -> list[int]:
    """Return visible images with no other image close to them, so that a click is unambiguous."""
    places = np.array(page.evaluate(f"[...Array({squares.n}).keys()].map(i => {ATLAS}.place(i))"))
    apart = np.linalg.norm(places[:, None] - places, axis=2) + 1e9 * np.eye(squares.n)
    box = page.evaluate(f"[{ATLAS}.camera.width, {ATLAS}.camera.height]")
    inside = ((places > 60) & (places < np.array(box) - 80)).all(axis=1)
    return [int(i) for i in np.flatnonzero(inside)[np.argsort(-apart.min(axis=1)[inside])][:5]]


def color(canvas: Locator) -> NDArray[np.float64]:
    """Return the mean color at the center of a canvas, once it is drawn."""
    for _ in range(100):
        side = int(canvas.evaluate("canvas => canvas.width")) // 2
        pixels = read(canvas, side // 2, side // 2, side)
        if pixels[:, 3].all():
            return np.asarray(pixels[:, :3].mean(axis=0), np.float64)
        canvas.page.wait_for_timeout(20)
    raise AssertionError("nothing was drawn")


def read(canvas: Locator, x: float, y: float, side: int) -> NDArray[np.float64]:
    """Return the pixels of a square, (side², 4), from a copy, since reading slows down a canvas."""
    script = """(canvas, [x, y, side]) => {
        const copy = new OffscreenCanvas(side, side).getContext('2d', {willReadFrequently: true});
        copy.drawImage(canvas, -Math.round(x), -Math.round(y));
        return [...copy.getImageData(0, 0, side, side).data];
    }"""
    return np.array(canvas.evaluate(script, [x, y, side])).reshape(-1, 4)


def same_color(canvas: Locator, image: int, squares: Squares = SQUARES) -> bool:
    return bool(abs(color(canvas) - squares.colors(np.array([image]))[0]).max() < 12)  # colors are 36 apart


def check_neighbors(page: Page, image: int, squares: Squares = SQUARES, view: int = 0) -> None:
    """Compare the panel with the neighbors that the package computes."""
    X = squares.embeddings(view)
    distances, neighbors = nearest_neighbors(X, min(5, len(X) - 1))
    expect(page.locator(".query .caption")).to_have_text(squares.captions[image])
    shown = page.locator(".chosen li button")
    said = shown.evaluate_all("""buttons => buttons.map(button => ({
        image: Number(button.dataset.image),
        ...Object.fromEntries(['said', 'distance', 'class', 'caption'].map(
            name => [name, button.querySelector('.' + name).textContent])),
    }))""")
    labels = squares.labels
    left, expected = int((labels == labels[image]).sum()) - 1, []
    for j in neighbors[image]:
        left -= labels[j] == labels[image]
        wrong = "✗ wrong" if left else "– other class, after all of the query's class"
        words = "✓ right" if labels[j] == labels[image] else wrong
        expected.append((j, words, squares.class_names[labels[j]], squares.captions[j]))
    assert [(each["image"], each["said"], each["class"], each["caption"]) for each in said] == expected
    measured = [float(each["distance"].removeprefix("distance ")) for each in said]
    assert measured == pytest.approx(distances[image].tolist(), rel=1e-3)
    for button, j in zip(shown.all(), neighbors[image], strict=True):
        assert same_color(button.locator("canvas"), j, squares)
    expect(page.locator(".query .class")).to_have_text(squares.class_names[labels[image]])
    assert same_color(page.locator(".query canvas"), image, squares)
    rank = squares.view(view).ranks[image]
    verdict = page.locator(".verdict").inner_text()
    assert ("nearest neighbor is right" in verdict) == (rank == 1)
    assert (f"nearest positive: rank {rank:,}" in verdict) == (rank > 1)


def test_drag(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    picture = show(page, tmp_path)
    before, (x, y) = camera(page), spot(page, 0)
    box = picture.bounding_box()
    assert box
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 30, middle[1] + 10)
    page.mouse.move(middle[0] + 90, middle[1] - 40)
    page.mouse.up()
    after = camera(page)
    assert after["zoom"] == before["zoom"]
    assert after["x"] == pytest.approx(before["x"] - 90 / before["zoom"])
    assert after["y"] == pytest.approx(before["y"] + 40 / before["zoom"])
    assert spot(page, 0) == pytest.approx((x + 90, y - 40))
    expect(page.locator(".nothing")).to_be_visible()  # a drag is not a click


def test_wheel_and_double_click(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    image = lonely(page)[0]
    before, place = camera(page), spot(page, image)
    page.mouse.move(*place)
    page.mouse.wheel(0, -240)
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(before["zoom"] * np.exp(0.48))
    assert spot(page, image) == pytest.approx(place, abs=1)  # the point under the pointer stays fixed
    page.mouse.wheel(0, 240)
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(before["zoom"])
    page.mouse.dblclick(*place)
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(2 * before["zoom"])
    assert spot(page, image) == pytest.approx(place, abs=1)


def test_wheel_that_scrolls_the_page(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    open_file(
        page,
        write_page(tmp_path, "<div style='height:1500px'></div>" + fragment(SQUARES) + "<div style='height:1500px'></div>"),
    )
    page.mouse.move(500, 400)
    before = camera(page)
    for _ in range(16):
        page.mouse.wheel(0, 150)
        page.wait_for_timeout(60)
    assert page.evaluate("scrollY") > 1800  # past the top of the map, without stopping
    assert camera(page) == before


def test_keys(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    picture = show(page, tmp_path)
    picture.focus()
    first = camera(page)
    for key, (x, y) in {"ArrowRight": (1, 0), "ArrowLeft": (-1, 0), "ArrowDown": (0, 1), "ArrowUp": (0, -1)}.items():
        before = camera(page)
        page.keyboard.press(key)
        after = camera(page)
        assert np.sign([after["x"] - before["x"], after["y"] - before["y"]]).tolist() == [x, y]
        assert after["zoom"] == before["zoom"]
    page.keyboard.press("+")
    assert camera(page)["zoom"] == pytest.approx(1.5 * first["zoom"])
    page.keyboard.press("-")
    page.keyboard.press("-")
    assert camera(page)["zoom"] == pytest.approx(first["zoom"] / 1.5)
    page.keyboard.press("0")
    assert camera(page) == pytest.approx(first)


def test_buttons(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    first = camera(page)
    page.get_by_role("button", name="Zoom in").click()
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(2 * first["zoom"])
    page.get_by_role("button", name="Zoom out").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    settle(page)
    assert camera(page)["zoom"] == pytest.approx(first["zoom"] / 2)
    page.get_by_role("button", name="Show the whole map").click()
    settle(page)
    assert camera(page) == pytest.approx(first)


def test_zoom_has_an_end(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path).focus()
    first = camera(page)
    for _ in range(40):
        page.keyboard.press("-")
    assert camera(page)["zoom"] == pytest.approx(first["zoom"] / 2)
    for _ in range(40):
        page.keyboard.press("+")
    assert camera(page)["zoom"] == pytest.approx(1024 * 120**0.5)
    for _ in range(60):
        page.keyboard.press("Shift+ArrowRight")
    assert camera(page)["x"] <= 1
    settle(page)


def test_hover(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    card = page.locator(".card")
    expect(card).to_be_hidden()
    for image in lonely(page):
        page.mouse.move(*spot(page, image))
        expect(card).to_have_attribute("data-image", str(image))
        expect(card.locator(".class")).to_have_text(SQUARES.class_names[image % 6])
        expect(card.locator(".caption")).to_have_text(SQUARES.captions[image])
        assert same_color(card.locator("canvas"), image)
    page.mouse.move(2, 2)
    expect(card).to_be_hidden()


def test_painted_thumbnails(browser_page: Page, tmp_path: Path) -> None:
    """Isolated images show their thumbnails at their positions on the canvas."""
    page = browser_page
    show(page, tmp_path)
    for image in lonely(page):
        x, y = page.evaluate(f"{ATLAS}.place({image})")
        pixels = read(page.locator(".plane"), x - 4, y - 4, 8)[:, :3]
        assert abs(pixels.mean(axis=0) - SQUARES.colors(np.array([image]))[0]).max() < 12


def test_click(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    for image in lonely(page):
        page.mouse.click(*spot(page, image))
        check_neighbors(page, image)
        expect(page.locator(".live")).to_contain_text(
            f"Selected: {SQUARES.captions[image]}, class {SQUARES.class_names[image % 6]};"
        )


def test_all_images_by_script(browser_page: Page, tmp_path: Path) -> None:
    """The page has the neighbors of every image, not only of isolated ones."""
    page = browser_page
    show(page, tmp_path)
    for image in range(0, 120, 30):
        page.evaluate(f"{ATLAS}.choose({image})")
        check_neighbors(page, image)


def test_images_above_others_are_clicked_first(browser_page: Page, tmp_path: Path) -> None:
    """The selected image and its neighbors are above all other images, even if another dot or thumbnail is closer."""
    page = browser_page
    show(page, tmp_path)
    page.evaluate(f"{ATLAS}.choose(7)")
    going = int(nearest_neighbors(SQUARES.embeddings(), 5)[1][7, 4])
    page.evaluate(f"{ATLAS}.camera.set({ATLAS}.view.positions[{2 * going}], {ATLAS}.view.positions[{2 * going + 1}], 9000)")
    settle(page)
    page.mouse.move(*spot(page, going))
    page.mouse.click(*spot(page, going))
    check_neighbors(page, going)


def test_a_neighbor_is_gone_to(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    image = lonely(page)[0]
    page.mouse.click(*spot(page, image))
    second = page.locator(".chosen li button").nth(1)
    going = int(str(second.get_attribute("data-image")))
    second.click()
    check_neighbors(page, going)
    settle(page)
    box = page.locator(".plane").bounding_box()
    assert box
    assert spot(page, going) == pytest.approx((box["x"] + box["width"] / 2, box["y"] + box["height"] / 2), abs=1)
    page.keyboard.press("Enter")  # the focus is on its first neighbor
    nearest = int(nearest_neighbors(SQUARES.embeddings(), 1)[1][going, 0])
    check_neighbors(page, nearest)
    page.keyboard.press("Escape")
    expect(page.locator(".nothing")).to_be_visible()
    expect(page.locator(".plane")).to_be_focused()


def test_choosing_by_keys(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path).focus()
    page.keyboard.press("ArrowRight")
    places = np.array(page.evaluate(f"[...Array(120).keys()].map(i => {ATLAS}.place(i))"))
    width, height = page.evaluate(f"[{ATLAS}.camera.width, {ATLAS}.camera.height]")
    pointed = int(str(page.locator(".card").get_attribute("data-image")))
    expect(page.locator(".live")).to_contain_text(f"Closest to the center: {SQUARES.captions[pointed]}")
    page.keyboard.press("Enter")
    check_neighbors(page, pointed)
    side = page.evaluate(f"{ATLAS}.scene.side({ATLAS}.camera.zoom)")
    away = abs(places - np.array([width / 2, height / 2])).max(axis=1)
    assert away[pointed] <= max(side / 2, away.min())  # at the center, or the closest to it
    expect(page.locator(".chosen li button").first).to_be_focused()


def test_search_by_mouse(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    field = searching(page)
    field.click()
    field.press_sequentially("CLASS 0")
    options = page.get_by_role("listbox").get_by_role("option")
    expect(options).to_have_count(6)
    expect(options.nth(3)).to_contain_text("class_03")
    options.nth(3).click()
    expect(field).to_have_value("class_03")
    expect(page.get_by_role("listbox")).to_be_hidden()
    settle(page)
    assert page.evaluate(f"[...{ATLAS}.scene.shown]") == [2 if i % 6 == 3 else 1 for i in range(120)]
    width, height = page.evaluate(f"[{ATLAS}.camera.width, {ATLAS}.camera.height]")
    for image in range(3, 120, 6):  # all of them are in view
        x, y = page.evaluate(f"{ATLAS}.place({image})")
        assert 0 < x < width
        assert 0 < y < height
    expect(page.locator(".live")).to_have_text("20 images of class class_03 shown.")
    page.get_by_role("button", name="Clear the search").click()
    expect(field).to_have_value("")
    assert set(page.evaluate(f"[...{ATLAS}.scene.shown]")) == {2}


def test_search_by_keys(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    field = searching(page)
    field.focus()
    page.keyboard.type("class")
    expect(field).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    chosen = page.locator("[aria-selected=true]")
    expect(chosen).to_contain_text("class_01")
    expect(field).to_have_attribute("aria-activedescendant", str(chosen.get_attribute("id")))
    page.keyboard.press("Enter")
    expect(field).to_have_value("class_01")
    assert page.evaluate(f"{ATLAS}.searched") == 1
    page.keyboard.press("Escape")
    expect(field).to_have_value("")
    assert page.evaluate(f"{ATLAS}.searched") is None
    page.keyboard.type("zebra")
    expect(page.get_by_role("listbox")).to_have_text("No matching class")
    page.keyboard.press("Enter")
    assert page.evaluate(f"{ATLAS}.searched") is None


@pytest.mark.parametrize("by", ["mouse", "keys"])
def test_failures(browser_page: Page, tmp_path: Path, by: str) -> None:
    page = browser_page
    show(page, tmp_path)
    ranks = SQUARES.view().ranks
    failures = np.flatnonzero(ranks > 1)
    assert 0 < len(failures) < 60
    button = page.get_by_role("button", name=f"Failures only ({len(failures)})")

    def press() -> None:
        if by == "mouse":
            button.click()
        else:
            button.focus()
            page.keyboard.press("Space")

    press()
    expect(button).to_have_attribute("aria-pressed", "true")
    settle(page)
    assert np.flatnonzero(page.evaluate(f"[...{ATLAS}.scene.shown]")).tolist() == failures.tolist()
    hidden = next(image for image in lonely(page) if ranks[image] == 1)
    page.mouse.move(*spot(page, hidden))
    page.wait_for_timeout(50)
    assert page.evaluate(f"{ATLAS}.over") != hidden
    expect(page.locator(".live")).to_have_text(f"{len(failures)} failures shown.")
    press()
    expect(button).to_have_attribute("aria-pressed", "false")
    assert set(page.evaluate(f"[...{ATLAS}.scene.shown]")) == {2}


def test_no_failures(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path, Squares(n=60, classes=3, noise=0.01))
    page.get_by_role("button", name="Failures only (0)").click()
    expect(page.locator(".message")).to_have_text("No failures: the nearest neighbor of every query is of the same class.")
    expect(page.locator(".live")).to_contain_text("No failures")


def test_views(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    show(page, tmp_path)
    image = lonely(page)[0]
    page.mouse.click(*spot(page, image))
    before = spot(page, image)
    page.evaluate(f"""() => {{
        window.seen = [];
        const watch = () => {{
            if ({ATLAS}.morph) seen.push({ATLAS}.place(7).join());
            requestAnimationFrame(watch);
        }};
        watch();
    }}""")
    page.get_by_text("run 1").click()
    expect(page.get_by_role("radio", name="run 1")).to_be_checked()
    settle(page)
    assert len(set(page.evaluate("seen"))) > 3  # the images moved gradually
    check_neighbors(page, image, view=1)
    assert spot(page, image) == pytest.approx(before, abs=1)  # the selected image stays in place
    failures = int((SQUARES.view(1).ranks > 1).sum())
    expect(page.get_by_role("button", name=re.compile("Failures"))).to_have_text(f"Failures only ({failures})")
    page.get_by_role("radio", name="run 1").focus()
    page.keyboard.press("ArrowLeft")
    settle(page)
    check_neighbors(page, image, view=0)


def test_less_motion(new_page: Callable[..., Page], tmp_path: Path) -> None:
    page = new_page(reduced_motion="reduce")
    show(page, tmp_path)
    zoom = camera(page)["zoom"]
    page.get_by_role("button", name="Zoom in").click()
    assert camera(page)["zoom"] == pytest.approx(2 * zoom)  # at once
    page.get_by_text("run 1").click()
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.evaluate(f"{ATLAS}.morph") is None


def test_fingers(new_page: Callable[..., Page], tmp_path: Path) -> None:
    page = new_page(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    show(page, tmp_path)
    image = lonely(page)[0]
    page.touchscreen.tap(*spot(page, image))
    check_neighbors(page, image)
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        fingers = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})

    page.evaluate("scrollTo(0, 0)")
    box = page.locator(".plane").bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = camera(page)
    touch("touchStart", (x, y))
    touch("touchMove", (x + 20, y))
    touch("touchMove", (x + 50, y + 30))
    touch("touchEnd")
    after = camera(page)
    assert after["x"] == pytest.approx(before["x"] - 50 / before["zoom"], abs=1e-3)
    assert after["y"] == pytest.approx(before["y"] - 30 / before["zoom"], abs=1e-3)
    assert page.evaluate("scrollY") == 0
    touch("touchStart", (x - 40, y))
    touch("touchStart", (x - 40, y), (x + 40, y))
    touch("touchMove", (x - 60, y), (x + 60, y))
    touch("touchMove", (x - 80, y), (x + 80, y))
    touch("touchEnd")
    assert camera(page)["zoom"] == pytest.approx(2 * before["zoom"], rel=0.02)
    assert camera(page)["x"] == pytest.approx(after["x"], abs=2 / before["zoom"])


HOSTILE = (
    "<script>document.title='run'</script>",
    "</script><img src=x onerror=\"document.title='run'\">",
    'it\'s "quoted" & <b>bold</b> ${1}',
    "a\u2028b 🦜🏳️‍🌈",
    "طائر صغير (صوت)",
    "x" * 300,
)


def test_names_are_data(browser_page: Page, tmp_path: Path) -> None:
    page = browser_page
    squares = Squares(names=HOSTILE)
    show(page, tmp_path, squares)
    for image in range(6):
        page.evaluate(f"{ATLAS}.choose({image})")
        assert page.locator(".query .class").evaluate("name => name.textContent") == HOSTILE[image]
        page.evaluate(f"{ATLAS}.choose(null); {ATLAS}.point({image})")
        expect(page.locator(".card")).to_be_visible()
        assert page.locator(".card .class").evaluate("name => name.textContent") == HOSTILE[image]
        field = searching(page)
        field.fill(HOSTILE[image][:20])
        assert HOSTILE[image] in page.get_by_role("listbox").evaluate("list => list.textContent")
        page.keyboard.press("Enter")
        assert page.evaluate(f"{ATLAS}.searched") == image
        page.get_by_role("button", name="Clear the search").click()
    assert page.title() == "map"
    assert page.locator(".lifted-map img, .lifted-map b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("width", [360, 390, 768, 1280])
def test_no_sideways_scrolling(browser_page: Page, tmp_path: Path, width: int) -> None:
    page = browser_page
    page.set_viewport_size({"width": width, "height": 800})
    show(page, tmp_path, Squares(names=HOSTILE, views=2))
    page.evaluate(f"{ATLAS}.choose(5)")
    searching(page).fill("xx")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    stage, panel = (page.locator(name).bounding_box() for name in (".stage", ".panel"))
    assert stage
    assert panel
    below = panel["y"] >= stage["y"] + stage["height"]
    assert below == (width < 760)


@pytest.mark.parametrize(
    "squares",
    [
        Squares(n=1, classes=1),
        Squares(n=2, classes=1),
        Squares(n=7, classes=7),
        Squares(n=100, classes=1),
        Squares(n=100, classes=50),
    ],
    ids=lambda squares: f"{squares.n} of {squares.classes}",
)
def test_few(browser_page: Page, tmp_path: Path, squares: Squares) -> None:
    page = browser_page
    show(page, tmp_path, squares).focus()
    page.keyboard.press("Enter")
    image = page.evaluate(f"{ATLAS}.image")
    if squares.n > 1:
        check_neighbors(page, image, squares)
    else:
        expect(page.locator(".verdict")).to_have_text("○ the only image of its class")
        expect(page.locator(".chosen h3")).to_have_text("No neighbors")
        assert same_color(page.locator(".query canvas"), image, squares)
    searching(page).fill("class_00")
    page.keyboard.press("Enter")
    settle(page)
    page.locator(".failures").click()
    settle(page)
    pictures = (
        f"{squares.n} image{'s' if squares.n > 1 else ''} of {squares.classes} class{'es' if squares.classes > 1 else ''}"
    )
    expect(page.locator(".counts")).to_contain_text(pictures)


def test_one_spot(browser_page: Page, tmp_path: Path) -> None:
    """Images at the same position can all be hovered."""
    page, squares = browser_page, Squares(n=30)
    view = replace(squares.view(), positions=np.zeros((30, 2)))
    html = map_html([view], squares.labels, squares.class_names, squares.captions, squares.thumbnails, max_bytes=10**7)
    open_file(page, write_page(tmp_path, html))
    settle(page)
    for image in range(30):
        page.evaluate(f"{ATLAS}.camera.set({ATLAS}.view.positions[{2 * image}], {ATLAS}.view.positions[{2 * image + 1}], 1e9)")
        settle(page)
        page.mouse.move(*spot(page, image))
        expect(page.locator(".card .caption")).to_have_text(squares.captions[image])
    assert same_color(page.locator(".card canvas"), 29, squares)


@pytest.mark.slow
def test_sheets_are_decoded_when_in_view(browser_page: Page, tmp_path: Path) -> None:
    page, squares = browser_page, Squares(n=2000, classes=20)
    show(page, tmp_path, squares)
    decoded = f"{ATLAS}.sheets.sheets.size"
    assert page.locator("script.sprites").count() == 32
    assert page.evaluate(decoded) == 0  # dots
    page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, {ATLAS}.camera.closest() / 4)")
    settle(page)
    assert 0 < page.evaluate(decoded) < 32
    page.evaluate(f"{ATLAS}.sheets.most = 4")
    page.evaluate(f"{ATLAS}.camera.set(0.5, 0.5, 14 / 0.8 * Math.sqrt(2000))")  # thumbnails of 14 pixels
    settle(page)
    assert page.evaluate(decoded) <= 4 + 3  # sheets that are being decoded are not dropped
    for image in lonely(page, squares):  # all images are drawn nevertheless
        x, y = page.evaluate(f"{ATLAS}.place({image})")
        pixels = read(page.locator(".plane"), x - 2, y - 2, 4)[:, :3]
        assert abs(pixels.mean(axis=0) - squares.colors(np.array([image]))[0]).max() < 12


@pytest.mark.slow
def test_sheets_in_use_are_not_dropped(browser_page: Page, tmp_path: Path) -> None:
    """With a very small cache, a sheet that was evicted while waiting is decoded again."""
    page, squares = browser_page, Squares(n=2000, classes=400, noise=9.0)  # neighbors are spread over the sheets
    show(page, tmp_path, squares)
    page.evaluate(f"{ATLAS}.sheets.most = 2")
    for image in range(0, 2000, 250):
        page.evaluate(f"{ATLAS}.choose({image - 1 if image else 7}); {ATLAS}.choose({image})")
        page.wait_for_function(f"() => !{ATLAS}.sheets.loading")
        page.wait_for_timeout(30)
        check_neighbors(page, image, squares)


def test_dark(new_page: Callable[..., Page], tmp_path: Path) -> None:
    """The map follows the color scheme of the system."""
    page = new_page(color_scheme="dark")
    show(page, tmp_path)
    picture = page.locator(".plane")
    assert read(picture, 2, 2, 4)[:, :3].max() < 60
    page.emulate_media(color_scheme="light")
    wait_until(page, lambda: bool(read(picture, 2, 2, 4)[:, :3].min() > 230))


def test_paper(new_page: Callable[..., Page], tmp_path: Path) -> None:
    """The map is printed in its current state, on white even in dark mode."""
    page = new_page(color_scheme="dark")
    picture = show(page, tmp_path)
    page.evaluate(f"""addEventListener('beforeprint', () => {{
        window.printed = new OffscreenCanvas(9, 9);
        printed.getContext('2d').drawImage({ATLAS}.canvas, 0, 0);
    }})""")
    assert page.pdf()[:5] == b"%PDF-"
    printed = page.evaluate("[...printed.getContext('2d').getImageData(2, 2, 1, 1).data]")
    assert min(printed) > 230
    wait_until(page, lambda: bool(read(picture, 2, 2, 4)[:, :3].max() < 60))


def test_said_in_words(browser_page: Page, tmp_path: Path) -> None:
    """Accessible names and roles."""
    page = browser_page
    show(page, tmp_path)
    picture: dict[str, Any] = page.locator(".plane").evaluate(
        "node => ({role: node.role, label: node.ariaLabel, focusable: node.tabIndex})"
    )
    assert picture["role"] == "application"
    assert picture["label"].startswith("Map of 120 images. Arrow keys move it")
    assert picture["focusable"] == 0
    unnamed = page.locator(".lifted-map button").filter(has_not_text=re.compile(r"\w"))
    assert all(button.get_attribute("aria-label") for button in unnamed.all())
    expect(page.locator(".live")).to_have_attribute("aria-live", "polite")
    expect(page.locator(".note")).to_contain_text("Thumbnails of 96 px, WebP quality 75.")
