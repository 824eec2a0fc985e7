"""What `crossclr search` does before it loads PyTorch: ask a running service, or encode with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossclr.search.generations import current_generation
from crossclr.search.index_files import INDEX, ITEMS, read_meta
from crossclr.search.items import Items
from crossclr.search.results import Hit
from crossclr.search.service.running_service import ask_service
from crossclr.storage.manifest import file_digest

if TYPE_CHECKING:
    from crossclr.search.searcher import Searcher

WEIGHTS = ("space.safetensors", "best/model.safetensors")  # the first that a run has; see `Run.digest`
MOST_ASKED = 200  # results that a service returns at most


def ask_running_service(run: Path, query: Mapping[str, Any]) -> list[Hit] | None:
    """The results of `Searcher.search`, from the service that runs for the index of a run.

    Args:
        run: its folder.
        query: the body of ``/api/search``.

    Returns:
        None if no service runs, or if it cannot answer: only `Searcher` reports what is wrong with a query.
    """
    folder, weights = _current(run)
    if folder is None or query["top"] > MOST_ASKED:
        return None
    answer = ask_service(run / INDEX, weights, dict(query))
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
        Hit(item, results[item.id]["score"], results[item.id].get("probability"), together.get(item.id, ()))
        for item in shown
    ]


def open_without_torch(run: Path, text: str | None, text_modality: str | None = None) -> Searcher | None:
    """The searcher of a run for one sentence, or for queries by items, without PyTorch; None if PyTorch is needed."""
    folder, weights = _current(run)
    if folder is None:
        return None
    meta = read_meta(folder)
    if meta["weights"] != weights or text_modality not in (None, meta["text_modality"]):
        return None
    if text is None:
        queries = None
    else:
        from crossclr.search.onnx_queries import open_onnx_queries

        queries = open_onnx_queries(folder, text)
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
