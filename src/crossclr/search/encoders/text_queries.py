"""Typed sentences to query vectors, by the text expert and the text encoder of the run."""

import threading
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.models import SearchSpace
from crossclr.search.encoders.feature_rows import encode_rows
from crossclr.search.index.contract import Vectors
from crossclr.search.query_error import QueryError
from crossclr.training import Run, RunConfig

CACHED = 1024


class TextQueries:
    """Sentences to unit vectors.

    Args:
        model: the run's model, trained on MiniLM features of 384 channels.
        side: the modality that is text.
        encoder: the text expert. Default: it is loaded at the first sentence.

    Raises:
        QueryError: the run was trained on other text features.
    """

    def __init__(self, model: SearchSpace, side: str = "text", encoder: TokenEncoder | None = None) -> None:
        dim = model.dims[side]
        if dim != TokenEncoder.dim:
            raise QueryError(
                f"this run was trained on text features of {dim} channels, but typed queries have the "
                f"{TokenEncoder.dim} channels of MiniLM: search with --like ID, or train on `crossclr data text`"
            )
        self.model, self.side = model.eval(), side
        self._encoder = encoder
        self._lock = threading.Lock()
        self._vector = lru_cache(CACHED)(self._encode)

    def warm_up(self) -> None:
        """Load the text expert now instead of at the first query."""
        self.encode(["warm"])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) unit vectors."""
        return np.stack([self._vector(text) for text in texts])

    def _encode(self, text: str) -> Vectors:
        with self._lock:  # one at a time, because the network uses several threads itself
            if self._encoder is None:
                self._encoder = TokenEncoder()
            found: Vectors = encode_rows(self.model, self.side, self._encoder([text]))[0]
            return found


def text_side(config: RunConfig) -> str | None:
    """Which modality of a run is text, ``a`` or ``b``: the one named `text`; None if neither is.

    Example:
        >>> from crossclr.training import load_config
        >>> text_side(load_config("emoji"))
        'b'
    """
    names = config.data.modality_names
    return "ab"[names.index("text")] if "text" in names else None


def open_text_queries(run: Run, model: SearchSpace | None = None) -> TextQueries:
    """The encoder of typed sentences for a run.

    Raises:
        QueryError: no modality of the run is text, or it has other text features.
    """
    side = text_side(run.config)
    if side is None:
        raise QueryError("no modality of this run is named text, so typed queries are not possible; use --like ID")
    return TextQueries(model or run.load_space(), "text")
