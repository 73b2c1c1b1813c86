"""What stands before the service: checks of name, origin and token of a request, limits of size and time, and the log."""

import asyncio
import base64
import contextlib
import hmac
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from liftedstruct.runtime.memory import limit_heaps

__all__ = ["LOOPBACK", "Guard", "check_binding", "run_server", "server_of"]

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
HEADER_SECONDS, BODY_SECONDS, STOP_SECONDS = 10.0, 60.0, 30
CONNECTIONS = 512
UPLOAD_BYTES, HELD_BYTES = 32 << 20, 256 << 20  # of one request, and of all that are being received
POLICY = "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {"Content-Security-Policy": POLICY, "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer"}
HEADERS |= {"X-Content-Type-Options": "nosniff"}
Refusal = tuple[int, str, dict[str, str]]  # status, detail and headers
TOO_LARGE: Refusal = (413, f"a request must have at most {UPLOAD_BYTES:,} bytes, got more. Send a smaller image.", {})
TOO_SLOW: Refusal = (408, f"a request must arrive within {BODY_SECONDS:g} seconds, got a part of it. Send it faster.", {})
TOO_MANY: Refusal = (429, "fewer uploads must arrive at a time, got too many. Try again later.", {"Retry-After": "1"})
FOREIGN: Refusal = (403, "requests must not come from pages of another site. Send them from pages of this server.", {})
CHALLENGE = {"WWW-Authenticate": 'Bearer, Basic realm="liftedstruct"'}
NO_TOKEN: Refusal = (401, "requests must have the header Authorization: Bearer TOKEN, got no valid one. Add it.", CHALLENGE)
FAILED: Refusal = (500, "the server must not fail, but it did. Its log has the reason.", {})


class Guard:
    """ASGI middleware that refuses or limits a request, adds headers to the answer, and logs a line.

    Args:
        app: the service.
        hosts: names in the header Host that are answered, so that no other site can point its own name here.
        token: secret that a request must have, or None.
        log: function that is called with each line.

    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str], token: str | None, log: Callable[[str], object]) -> None:
        self.app, self.hosts, self.token, self.log = app, [host.lower() for host in hosts], token, log
        self.held = 0  # bytes of requests that are being received or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status, got, size = time.perf_counter(), 0, 0, 0
        deadline: float | None = asyncio.get_running_loop().time() + BODY_SECONDS

        async def limited() -> Message:
            nonlocal deadline, got
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(*TOO_SLOW) from None
            got, self.held = got + len(message.get("body", b"")), self.held + len(message.get("body", b""))
            if got > UPLOAD_BYTES or self.held > HELD_BYTES:
                raise HTTPException(*(TOO_LARGE if got > UPLOAD_BYTES else TOO_MANY))
            deadline = deadline if message.get("more_body") else None  # what follows is the end of the connection
            return message

        async def answer(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(HEADERS)
            size += len(message.get("body", b""))
            async with asyncio.timeout(BODY_SECONDS):  # a client that does not read
                await send(message)

        async def refuse(status: int, detail: str, headers: dict[str, str]) -> None:
            await JSONResponse({"detail": detail}, status, headers)(scope, receive, answer)

        try:
            if refused := self._refused(scope["method"], Headers(scope=scope)):
                await refuse(*refused)
            else:
                await self.app(scope, limited, answer)
        except (ClientDisconnect, TimeoutError):
            status = status or 499
        except Exception:
            self.log(traceback.format_exc().rstrip())
            if status:
                raise
            await refuse(*FAILED)
        finally:
            self.held -= got
            path, ms = scope.get("raw_path", b"").decode("ascii", "replace"), 1e3 * (time.perf_counter() - begin)
            self.log(f"{scope['method']} {path} {status} {ms:.1f} ms {size} B")

    def _refused(self, method: str, headers: Headers) -> Refusal | None:
        host, origin = headers.get("host", "").lower(), headers.get("origin")
        name, colon, port = host.rpartition(":")
        if (name if colon and port.isdecimal() else host) not in self.hosts:
            return 403, f"Host must be one of {', '.join(self.hosts)}, got {host[:100]!r}. Start the server with --hosts.", {}
        opened = method == "GET" and headers.get("sec-fetch-mode") == "navigate"  # somebody follows a link
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not opened:
            return FOREIGN
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return FOREIGN
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind == "Basic":  # a browser asks for name and password; the token is the password
            with contextlib.suppress(ValueError):
                kind, given = "Bearer", base64.b64decode(given).decode("latin-1").partition(":")[2]
        same = hmac.compare_digest(f"{kind} {given}".encode(), f"Bearer {self.token}".encode())
        if self.token is not None and not same:
            return NO_TOKEN
        return TOO_LARGE if int(headers.get("content-length", "0")[:20]) > UPLOAD_BYTES else None  # h11 has checked the digits


class PatientProtocol(H11Protocol):
    """Connection that is closed if the headers of a request do not arrive in time, or an answer is not read."""

    deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio does this for its own sockets only; without it, an answer waits 40 ms for the client's acknowledgment
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.deadline = self.loop.call_later(HEADER_SECONDS, self._end)

    def data_received(self, data: bytes) -> None:
        self.deadline = self.deadline or self.loop.call_later(HEADER_SECONDS, self._end)
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:  # the headers are there
            self.deadline.cancel()
            self.deadline = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._end()

    def _end(self) -> None:
        """Close the connection; since that waits until the answer is read, abort it later."""
        self.transport.close()
        self.loop.call_later(BODY_SECONDS, self.transport.abort)


def check_binding(host: str, token: str | None) -> None:
    """Raise ValueError if others could connect without a token, or guess it."""
    if token is None and host not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(f"--host must be 127.0.0.1 unless there is a --token, got {host!r}. Make one: openssl rand -hex 32")
    if token is not None and not (len(token) >= 16 and token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("--token must have 16 or more ASCII characters without spaces. Make one: openssl rand -hex 32")


def server_of(app: FastAPI) -> uvicorn.Server:
    """Return a server with limits of time and of connections."""
    limits: dict[str, Any] = {"limit_concurrency": CONNECTIONS, "timeout_graceful_shutdown": STOP_SECONDS}
    quiet: dict[str, Any] = {"log_config": None, "log_level": "critical", "server_header": False}
    return uvicorn.Server(uvicorn.Config(app, http=PatientProtocol, ws="none", **limits, **quiet))


def run_server(app: FastAPI, host: str, port: int, started: Callable[[str], object]) -> None:
    """Answer requests until the process is interrupted or terminated; those in flight are answered.

    Args:
        app: the service.
        host: address of a network interface of this machine.
        port: port; 0 for a free one.
        started: function that is called with the address of the server.

    """
    family, shown = (socket.AF_INET6, f"[{host}]") if ":" in host else (socket.AF_INET, host)
    with socket.create_server((host, port), family=family, backlog=CONNECTIONS) as listening:
        limit_heaps()
        started(f"http://{shown}:{listening.getsockname()[1]}")
        server_of(app).run(sockets=[listening])
