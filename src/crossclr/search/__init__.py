"""Type a sentence, see the clip: index, query encoders, service and page, export."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossclr.search.build import build_index, update_index
    from crossclr.search.encoders import QueryError, TextQueries
    from crossclr.search.export import export_run
    from crossclr.search.faiss_index import FaissIndex
    from crossclr.search.graph import IndexSettings
    from crossclr.search.index import Index
    from crossclr.search.items import Item
    from crossclr.search.milvus_index import MilvusIndex
    from crossclr.search.onnx_search import OnnxSearch
    from crossclr.search.searcher import Hit, Searcher
    from crossclr.search.service import serve_run

# Imported when they are used: a search with exported encoders needs no PyTorch, an index needs no web server.
_LAZY = {
    "FaissIndex": "faiss_index",
    "Hit": "searcher",
    "Index": "index",
    "IndexSettings": "graph",
    "Item": "items",
    "MilvusIndex": "milvus_index",
    "OnnxSearch": "onnx_search",
    "QueryError": "encoders",
    "Searcher": "searcher",
    "TextQueries": "encoders",
    "build_index": "build",
    "export_run": "export",
    "serve_run": "service",
    "update_index": "build",
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
