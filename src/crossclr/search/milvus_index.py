"""A Milvus client, for collections that outgrow one machine; it also works with a Milvus Lite file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.search.index import Ids, Mask, Vectors, allows, check_items, check_vectors, no_results
from crossclr.storage.reading import read_json_object

META = "milvus.json"
_ROWS_AT_ONCE = 1000  # keeps a message well below the server's limit of 64 MB
_LISTED = 10_000  # a filter lists at most this many ids; a wider one is applied to the server's results
_MOST = 16_384  # Milvus returns at most this many results for a query


class MilvusIndex:
    """Vectors in a collection of a Milvus server; every client sees a change at once.

    Args:
        dim: channels of a vector.
        uri: address of the server, or a file whose name ends in ``.db`` (Milvus Lite).
        collection: name of the collection; it is created if it is absent.
        token: ``user:password`` or an API key; it is never written to disk.
        fresh: whether to empty an existing collection.

    Raises:
        ImportError: pymilvus is not installed.
        ValueError: the collection exists with vectors of another size.
    """

    def __init__(self, dim: int, uri: str, collection: str = "crossclr", token: str = "", fresh: bool = False) -> None:
        try:
            from pymilvus import DataType, MilvusClient
        except ImportError as error:
            raise ImportError("the Milvus back end needs pymilvus: pip install 'crossclr[milvus]'") from error
        self._dim, self.uri, self.collection = dim, uri, collection
        # Strong: a search sees all earlier changes. Milvus Lite sees them anyway, and has no clock for it.
        self._consistency = "Bounded" if uri.endswith(".db") else "Strong"
        self._client: Any = MilvusClient(uri, token=token)
        if fresh and self._client.has_collection(collection):
            self._client.drop_collection(collection)
        if self._client.has_collection(collection):
            fields = self._client.describe_collection(collection)["fields"]
            found = next((field["params"]["dim"] for field in fields if field["name"] == "vector"), None)
            if found is None or int(found) != dim:
                raise ValueError(f"the collection {collection!r} at {uri} has vectors of {found} channels, not {dim}")
        else:
            schema = self._client.create_schema(auto_id=False)
            schema.add_field("id", DataType.INT64, is_primary=True)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dim)
            parameters = self._client.prepare_index_params()
            parameters.add_index("vector", index_type="AUTOINDEX", metric_type="IP")
            self._client.create_collection(
                collection, schema=schema, index_params=parameters, consistency_level=self._consistency
            )
        self._client.load_collection(collection)

    @property
    def dim(self) -> int:
        """Channels of a vector."""
        return self._dim

    @property
    def kind(self) -> str:
        """The server chooses how to search."""
        return "server"

    @property
    def recall(self) -> None:
        """The server does not report it."""

    def __len__(self) -> int:
        rows = self._client.query(self.collection, filter="id >= 0", output_fields=["count(*)"])
        return int(rows[0]["count(*)"])

    def add(self, ids: Ids, vectors: Vectors) -> None:
        """Add or replace items."""
        ids, vectors = check_items(ids, vectors, self.dim)
        for start in range(0, len(ids), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            rows = [{"id": key, "vector": row} for key, row in zip(ids[part].tolist(), vectors[part], strict=True)]
            self._client.upsert(self.collection, rows)

    def delete(self, ids: Ids) -> int:
        """Remove items and return how many there were."""
        before = len(self)
        listed = np.unique(np.asarray(ids, dtype=np.int64)).tolist()
        for start in range(0, len(listed), _ROWS_AT_ONCE):
            self._client.delete(self.collection, ids=listed[start : start + _ROWS_AT_ONCE])
        return before - len(self)

    def compact(self, queries: Vectors | None = None) -> None:
        """Nothing to do: the server reorganises itself."""

    def search(self, queries: Vectors, top: int, allowed: Mask | None = None) -> tuple[Vectors, Ids]:
        """Scores and ids of the best items, both (queries, top)."""
        queries = check_vectors(queries, self.dim)
        if not 1 <= top <= _MOST:
            raise ValueError(f"top must be between 1 and {_MOST}, got {top}")
        wanted, condition = top, ""
        if allowed is not None:
            listed = np.flatnonzero(allowed)
            if len(listed) <= _LISTED:
                condition = f"id in {listed.tolist()}"
            else:
                wanted = min(_MOST, int(top * max(1.0, len(self) / len(listed)) * 2) + 50)
        scores, found = no_results(len(queries), top)
        if len(queries) == 0 or condition == "id in []":
            return scores, found
        answers = self._client.search(
            self.collection,
            data=list(queries),
            limit=wanted,
            filter=condition,
            search_params={"metric_type": "IP"},
            consistency_level=self._consistency,
        )
        for row, hits in enumerate(answers):
            near = np.array([hit["distance"] for hit in hits], dtype=np.float32)
            ids = np.array([hit["id"] for hit in hits], dtype=np.int64)
            kept = np.flatnonzero(np.ones(len(ids)) if allowed is None else allows(allowed, ids))[:top]
            scores[row, : len(kept)], found[row, : len(kept)] = near[kept], ids[kept]
        return scores, found

    def vectors(self, ids: Ids) -> Vectors:
        """(ids, dim) stored vectors."""
        listed = np.asarray(ids, dtype=np.int64).tolist()
        known: dict[int, Any] = {}
        for start in range(0, len(listed), _ROWS_AT_ONCE):
            part = listed[start : start + _ROWS_AT_ONCE]
            rows = self._client.get(self.collection, ids=part, output_fields=["vector"])
            known.update((int(row["id"]), row["vector"]) for row in rows)
        missing = [key for key in listed if key not in known]
        if missing:
            raise KeyError(f"the collection {self.collection!r} has no item {missing[0]}")
        return np.array([known[key] for key in listed], dtype=np.float32).reshape(len(listed), self.dim)

    def save(self, folder: Path) -> None:
        """Write where the vectors are; the server stores the vectors themselves."""
        folder.mkdir(parents=True)
        values = {"dim": self.dim, "uri": self.uri, "collection": self.collection}
        (folder / META).write_text(json.dumps(values))

    @classmethod
    def open(cls, folder: Path, token: str = "") -> MilvusIndex:
        """Connect to the collection that ``save`` recorded."""
        return cls(token=token, **read_json_object(folder / META, "dim", "uri", "collection"))

    def close(self) -> None:
        """End the connection."""
        self._client.close()
