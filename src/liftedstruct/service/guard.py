"""What stands before the service: checks of name, origin and token of a request, limits of size and time, and the log."""

import asyncio
import hmac
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from liftedstruct.runtime.progress import say

__all__ = ["LOOPBACK", "Guard", "check_binding", "run_server"]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HEADER_SECONDS, BODY_SECONDS, STOP_SECONDS = 10, 60, 30
CONNECTIONS = 512
HELD = 1 << 28  # bytes of all requests that are being received
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Guard:
    """ASGI middleware that refuses a request or limits it, adds headers to the answer, and logs one line.

    Args:
        app: the service.
        hosts: names in the header Host that are answered, so that no other site can point its own name here.
        token: secret that a request must have, or None.
        upload_bytes: limit of a request's body.
        seconds: limit of the time to receive a body, and to send each part of an answer.
        log: function that is called with each line.

    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str] = LOOPBACK,
        token: str | None = None,
        upload_bytes: int = 1 << 25,
        seconds: float = BODY_SECONDS,
        log: Callable[[str], object] = say,
    ) -> None:
        self.app, self.token, self.upload_bytes, self.seconds, self.log = app, token, upload_bytes, seconds, log
        self.hosts, self.held = {host.lower() for host in hosts}, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, size = time.perf_counter(), 0, 0

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            size += len(message.get("body", b""))
            async with asyncio.timeout(self.seconds):
                await send(message)

        headers, held = Headers(scope=scope), [0]
        try:
            refused = self._refused(scope["method"], headers)
            await (refused or self.app)(scope, self._limited(receive, held), answer)
        except (ClientDisconnect, TimeoutError):  # of an answer that the client does not read
            if not status:
                status = 499
        except Exception:
            self.log(traceback.format_exc().rstrip())
            if status:
                raise
            await _problem(500, "the server must not fail, but it did. Its log has the reason.")(scope, receive, answer)
        finally:
            self.held -= held[0]
            path, milliseconds = scope.get("raw_path", b"").decode("ascii", "replace"), 1e3 * (time.perf_counter() - begin)
            self.log(f"{scope['method']} {path} {status} {milliseconds:.1f} ms {size} B")

    def _refused(self, method: str, headers: Headers) -> JSONResponse | None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if _name(host) not in self.hosts:
            return _problem(403, f"Host must be one of {', '.join(sorted(self.hosts))}, got {host[:100]!r}. Pass --hosts.")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return _problem(403, f"Origin must be this server, got {origin[:100]!r}. Send requests from its own pages.")
        opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate"  # somebody follows a link
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            return _problem(403, "requests must not come from pages of another site. Send them from its own pages.")
        given = headers.get("authorization", "").encode("latin-1")
        if self.token is not None and not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            text = "requests must have the header Authorization: Bearer TOKEN, got no valid one. Pass the token of the server."
            return _problem(401, text, {"WWW-Authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        too_large = not length.isdecimal() or int(length[:20]) > self.upload_bytes
        return _problem(413, _text_of_limit(self.upload_bytes)) if too_large else None

    def _limited(self, receive: Receive, held: list[int]) -> Receive:
        """Return a `receive` that ends a body that is too large or too slow. `held` counts its bytes."""
        deadline: float | None = asyncio.get_running_loop().time() + self.seconds

        async def limited() -> Message:
            nonlocal deadline
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                text = f"a body must arrive within {self.seconds:g} seconds, got {held[0]:,} bytes. Send it faster."
                raise HTTPException(408, text, {"Connection": "close"}) from None
            more = len(message.get("body", b""))
            held[0], self.held = held[0] + more, self.held + more
            if held[0] > self.upload_bytes:
                raise HTTPException(413, _text_of_limit(self.upload_bytes))
            if self.held > HELD:
                text = f"uploads must have at most {HELD:,} bytes at a time, got more. Try again later."
                raise HTTPException(429, text, {"Retry-After": "1"})
            if not message.get("more_body", False):
                deadline = None  # what follows is the end of the connection
            return message

        return limited


def _text_of_limit(most: int) -> str:
    return f"a request must have at most {most:,} bytes, got more. Send a smaller image, or pass --upload-megabytes."


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": detail}, status, headers)


def _name(host: str) -> str:
    """Return the name in a header Host, without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() else host.lower()


class PatientProtocol(H11Protocol):
    """Connection that is closed if the headers of a request do not arrive in time, or an answer is not read."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.deadline is not None:
            self.deadline.cancel()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(BODY_SECONDS, self.transport.abort)  # closing waits until the answer is read

    def _watch(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.deadline is None:
            self.deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)
        elif not idle and self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None


def check_binding(host: str, token: str | None) -> None:
    """Raise ValueError if others could connect without a token."""
    if token is not None and (len(token) < 16 or not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError("a token must have at least 16 ASCII characters and no spaces. Make one: openssl rand -hex 32")
    if token is None and host not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(f"--host must be 127.0.0.1 unless --token is set, got {host!r}. Make one: openssl rand -hex 32")


def run_server(
    app: FastAPI, host: str = "127.0.0.1", port: int = 8765, started: Callable[[str], object] = lambda address: None
) -> None:
    """Answer requests until the process is interrupted or terminated; those in flight are answered.

    Args:
        app: the service.
        host: address of a network interface of this machine.
        port: port; 0 for a free one.
        started: function that is called with the address of the server.

    """
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family, backlog=CONNECTIONS) as listening:
        shown = f"[{host}]" if ":" in host else host
        started(f"http://{shown}:{listening.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listening])
