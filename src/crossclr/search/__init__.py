"""Type a sentence, see the clip: index, query encoders, service and page, export."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossclr.search.building.create import build_index, update_index
    from crossclr.search.encoders.onnx_export import export_run
    from crossclr.search.encoders.onnx_search import OnnxSearch
    from crossclr.search.encoders.text_queries import QueryError, TextQueries
    from crossclr.search.index.contract import Index
    from crossclr.search.index.faiss_graph import IndexSettings
    from crossclr.search.index.faiss_index import FaissIndex
    from crossclr.search.index.milvus_index import MilvusIndex
    from crossclr.search.items.item_table import Item
    from crossclr.search.searcher import Hit, Searcher
    from crossclr.search.service.server import serve_run

# Imported when they are used: a search with exported encoders needs no PyTorch, an index needs no web server.
_LAZY = {
    "FaissIndex": "index.faiss_index",
    "Hit": "searcher",
    "Index": "index.contract",
    "IndexSettings": "index.faiss_graph",
    "Item": "items.item_table",
    "MilvusIndex": "index.milvus_index",
    "OnnxSearch": "encoders.onnx_search",
    "QueryError": "encoders.text_queries",
    "Searcher": "searcher",
    "TextQueries": "encoders.text_queries",
    "build_index": "building.create",
    "export_run": "encoders.onnx_export",
    "serve_run": "service.server",
    "update_index": "building.create",
}

__all__ = [
    "FaissIndex",
    "Hit",
    "Index",
    "IndexSettings",
    "Item",
    "MilvusIndex",
    "OnnxSearch",
    "QueryError",
    "Searcher",
    "TextQueries",
    "build_index",
    "export_run",
    "serve_run",
    "update_index",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"crossclr.search.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'crossclr.search' has no attribute {name!r}")
