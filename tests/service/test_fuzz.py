"""No request makes the server fail: what its OpenAPI document allows, and images of all kinds of damage."""

import contextlib
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import SkipTest

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from PIL import Image
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    missing_required_header,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from catalog.shop import make_embedder, write_photos
from faults import DAMAGES, damaged
from liftedstruct.catalog import Catalog
from service.running import Running, running

CHECKS = [
    content_type_conformance,
    missing_required_header,
    not_a_server_error,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The service with the pages of the explorer, whose map is there."""
    folder = tmp_path_factory.mktemp("shop")
    with Catalog.open(folder / "catalog", make_embedder()) as catalog:
        catalog.add(write_photos(folder / "photos"))
        with running(catalog, explorer=True, decisions=folder / "decisions.csv") as found:
            found.client.post("/map")
            yield found
            assert not [line for line in found.log if "Traceback" in line]


def check_operations(server: Running, examples: int, checks: list[Any]) -> None:
    """Send what the OpenAPI document allows, and what it does not, to every operation."""
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    count = 0
    for found in schema.get_all_operations():
        operation: Any = found.ok()  # type: ignore[union-attr]
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(max_examples=examples, **FUZZ)  # type: ignore[arg-type]
            @given(case=operation.as_strategy(generation_mode=mode))
            def send_one(case: Any) -> None:
                case.call_and_validate(checks=checks)

            with contextlib.suppress(SkipTest, Unsatisfiable):  # nothing to get wrong
                send_one()
        count += 1
    assert count >= 20


FUZZ = {
    "deadline": None,
    "database": None,
    "derandomize": True,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.generate],
}


def test_what_the_schema_allows(server: Running) -> None:
    check_operations(server, 8, CHECKS)


@pytest.mark.slow
def test_much_of_what_the_schema_allows(server: Running) -> None:
    check_operations(server, 150, CHECKS)


def uploads(count: int, seed: int) -> Iterator[bytes]:
    """Yield image files of all formats with all kinds of damage."""
    dice = random.Random(seed)
    files = []
    for kind in ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "TGA", "JPEG2000", "AVIF", "ICO", "PCX"):
        for mode in ("RGB", "L", "P", "RGBA", "CMYK", "I;16", "1"):
            stream = io.BytesIO()
            try:
                Image.effect_noise((40, 30), 90).convert(mode).save(stream, kind)
            except (OSError, ValueError, KeyError):
                continue
            files.append(stream.getvalue())
    for _ in range(count):
        content = dice.choice(files)
        yield damaged(content, dice, dice.choice(sorted(DAMAGES))) if dice.random() < 0.9 else content


def send(server: Running, content: bytes, dice: random.Random) -> Any:
    kind = dice.randrange(5)
    if kind == 0:
        return server.client.post("/encode", files=[("images", content)] * dice.randrange(1, 4))
    if kind == 1:
        return server.client.put("/items/fuzz", files={"image": content}, data={"product": "x"})
    if kind == 2:
        crop = ",".join(str(dice.choice((0, 0.2, 0.5, 1, -1, "nan", 1e9))) for _ in range(4))
        return server.client.post("/search", files={"image": content}, data={"crop": crop})
    if kind == 3:  # the form itself is damaged
        body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n' + content + b"\r\n--x--\r\n"
        body = damaged(body, dice, dice.choice(sorted(DAMAGES)))
        return server.client.post("/search", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    return server.client.post("/search", files={"image": content}, data={"k": str(dice.randrange(-1, 5))})


def check_uploads(server: Running, count: int, seed: int) -> None:
    dice, found = random.Random(seed), dict[int, int]()
    for content in uploads(count, seed):
        response = send(server, content, dice)
        found[response.status_code] = found.get(response.status_code, 0) + 1
        assert response.status_code in (200, 400, 413, 422), (response.status_code, response.text)
        if response.status_code != 200:
            assert "\n" not in response.json()["detail"]
    assert found[200]
    assert found[422]
    assert server.client.get("/health").status_code == 200


def test_damaged_uploads(server: Running) -> None:
    check_uploads(server, 150, 1)


@pytest.mark.slow
def test_many_damaged_uploads(server: Running, tmp_path: Path) -> None:
    check_uploads(server, 2000, 2)
