"""What `crossclr search` does before it loads PyTorch: ask a running service, or encode with onnxruntime."""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import secrets
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossclr.search.index import INDEX, ITEMS, current_generation, read_meta
from crossclr.search.items import Items
from crossclr.search.query import Query
from crossclr.search.results import Hit
from crossclr.storage import write_json
from crossclr.storage.manifest import file_digest

if TYPE_CHECKING:
    from crossclr.search.searcher import Searcher

WEIGHTS = ("space.safetensors", "best/model.safetensors")  # the first that a run has; see `Run.digest`
MOST_ASKED = 200  # results that a service returns at most


def ask_running_service(run: Path, query: Query) -> list[Hit] | None:
    """The results of `Searcher.search`, from the service that runs for the index of a run.

    Returns:
        None if no service runs, or if it cannot answer: only `Searcher` reports what is wrong with a query.
    """
    folder, weights = _current(run)
    if folder is None or query.top > MOST_ASKED or query.file is not None:
        return None
    answer = ask_service(run / INDEX, weights, asdict(query))
    if answer is None:
        return None
    items = Items(folder / ITEMS)
    ids = items.ids_of([found["id"] for found in answer["results"]])
    results = {ids[found["id"]]: found for found in answer["results"] if found["id"] in ids}
    shown = items.get(list(results))
    together = {item.id: items.together(item.key) for item in shown if "together" in results[item.id]}
    items.close()
    if len(shown) < len(answer["results"]):  # the index has changed in between
        return None
    return [
        Hit(item, about["score"], about.get("probability"), bool(about.get("words")), together.get(item.id, ()))
        for item in shown
        for about in (results[item.id],)
    ]


def open_without_torch(run: Path, query: Query) -> Searcher | None:
    """The searcher of a run for a sentence or items, without PyTorch; None if PyTorch is needed."""
    folder, weights = _current(run)
    if folder is None or query.file is not None:
        return None
    meta = read_meta(folder)
    if meta["weights"] != weights or query.text_modality not in (None, meta["text_modality"]):
        return None
    if query.text is None:
        queries = None
    else:
        from crossclr.search.onnx_queries import open_onnx_queries

        queries = open_onnx_queries(folder, query.text)
        if queries is None:
            return None
    from crossclr.search.searcher import Searcher

    return Searcher(folder, queries, "typed queries are switched off")


def _current(run: Path) -> tuple[Path | None, str]:
    """The current index of a run and the digest of its weights; None if one of them is absent."""
    weights = next((run / name for name in WEIGHTS if (run / name).is_file()), None)
    if weights is None:
        return None, ""
    return current_generation(run / INDEX), file_digest(weights)


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
