"""The part of the hub's HTTP API that sharing a model needs, on loopback, with everything in memory."""

import base64
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit
from zlib import crc32


class FakeHub:
    """Repositories by name, each a mapping from file names to bytes.

    Args:
        address: where it listens.

    Attributes:
        sizes: sizes that are declared in place of the real ones, by repository and file.
        requests: all requests, as ``METHOD path``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.sizes: dict[tuple[str, str], int] = {}
        self.requests: list[str] = []

    def commit(self, name: str) -> str:
        """The id of the present state of a repository."""
        state = sorted((file, crc32(content)) for file, content in self.repositories[name].items())
        return hashlib.sha1(repr(state).encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def do_POST(self) -> None:
        path, body = self._begin()
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'owner'}/{asked['name']}"
            self.hub.repositories.setdefault(name, {})
            self._json({"url": f"{self.hub.address}/{name}", "name": name})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self._json({"files": modes})
        elif "/commit/" in path:
            self._commit(path.removeprefix("/api/models/").partition("/commit/")[0], body)
        else:
            self._json({"error": f"unknown {path}"}, 404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, _ = self._begin()
        if path.startswith("/api/models/"):
            name, _, rest = path.removeprefix("/api/models/").partition("/tree/")
            self._describe(name.partition("/revision/")[0], tree=bool(rest))
            return
        name, _, place = path.lstrip("/").partition("/resolve/")
        content = self.hub.repositories.get(name, {}).get(place.partition("/")[2])
        if content is None:
            self._reply(b"", 404, {"X-Error-Code": "EntryNotFound"})
        else:
            etag = hashlib.sha256(content).hexdigest()
            self._reply(
                content,
                200,
                {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit(name), "X-Linked-Etag": f'"{etag}"'},
            )

    def _begin(self) -> tuple[str, bytes]:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        return path, self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _commit(self, name: str, body: bytes) -> None:
        files = self.hub.repositories[name]
        for line in body.splitlines():
            action = json.loads(line)
            value = action["value"]
            if action["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
        commit = self.hub.commit(name)
        url = f"{self.hub.address}/{name}/commit/{commit}"
        self._json({"commitUrl": url, "commitOid": commit, "pullRequestUrl": None})

    def _describe(self, name: str, tree: bool) -> None:
        if name not in self.hub.repositories:
            self._reply(b'{"error": "Repository not found"}', 404, {"X-Error-Code": "RepoNotFound"})
            return
        sizes = {
            file: self.hub.sizes.get((name, file), len(content))
            for file, content in self.hub.repositories[name].items()
        }
        if tree:
            self._json([{"type": "file", "path": file, "size": size, "oid": "0" * 40} for file, size in sizes.items()])
            return
        siblings = [{"rfilename": file, "size": size} for file, size in sizes.items()]
        self._json(
            {
                "id": name,
                "modelId": name,
                "sha": self.hub.commit(name),
                "siblings": siblings,
                "tags": [],
                "private": False,
            }
        )

    def _json(self, value: object, status: int = 200) -> None:
        self._reply(json.dumps(value).encode(), status, {"Content-Type": "application/json"})

    def _reply(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def running_hub() -> Iterator[FakeHub]:
    """A hub that serves on a free port of loopback while the block runs."""

    class Handler(_Handler):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = Handler.hub = FakeHub(f"http://127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
