"""Typed sentences to query vectors, by the text expert and the text encoder of the run."""

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from crossclr.extract.tokens import TokenEncoder
from crossclr.models import SearchSpace
from crossclr.search.index import Vectors
from crossclr.search.onnx_queries import OnnxQueries, open_onnx_queries
from crossclr.search.query import QueryError
from crossclr.search.run_items import TEXT, EmbeddedItems, encode_rows

CACHED = 1024


class TextQueries:
    """Sentences to unit vectors.

    Args:
        model: the run's model, trained on MiniLM features of 384 channels.
        modality: the text modality that encodes sentences unless another is chosen.
        encoder: the text expert. Default: it is loaded at the first sentence.

    Raises:
        QueryError: the run was trained on other text features.
    """

    def __init__(self, model: SearchSpace, modality: str = TEXT, encoder: TokenEncoder | None = None) -> None:
        dim = model.dims[modality]
        if dim != TokenEncoder.dim:
            raise QueryError(
                f"this run was trained on text features of {dim} channels, but typed queries have the "
                f"{TokenEncoder.dim} channels of MiniLM: search with --like ID, or train on `crossclr data text`"
            )
        self.model, self.modality = model.eval(), modality
        self._encoder = encoder
        self._lock = threading.Lock()
        self._vector = lru_cache(CACHED)(lambda text, modality: self._encode([text], modality)[0])

    def warm_up(self) -> None:
        """Load the text expert now instead of at the first query."""
        self.encode(["warm"])

    def encode(self, texts: Sequence[str], modality: str | None = None) -> Vectors:
        """(texts, dim) unit vectors, by the encoder of a text modality."""
        chosen = modality or self.modality
        return self._vector(texts[0], chosen)[None] if len(texts) == 1 else self._encode(texts, chosen)

    def _encode(self, texts: Sequence[str], modality: str) -> Vectors:
        with self._lock:  # one at a time, because the network uses several threads itself
            if self._encoder is None:
                self._encoder = TokenEncoder()
            return encode_rows(self.model, modality, self._encoder(list(texts)))


def text_modalities(found: Mapping[str, EmbeddedItems], dims: Mapping[str, int]) -> list[str]:
    """The modalities that can encode typed queries: sentences as MiniLM embeds them. The first is the default.

    That is the one named ``text``, or the first of the data.

    Args:
        found: the items of each modality.
        dims: channels of the features of each modality.
    """
    names = [name for name in dims if name == TEXT or (name in found and found[name].is_text)]
    fit = [name for name in names if dims[name] == TokenEncoder.dim]
    return sorted(fit or names[:1], key=lambda name: name != TEXT)


def trial_encoder(model: SearchSpace, modality: str | None, folder: Path) -> OnnxQueries | TextQueries | None:
    """The encoder of sentences, or None where typed queries are not possible.

    The exported encoder in a generation of an index is preferred, because it loads in a fraction of the time.
    """
    try:
        return open_onnx_queries(folder, "") or open_text_queries(model, modality)
    except QueryError:
        return None


def open_text_queries(model: SearchSpace, modality: str | None) -> TextQueries:
    """The encoder of typed sentences for a model; ``modality`` is the one that is text.

    Raises:
        QueryError: no modality is text, or it has other text features.
    """
    if modality is None:
        raise QueryError("no modality of this run is text, so typed queries are not possible; use --like ID")
    return TextQueries(model, modality)
