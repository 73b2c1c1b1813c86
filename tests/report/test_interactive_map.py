import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from liftedstruct.data.image_set import Indices
from liftedstruct.figures.thumbnails import Pixels
from liftedstruct.report import interactive_map
from liftedstruct.report.interactive_map import map_html
from report.maps import Squares


def block(html: str, name: str) -> Any:
    found = re.findall(rf'<script type="application/json" class="{name}">(.*?)</script>', html, re.DOTALL)
    assert len(found) == 1
    return json.loads(found[0])


def array(packed: dict[str, str]) -> NDArray[Any]:
    numbers: NDArray[Any] = np.frombuffer(base64.b64decode(packed["data"]), np.dtype(f"<{packed['type']}"))
    return numbers


def sheets(html: str) -> list[Pixels]:
    texts = re.findall(r'<script type="text/plain" class="sprites">(.*?)</script>', html)
    return [np.asarray(Image.open(io.BytesIO(base64.b64decode(text))).convert("RGB")) for text in texts]


def cells(html: str) -> Pixels:
    """Return the thumbnails of all images, cut out of their sheets."""
    about, slots = block(html, "about"), array(block(html, "data")["slots"])
    side, columns, found = about["side"], about["columns"], sheets(html)
    cut = []
    for sheet, place in zip(*divmod(slots.astype(int), columns**2), strict=True):
        y, x = side * (place // columns), side * (place % columns)
        cut.append(found[sheet][y : y + side, x : x + side])
    return np.stack(cut)


def test_what_is_sent() -> None:
    squares = Squares(views=2)
    html = squares.html()
    data = block(html, "data")
    assert data["classes"] == squares.class_names
    assert data["captions"] == squares.captions
    np.testing.assert_array_equal(array(data["labels"]), squares.labels)
    for number, sent in enumerate(data["views"]):
        view = squares.view(number)
        assert sent["name"] == view.name
        np.testing.assert_array_equal(array(sent["neighbors"]).reshape(-1, 5), view.neighbors)
        np.testing.assert_allclose(array(sent["distances"]).reshape(-1, 5), view.distances, rtol=1e-6)
        np.testing.assert_array_equal(array(sent["ranks"]), view.ranks)
        x, y = array(sent["positions"]).reshape(-1, 2).T
        assert np.corrcoef(x, view.positions[:, 0])[0, 1] > 0.999999  # shifted and scaled
        assert np.corrcoef(y, view.positions[:, 1])[0, 1] < -0.999999  # y points down
        assert max(np.ptp(x), np.ptp(y)) == pytest.approx(1)


def test_every_image_is_on_its_sheet() -> None:
    squares = Squares(n=200)  # on four sheets of 64
    html = squares.html()
    assert len(sheets(html)) == 4
    assert sorted(array(block(html, "data")["slots"])) == list(range(200))
    middles = cells(html)[:, 32:64, 32:64].mean(axis=(1, 2))
    assert abs(middles - squares.colors(np.arange(200))).max() < 12  # colors are 36 apart


def test_only_classes_that_are_there() -> None:
    squares = Squares(n=12, classes=3)
    html = map_html(
        [squares.view()], 2 * squares.labels + 1, list("abcdefg"), squares.captions, squares.thumbnails, max_bytes=10**7
    )
    assert block(html, "data")["classes"] == ["b", "d", "f"]
    np.testing.assert_array_equal(array(block(html, "data")["labels"]), squares.labels)


@given(
    n=st.integers(1, 40),
    spots=st.integers(1, 40),
    shift=st.floats(-1e6, 1e6),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 9),
)
def test_places(n: int, spots: int, shift: float, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    positions = rng.standard_normal((spots, 2))[rng.integers(0, spots, n)] * scale + shift
    places = interactive_map.places_on_map(positions)
    assert places.shape == (n, 2)
    assert places.min() >= -1e-6
    assert places.max() <= 1 + 1e-6
    np.testing.assert_allclose((places.min(axis=0) + places.max(axis=0)) / 2, 0.5, atol=1e-6)
    apart = np.linalg.norm(places[:, None] - places[None], axis=2)[np.triu_indices(n, 1)]
    assert (apart > 0).all()  # also for images at the same position


def test_images_at_one_spot_are_apart_at_the_closest_zoom() -> None:
    places = interactive_map.places_on_map(np.vstack((np.zeros((500, 2)), np.ones((500, 2)))))
    apart = np.linalg.norm(places[:500, None] - places[None, :500], axis=2)[np.triu_indices(500, 1)]
    assert 1024 * 1000**0.5 * apart.min() > 60  # pixels; 1024 sqrt(n) is the closest zoom of map.js
    assert apart.max() < 0.1  # they stay one group


def test_near_images_share_a_sheet() -> None:
    places = np.random.default_rng(0).random((4096, 2), dtype=np.float32)
    order = interactive_map._along_a_curve(places)
    assert sorted(order) == list(range(4096))
    spread = [np.ptp(places[rows], axis=0).prod() for rows in np.array_split(order, 64)]
    assert np.mean(spread) < 0.05  # 1/64 at best, about 1 in random order


HOSTILE = [
    "<script>document.title='run'</script>",
    "</script><img src=x onerror=alert(1)>",
    "<!-- <script>",
    'it\'s "quoted" & `ticked` ${x} $style $$',
    "line\u2028separator\u2029 \x00 \x1f",
    "🦜🏳️‍🌈",
    "طائر صغير",
    "lone surrogate \ud83d",
    "x" * 300,
    "",
]


def test_names_are_data() -> None:
    squares = Squares(n=20, classes=10, names=tuple(HOSTILE))
    html = map_html([squares.view()], squares.labels, HOSTILE, HOSTILE * 2, squares.thumbnails, max_bytes=10**7)
    data = block(html, "data")
    assert data["classes"] == HOSTILE
    assert data["captions"] == HOSTILE * 2
    between = html.split('class="data">')[1].split("</script>")[0]
    assert "<" not in between
    assert between.isascii()
    html.encode()  # also with a lone surrogate


def test_nothing_is_fetched() -> None:
    html = Squares().html()
    for word in ("http:", "https:", "//cdn", " src=", "href=", "import(", "fetch(", "XMLHttpRequest", "innerHTML", "Worker("):
        assert word not in html, word


def noise(rows: Indices, side: int) -> Pixels:
    """Return images that do not compress well."""
    return np.stack([np.random.default_rng(row).integers(0, 256, (side, side, 3), np.uint8) for row in rows])


@pytest.mark.slow
def test_size() -> None:
    squares = Squares(n=130)
    inputs = ([squares.view()], squares.labels, squares.class_names, squares.captions, noise)
    whole = len(map_html(*inputs, max_bytes=10**8))
    steps: list[tuple[int, int]] = []
    for most in (whole + 20_000, whole - 100_000, 400_000, 250_000):
        html = map_html(*inputs, max_bytes=most)
        assert len(html.encode()) <= most
        about = block(html, "about")
        quality = int(re.findall(r"WebP quality (\d+)", about["note"])[0])
        steps.append((about["side"], quality))
        lowered = f"lowered from 96 px and quality 75 to keep the map below {most / 1e6:.1f} MB"
        assert (lowered in about["note"]) == (steps[-1] != (96, 75))
        assert 0 < len(html.encode()) - about["bytes"] < 80_000  # script and style are not counted as data
    assert steps[0] == (96, 75)
    assert steps[1][0] == 96  # the quality is lowered first
    assert steps[1][1] < 75
    assert steps == sorted(steps, reverse=True)
    assert steps[-1][0] < 96  # then the side is lowered
    with pytest.raises(ValueError, match="max_bytes must be about"):
        map_html(*inputs, max_bytes=90_000)


@pytest.mark.slow
def test_the_least_size_that_is_named_is_enough() -> None:
    squares = Squares(n=130)
    inputs = ([squares.view()], squares.labels, squares.class_names, squares.captions, noise)
    with pytest.raises(ValueError, match="max_bytes") as caught:
        map_html(*inputs, max_bytes=1000)
    least = int(re.findall(r"about ([\d,]+)", str(caught.value))[0].replace(",", ""))
    assert len(map_html(*inputs, max_bytes=round(1.05 * least))) <= 1.05 * least


def test_a_guess_that_was_too_low() -> None:
    """If the sampled sheets compress better than the others, the next quality is tried."""
    squares = Squares(n=330)
    order = interactive_map._along_a_curve(interactive_map.places_on_map(squares.view().positions))
    guessed = np.concatenate(list(interactive_map._blocks(order, 96, interactive_map.SAMPLES)))
    assert len(guessed) == 4 * 64

    def some(rows: Indices, side: int) -> Pixels:
        plain = np.isin(rows, guessed)
        return np.where(plain[:, None, None, None], squares.thumbnails(rows, side), noise(rows, side))

    html = map_html([squares.view()], squares.labels, squares.class_names, squares.captions, some, max_bytes=500_000)
    assert len(html.encode()) <= 500_000
    assert "lowered from 96 px" in block(html, "about")["note"]


def test_thumbnails_are_asked_for_in_blocks() -> None:
    squares, asked = Squares(n=1000), []

    def some(rows: Indices, side: int) -> Pixels:
        asked.append(rows)
        assert (np.diff(rows) > 0).all()  # in the order of the file
        return squares.thumbnails(rows, side)

    map_html([squares.view()], squares.labels, squares.class_names, squares.captions, some, max_bytes=10**7)
    assert max(map(len, asked)) == 64
    assert sorted(np.concatenate(asked[-16:])) == list(range(1000))


@pytest.mark.parametrize(("n", "side"), [(1, 96), (15_000, 96), (16_000, 64), (60_502, 48), (1_000_000, 48)])
def test_side(n: int, side: int) -> None:
    assert interactive_map._sides(n)[0] == side


def test_same_bytes() -> None:
    assert Squares().html() == Squares().html()
