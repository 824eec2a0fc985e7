"""Find the service that already runs for an index, and let it answer: it has everything loaded."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crossclr.storage import write_json

ANNOUNCED = "service.json"  # in the folder of an index: port and name of the service that runs for it
HEADER = "x-crossclr-instance"
SECONDS = 5.0


def new_instance() -> str:
    """The name of one service, which all its answers carry in `HEADER`."""
    return secrets.token_hex(8)


@contextlib.contextmanager
def announce(root: Path, instance: str, host: str, port: int, weights: str) -> Iterator[None]:
    """Name a service in the folder of its index while the block runs.

    Only a service that this machine reaches at its loopback address is named. A folder that is read-only is no error.

    Args:
        root: the folder of the index.
        instance: its name.
        host: the address that the service listens at.
        port: its port.
        weights: the digest of the weights that it encodes queries with.
    """
    path, reached = root / ANNOUNCED, _loopback(host)
    if reached:
        with contextlib.suppress(OSError):
            write_json(path, {"host": reached, "port": port, "instance": instance, "weights": weights})
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if _read(path).get("instance") == instance:
                path.unlink()


def ask_service(root: Path, weights: str, query: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of the service that runs for an index; None if there is none.

    The query is only ever sent to a loopback address, whatever the folder says, and the answer counts only if it comes
    from the service that wrote the file.

    Args:
        root: the folder of the index.
        weights: the digest of the run's weights.
        query: the body of ``/api/search``.
    """
    about = _read(root / ANNOUNCED)
    host, port = about.get("host"), about.get("port")
    if about.get("weights") != weights or host not in ("127.0.0.1", "::1") or not isinstance(port, int):
        return None
    connection = http.client.HTTPConnection(host, port, timeout=SECONDS)
    try:
        connection.request("POST", "/api/search", json.dumps(query), {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or answer.headers.get(HEADER) != about.get("instance"):
            return None
        content: dict[str, Any] = json.load(answer)
        return content if all("score" in found for found in content["results"]) else None
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()


def _read(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _loopback(host: str) -> str | None:
    """The loopback address at which a service answers, or None."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if not (address.is_loopback or address.is_unspecified):
        return None
    return "127.0.0.1" if address.version == 4 else "::1"
