"""Which requests are answered: limits on size, time and host, a token, counters, and a log line for each request."""

import asyncio
import contextlib
import hmac
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes, urlencode

from uvicorn.protocols.http.h11_impl import H11Protocol

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
T = TypeVar("T")
App = Callable[[Message, Receive, Send], Awaitable[None]]

COOKIE = "crossclr"
HEALTH, METRICS = "/healthz", "/metrics"
SHORTEST_TOKEN = 16
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)  # seconds


def read_token(path: Path) -> str:
    """The token in a file, which only its owner should be able to read.

    Raises:
        ValueError: it is too short to be a secret.
    """
    token = path.read_text(encoding="utf-8").strip()
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise ValueError(f"{path} must contain a token of at least {SHORTEST_TOKEN} letters and digits")
    return token


class Counters:
    """What a service has answered so far, in the text format of Prometheus."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # (path, status)
        self.buckets: Counter[float] = Counter()
        self.seconds = 0.0
        self.running = 0

    def add(self, path: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self.requests[path, status] += 1
        self.seconds += seconds
        for edge in BUCKETS:
            self.buckets[edge] += seconds <= edge

    def text(self, items: Mapping[str, int]) -> str:
        """All counters.

        Example:
            >>> counters = Counters()
            >>> counters.add("/api/search", 200, 0.02)
            >>> counters.text({"video": 3}).splitlines()[1]
            'crossclr_requests_total{path="/api/search",status="200"} 1'
        """
        total = sum(self.requests.values())
        lines = ["# TYPE crossclr_requests_total counter"]
        lines += [
            f'crossclr_requests_total{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        lines.append("# TYPE crossclr_request_seconds histogram")
        lines += [f'crossclr_request_seconds_bucket{{le="{edge}"}} {self.buckets[edge]}' for edge in BUCKETS]
        lines.append(f'crossclr_request_seconds_bucket{{le="+Inf"}} {total}')
        lines += [f"crossclr_request_seconds_sum {self.seconds:.6f}", f"crossclr_request_seconds_count {total}"]
        lines += ["# TYPE crossclr_requests_running gauge", f"crossclr_requests_running {self.running}"]
        lines.append("# TYPE crossclr_items gauge")
        lines += [f'crossclr_items{{modality="{name}"}} {count}' for name, count in items.items()]
        return "\n".join(lines) + "\n"


class Access:
    """Ask for a token, count requests and log them.

    Args:
        app: the application.
        known: paths that are counted under their own name; all others are one.
        counters: what to count in.
        token: what a request must carry; None: nothing. ``/healthz`` never needs it.
        log: whether to write a JSON line for each request to standard error. It does not contain the query.
    """

    def __init__(
        self, app: App, known: frozenset[str], counters: Counters, token: str | None = None, log: bool = False
    ) -> None:
        self.app, self.known, self.counters, self.token, self.log = app, known, counters, token, log

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        self.counters.running += 1
        try:
            if self.token is None or scope["path"] == HEALTH or self._carries(scope, self.token):
                await self.app(scope, receive, noted)
            elif (clean := self._address_without_token(scope, self.token)) is not None:
                cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
                headers = [(b"location", clean.encode()), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
                await noted({"type": "http.response.start", "status": 303, "headers": headers})
                await noted({"type": "http.response.body", "body": b""})
            else:
                how = "open /?token=... once, or send the header Authorization: Bearer ..."
                await refuse(noted, 401, f"this service needs its token: {how}")
        finally:
            self.counters.running -= 1
            seconds = time.perf_counter() - begun
            path = scope["path"] if scope["path"] in self.known else "other"
            self.counters.add(path, status, seconds)
            if self.log:
                self._write(scope["method"], path, status, seconds)

    def _carries(self, scope: Message, token: str) -> bool:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load(headers.get(b"cookie", ""))
        except CookieError:
            return False
        found = (
            cookies[COOKIE].value if COOKIE in cookies else headers.get(b"authorization", "").removeprefix("Bearer ")
        )
        return hmac.compare_digest(found.encode(), token.encode())

    def _address_without_token(self, scope: Message, token: str) -> str | None:
        """The address without its token; None if it has no token, or a wrong one."""
        values = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in values if name == "token"]
        if scope["method"] != "GET" or not given or not hmac.compare_digest(given[0].encode(), token.encode()):
            return None
        rest = urlencode([(name, value) for name, value in values if name != "token"])
        return f"/?{rest}" if rest else "/"

    def _write(self, method: str, path: str, status: int, seconds: float) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = {"time": stamp, "method": method, "path": path, "status": status, "ms": round(1000 * seconds, 1)}
        sys.stderr.write(json.dumps(line) + "\n")


LARGEST_BODY = 256 * 1024
LARGEST_FILE = 64 * 2**20  # of a file that is a query
FILE_ADDRESS = "/api/file"  # reads its body itself, piece by piece
LONGEST_QUERY = 8 * 1024
TOO_LARGE = 413, f"the request is too large; the limit is {LARGEST_BODY:,} bytes"
FILE_TOO_LARGE = 413, f"the file is too large; the limit is {LARGEST_FILE // 2**20} MiB"
BODY_SECONDS, HEADER_SECONDS, SEND_SECONDS = 10.0, 10.0, 60.0
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; media-src 'self'; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
)


class Limits:
    """Refuse requests that are too large, too slow or malformed before the application sees them.

    Args:
        app: the application.
        hosts: Host headers to answer, without port; None: any. A service on the loopback address answers only to its
            own names, so that a foreign page cannot reach it under another name (DNS rebinding).
        body_seconds: time limit for sending the body of a request.
        send_seconds: time limit for accepting a piece of the answer.
    """

    def __init__(
        self,
        app: App,
        hosts: Sequence[str] | None = None,
        body_seconds: float = BODY_SECONDS,
        send_seconds: float = SEND_SECONDS,
    ) -> None:
        self.app, self.hosts = app, None if hosts is None else frozenset(hosts)
        self.body_seconds, self.send_seconds = body_seconds, send_seconds

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def careful_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await within(self.send_seconds, send(message))

        refusal = self._refuse(scope)
        if refusal is None and scope["path"] != FILE_ADDRESS and scope["method"] in ("POST", "PUT", "PATCH", "DELETE"):
            try:
                body = await within(self.body_seconds, _read(receive))
            except TimeoutError:
                refusal = 408, f"sending the request took longer than {self.body_seconds:g} s"
            else:
                refusal = TOO_LARGE if body is None else _repeated_key(body)
                receive = _replay(body or b"", receive)
        try:
            if refusal is not None:
                await refuse(careful_send, *refusal)
            else:
                await self.app(scope, receive, careful_send)
        except TimeoutError:
            return  # the client does not read its answer, so the connection ends

    def _refuse(self, scope: Message) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self.hosts is not None and name not in self.hosts:
            return 421, "this service answers only at its own address"
        query = scope["query_string"]
        if len(query) > LONGEST_QUERY:
            return 414, f"the address is too long; the limit after the question mark is {LONGEST_QUERY:,} bytes"
        try:
            unquote_to_bytes(query).decode("utf-8")
            unquote_to_bytes(scope.get("raw_path") or b"").decode("utf-8")
        except UnicodeDecodeError:
            return 400, "the address is not valid UTF-8"
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > (LARGEST_FILE if scope["path"] == FILE_ADDRESS else LARGEST_BODY):
            return TOO_LARGE if scope["path"] != FILE_ADDRESS else FILE_TOO_LARGE
        return None


class PatientProtocol(H11Protocol):
    """Close a connection whose client does not finish its request line and headers in time."""

    header_seconds = HEADER_SECONDS
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the clock."""
        super().connection_made(transport)
        self._start_clock()

    def data_received(self, data: bytes) -> None:
        """Stop the clock once the headers are complete."""
        waiting = self._waiting()
        super().data_received(data)
        if not self._waiting():
            self._stop_clock()
        elif waiting and self._deadline is None:  # another request on the same connection has started
            self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._stop_clock()
        super().connection_lost(exc)

    def _waiting(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_clock(self) -> None:
        self._deadline = self.loop.call_later(self.header_seconds, self._cut_off)

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut_off(self) -> None:
        self._deadline = None
        if self._waiting() and not self.transport.is_closing():
            self.transport.close()


async def within(seconds: float, waiting: Awaitable[T]) -> T:
    """Await something with a time limit; unlike `asyncio.wait_for` it creates no task.

    Raises:
        asyncio.TimeoutError: it took longer.
    """
    task, late = asyncio.current_task(), False

    def stop() -> None:
        nonlocal late
        if task is not None:
            late = True
            task.cancel()

    timer = asyncio.get_running_loop().call_later(seconds, stop)
    try:
        return await waiting
    except asyncio.CancelledError:
        if late:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


async def _read(receive: Receive) -> bytes | None:
    """The whole body, or None if it is larger than allowed."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""  # the client has left; nobody will read the answer
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _repeated_key(body: bytes) -> tuple[int, str] | None:
    """The refusal of JSON with a key that occurs twice in one object; other faults are left to the application."""
    repeated: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            repeated.append(Counter(name for name, _ in pairs).most_common(1)[0][0])

    with contextlib.suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=look)
    return (422, f"the key {repeated[0][:100]!r} occurs twice in one object; remove one of them") if repeated else None


def _replay(body: bytes, receive: Receive) -> Receive:
    waiting = [body]

    async def again() -> Message:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


async def refuse(send: Send, status: int, detail: str) -> None:
    """Answer with an error, and close the connection."""
    content = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers.append((b"connection", b"close"))  # the rest of this request must not be read as the next one
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
