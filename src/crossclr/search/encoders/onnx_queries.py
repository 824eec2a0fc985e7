"""Typed sentences to query vectors with onnxruntime and numpy, without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from threadpoolctl import threadpool_limits

from crossclr.extras import MissingExtraError
from crossclr.search.encoders.minilm_rows import MiniLMRows
from crossclr.search.encoders.onnx_search import OnnxEncoder
from crossclr.search.index.contract import Vectors, unit

QUERY_ENCODER = "query.onnx"  # in a generation of an index: the text branch of the run
CACHED = 1024


class OnnxQueries:
    """Sentences to unit vectors, as `TextQueries` does it.

    Args:
        encoder: the exported text branch.
        rows: the text expert.
    """

    def __init__(self, encoder: OnnxEncoder, rows: MiniLMRows) -> None:
        self._encoder, self._rows = encoder, rows
        self._vector = lru_cache(CACHED)(lambda text: self._encode([text]))

    def warm_up(self) -> None:
        """Load what the first query would wait for."""
        self.encode(["warm"])

    def encode(self, texts: Sequence[str], modality: str | None = None) -> Vectors:
        """(texts, dim) unit vectors; ``modality`` is the one that was exported, or None."""
        return self._vector(texts[0]) if len(texts) == 1 else self._encode(texts)

    def _encode(self, texts: Sequence[str]) -> Vectors:
        with threadpool_limits(1, user_api="blas"):  # the matrices are small: more threads only wait for each other
            return unit(self._encoder(self._rows(texts)))


def open_onnx_queries(folder: Path, text: str) -> OnnxQueries | None:
    """The encoder of a sentence in a generation of an index; None if it needs PyTorch.

    PyTorch is needed if the index has no exported encoder, a package is not installed, or the text is so long that the
    text expert cuts it into pieces.
    """
    if not (folder / QUERY_ENCODER).is_file():
        return None
    try:
        rows = MiniLMRows()
        return OnnxQueries(OnnxEncoder(folder / QUERY_ENCODER, threads=1), rows) if rows.fits(text) else None
    except MissingExtraError:
        return None
