"""A service for more than one person: who may ask, what is counted, and a log line for each request."""

import hmac
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from crossclr.search.service.limits import App, Message, Receive, Send, refuse

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
