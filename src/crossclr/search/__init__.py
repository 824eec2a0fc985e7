"""Type a sentence, see the clip: index, query encoders, service and page, export."""

from crossclr.search.build import build_index, update_index
from crossclr.search.encoders import QueryError, TextQueries
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.graph import IndexSettings
from crossclr.search.index import Index
from crossclr.search.items import Item
from crossclr.search.searcher import Hit, Searcher

__all__ = [
    "FaissIndex",
    "Hit",
    "Index",
    "IndexSettings",
    "Item",
    "QueryError",
    "Searcher",
    "TextQueries",
    "build_index",
    "update_index",
]
