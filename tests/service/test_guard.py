"""What must not reach the catalog is refused, and the server stays alive."""

import re
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from catalog.shop import catalog_of, make_embedder, write_photos
from faults import ENVIRONMENT
from liftedstruct.catalog import Catalog
from liftedstruct.cli import main
from liftedstruct.service import guard
from liftedstruct.service.guard import check_binding
from service.running import Running, running

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Catalog]:
    folder = tmp_path_factory.mktemp("shop")
    with Catalog.open(folder / "catalog", make_embedder()) as catalog:
        catalog.add(write_photos(folder / "photos"))
        yield catalog


@pytest.fixture(scope="module")
def server(shop: Catalog) -> Iterator[Running]:
    with running(shop, hosts=("127.0.0.1", "shop.example", "[::1]")) as found:
        yield found


def ask(port: int, *lines: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send a request as it is, and return the status and the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    return int(answer.split()[1]), answer


def alive(server: Running) -> bool:
    return server.client.get("/health").status_code == 200


# --- names, origins, tokens ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:1", 200),
        ("shop.example", 200),
        ("SHOP.example:443", 200),
        ("[::1]:80", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("shop.example.", 403),
        ("localhost", 403),
        ("shop.example@evil.example", 403),
        ("", 403),
        ("::1", 403),
    ],
)
def test_host(server: Running, host: str, status: int) -> None:
    for path in ("/health", "/items", "/images/top.png", "/docs", "/openapi.json", "/static/docs.js"):
        assert ask(server.port, f"GET {path} HTTP/1.1", f"Host: {host}")[0] == status


def test_no_host(server: Running) -> None:
    assert ask(server.port, "GET /health HTTP/1.0")[0] == 403
    assert ask(server.port, "GET /health HTTP/1.1")[0] == 400
    assert ask(server.port, "GET /health HTTP/1.1", "Host: 127.0.0.1", "Host: evil.example")[0] == 400


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://shop.example", 200),
        ("https://shop.example", 200),
        ("http://shop.example:8080", 403),
        ("http://evil.example", 403),
        ("http://shop.example.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("file://shop.example", 403),
        ("http://evil.example@shop.example", 403),
    ],
)
def test_origin(server: Running, origin: str, status: int) -> None:
    for method, path in (("GET", "/items"), ("GET", "/images/top.png"), ("DELETE", "/items/none"), ("POST", "/search")):
        found = ask(server.port, f"{method} {path} HTTP/1.1", "Host: shop.example", f"Origin: {origin}")[0]
        assert (found == 403) == (status == 403)


@pytest.mark.parametrize(
    ("site", "mode", "method", "status"),
    [
        ("same-origin", "cors", "GET", 200),
        ("none", "navigate", "GET", 200),
        ("cross-site", "navigate", "GET", 200),  # a link
        ("cross-site", "no-cors", "GET", 403),  # <img src>
        ("same-site", "no-cors", "GET", 403),  # of another port
        ("cross-site", "navigate", "POST", 403),  # <form>
    ],
)
def test_pages_of_other_sites(server: Running, site: str, mode: str, method: str, status: int) -> None:
    lines = (f"{method} /items HTTP/1.1", "Host: 127.0.0.1", f"Sec-Fetch-Site: {site}", f"Sec-Fetch-Mode: {mode}")
    assert ask(server.port, *lines)[0] == status


def test_headers_of_every_answer(server: Running) -> None:
    for path in ("/health", "/items", "/images/top.png", "/docs", "/nothing", "/items/none"):
        headers = server.client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert "access-control-allow-origin" not in headers


def test_token(shop: Catalog) -> None:
    with running(shop, token=TOKEN) as server:
        for header in ("", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"bearer {TOKEN}", TOKEN, f"Basic {TOKEN}", "Bearer ÿ"):
            for path in ("/health", "/items", "/docs", "/nothing", "/openapi.json"):
                headers = {b"authorization": header.encode("latin-1")}
                response = server.client.get(path, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"].startswith("Bearer, Basic ")
        assert server.client.get("/items").status_code == 200
        for password, status in {TOKEN: 200, "": 401, TOKEN[:-1]: 401, f"{TOKEN}:": 401}.items():  # of a browser
            assert server.client.get("/items", auth=("any name", password)).status_code == status
        for broken in ("Basic", "Basic !", "Basic =", "Basic AAAA"):
            assert server.client.get("/items", headers={"authorization": broken}).status_code == 401
        assert TOKEN not in "".join(server.log)
        assert "HTTPBearer" in server.client.get("/openapi.json").text


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "shop.example", ""])
def test_other_addresses_need_a_token(host: str, shop: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"--host must be 127\.0\.0\.1 unless there is a --token"):
        check_binding(host, None)
    check_binding(host, TOKEN)
    assert main(["serve", shop.address, "--host", host]) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("token", ["", "short", "with space 0123456789", "ÿ" * 20, "0123456789abcde\n"])
def test_weak_tokens(token: str) -> None:
    with pytest.raises(ValueError, match="--token must have 16 or more ASCII characters"):
        check_binding("127.0.0.1", token)


# --- sizes ---------------------------------------------------------------------------------------------------------------


def form(content: bytes) -> tuple[bytes, str]:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
    return head + content + b"\r\n--x--\r\n", "Content-Type: multipart/form-data; boundary=x"


@pytest.mark.parametrize("length", ["33554433", "9" * 30, "4294967297"])
def test_a_large_body_by_its_header(server: Running, length: str) -> None:
    status, answer = ask(server.port, "POST /search HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}")
    assert status in (413, 400)  # 400: more digits than HTTP allows
    assert status == 400 or b"at most 33,554,432 bytes" in answer


@pytest.mark.parametrize("length", ["-1", "abc", "1, 2", "+5", "0x10"])
def test_wrong_lengths(server: Running, length: str) -> None:
    status, _ = ask(server.port, "POST /search HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {length}")
    assert status == 400
    assert alive(server)


def test_a_large_body_in_chunks(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "UPLOAD_BYTES", 1 << 20)

    def chunks() -> Iterator[bytes]:
        yield form(b"")[0].partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        for _ in range(40):
            yield bytes(1 << 16)

    response = server.client.post("/search", content=chunks(), headers={"content-type": "multipart/form-data; boundary=x"})
    assert response.status_code == 413
    response = server.client.post("/search", content=chunks(), headers={"content-type": "application/json"})
    assert response.status_code == 413
    assert alive(server)


def test_a_body_beyond_its_length(server: Running) -> None:
    body, kind = form(b"x")
    status, _ = ask(server.port, "POST /search HTTP/1.1", "Host: 127.0.0.1", kind, "Content-Length: 20", body=body)
    assert status in (400, 422)
    assert alive(server)


def test_many_uploads_at_once(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HELD_BYTES", 1000)
    response = server.client.post("/search", files={"image": bytes(5000)})
    assert (response.status_code, response.headers["retry-after"]) == (429, "1")
    monkeypatch.undo()
    assert server.client.post("/search", files={"image": bytes(5000)}).status_code == 422
    middleware = next(each for each in server.log if "POST" in each)
    assert middleware


def png(width: int, height: int) -> bytes:
    """A PNG file of a few kilobytes that claims so many pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress(bytes(1 << 20), 9)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(12_000, 12_000), (2**31 - 1, 2**31 - 1), (1, 2**31 - 1)])
def test_pixel_bombs(server: Running, size: tuple[int, int]) -> None:
    content = png(*size)
    for crop in ("", "0,0,1,1"):
        response = server.client.post("/search", files={"image": content}, data={"crop": crop} if crop else {})
        assert response.status_code == 413, response.text
        assert "too many pixels" in response.json()["detail"]
    assert server.client.post("/encode", files={"images": content}).status_code == 413
    assert server.client.put("/items/bomb", files={"image": content}).status_code == 413
    assert alive(server)


def test_uploads_are_never_files(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("an upload was written to a file")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)  # of SpooledTemporaryFile.rollover
    assert server.client.post("/search", files={"image": bytes(8 << 20)}).status_code == 422


# --- addresses -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/images/../../../../etc/passwd",
        "/images/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/images//etc/passwd",
        "/images/%2Fetc%2Fpasswd",
        "/thumbnails/..%5c..%5cetc",
        "/static/../../catalog/catalog.py",
        "/static/%2e%2e/%2e%2e/embedder.py",
        "/static/..%2f..%2fembedder.py",
        "/static/map/..%2fpage.py",
        "/static/map/%2e%2e%2f%2e%2e%2fembedder.py",
        "/static/%00",
        "/images/%00",
        "/images/%ff%fe",
        "/items/" + "a" * 5000,
        "//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
def test_traversal(server: Running, path: str) -> None:
    status, answer = ask(server.port, f"GET {path} HTTP/1.1", "Host: 127.0.0.1")
    assert status in (404, 422)
    assert b"root:" not in answer
    assert b"import" not in answer


def test_images_come_only_from_items(server: Running, shop: Catalog) -> None:
    for name in (str(Path(shop.address) / "catalog.sqlite"), "catalog.sqlite", "/etc/hostname"):
        assert server.client.get("/images/" + name.replace("/", "%2F")).status_code == 404


# --- time ----------------------------------------------------------------------------------------------------------------


def closed_within(connection: socket.socket, seconds: float) -> bytes:
    """Return what a server still sends before it closes the connection."""
    connection.settimeout(seconds)
    answer = b""
    try:
        while part := connection.recv(1 << 16):
            answer += part
    except ConnectionResetError:
        pass
    return answer


def test_slow_headers(shop: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.5)
    with running(shop) as server:
        slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
        slow[0].sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")  # the next request on this connection is slow
        assert slow[0].recv(1 << 16).startswith(b"HTTP/1.1 200")
        assert slow[0].recv(1 << 16) == b'{"status":"ok"}'
        begin = time.monotonic()
        for i, connection in enumerate(slow):
            connection.sendall(b"GET /health HTTP/1.1\r\nX: " if i % 2 == 0 else b"G")
        slow.append(socket.create_connection(("127.0.0.1", server.port)))  # sends nothing
        while time.monotonic() - begin < 0.4:
            for connection in slow[:-1]:
                connection.sendall(b"a")
            assert alive(server)
            time.sleep(0.05)
        for connection in slow:
            assert closed_within(connection, 5) == b""
            connection.close()
        assert alive(server)


@pytest.mark.parametrize("kind", ["Content-Type: multipart/form-data; boundary=x", "Content-Type: application/json"])
def test_slow_bodies(shop: Catalog, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.6)
    with running(shop) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = f"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}\r\nContent-Length: 100000\r\n\r\n"
            connection.sendall(head.encode())
            for _ in range(4):
                connection.sendall(b"--x")
                time.sleep(0.1)
            assert b" 408 " in closed_within(connection, 5)
        assert alive(server)


@pytest.mark.parametrize("more", [b"\r\n", b"Connection: close\r\n\r\n", b"\r\nG"])
def test_clients_that_do_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: bytes) -> None:
    monkeypatch.setattr(guard, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(guard, "BODY_SECONDS", 0.5)
    X = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    metadata = [{"text": "x" * 20_000} for _ in X]
    with (
        catalog_of(tmp_path / "large", X, metadata=metadata) as catalog,
        running(catalog) as server,
        socket.create_connection(("127.0.0.1", server.port)) as connection,
    ):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /items?limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n" + more)
        deadline = time.monotonic() + 20
        server.client.close()
        while server.server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not server.server.server_state.connections


def test_clients_that_leave(server: Running) -> None:
    body, kind = form(bytes(100_000))
    for cut in (0, 50, 5000, len(body) - 3):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = f"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\n{kind}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body[:cut])
    time.sleep(0.2)
    assert alive(server)
    assert not any("Traceback" in line for line in server.log)


@pytest.mark.parametrize(
    "garbage",
    [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", b"GET\r\n\r\n", b"A" * 100_000, b"\0" * 100,
     b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
     b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
     b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n"],
)  # fmt: skip
def test_garbage(server: Running, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        try:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            answer = closed_within(connection, 15)
        except OSError:
            answer = b""
    assert not answer or answer.split()[1].startswith(b"4")
    assert alive(server)


def test_answers_are_sent_at_once(server: Running) -> None:
    times = []
    for _ in range(20):
        begin = time.monotonic()
        assert alive(server)
        times.append(time.monotonic() - begin)
    assert np.median(times) < 0.03  # 0.04 where a part of the answer waits for an acknowledgment


# --- the log -------------------------------------------------------------------------------------------------------------


def test_one_line_a_request(shop: Catalog) -> None:
    with running(shop) as server:
        server.client.get("/items?where=product%20%3D%20secret")
        server.client.get("/items/two%0Alines")
        server.client.post("/search", files={"image": b"private"}, headers={"user-agent": "private"})
        server.client.get("/health", headers={"host": "evil.example"})
        time.sleep(0.2)
        lines = [line for line in server.log if "/ready" not in line]
    assert [re.sub(r"\d+\.\d ms \d+ B", "T", line) for line in lines] == [
        "GET /items 200 T",
        "GET /items/two%0Alines 404 T",
        "POST /search 422 T",
        "GET /health 403 T",
    ]
    size = int(lines[0].split()[-2])
    assert size == len('{"items":[],"next":null}')


def test_a_failure_is_one_answer_and_in_the_log(shop: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(shop) as server:
        monkeypatch.setattr(type(shop), "items", lambda *_: 1 / 0)
        response = server.client.get("/items")
        assert response.status_code == 500
        assert "ZeroDivisionError" not in response.text
        assert any("ZeroDivisionError" in line for line in server.log)
        assert "nosniff" in response.headers["x-content-type-options"]


# --- the commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["serve"], ["explore", "--no-browser"]])
def test_the_commands(command: list[str], shop: Catalog, tmp_path: Path) -> None:
    program = [sys.executable, "-m", "liftedstruct", *command, shop.address, "--port", "0"]
    with subprocess.Popen(
        program, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert address, line
        assert line.startswith("6 items of ")
        with httpx.Client(base_url=address[0], timeout=30) as client:
            assert client.get("/status").json()["explorer"] == (command[0] == "explore")
        server.terminate()
        _, log = server.communicate(timeout=60)
    assert "GET /status 200" in log
    assert "Traceback" not in log


def test_a_port_in_use(shop: Catalog, server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", shop.address, "--port", str(server.port)]) == 1
    assert "in use" in capsys.readouterr().err


def test_no_catalog(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", str(tmp_path / "none")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "a catalog must exist" in error


def test_the_package_does_not_load_the_server() -> None:
    code = "import sys, liftedstruct, liftedstruct.cli.main; print(*{'fastapi', 'uvicorn', 'starlette'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, shop: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["serve", shop.address]) == 1
    assert "pip install 'liftedstruct[serve]'" in capsys.readouterr().err
