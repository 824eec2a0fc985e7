"""Queries into the joint space: a typed sentence through the text expert and the run's text branch."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch

from crossclr.experts.networks.tokens import TokenEncoder
from crossclr.features import Ragged, Side
from crossclr.models import TwoBranch
from crossclr.search.building.run_items import unit
from crossclr.search.index.contract import Vectors
from crossclr.training import Run, RunConfig

REMEMBERED = 1024


class QueryError(ValueError):
    """A query that cannot be answered; the message says why."""


class TextQueries:
    """Sentences to unit vectors.

    The rows of a sentence's tokens must be what the run was trained on: MiniLM's, 384 channels.

    Args:
        model: the run's model.
        side: which modality is text, ``a`` or ``b``.
        encoder: the text expert; loaded at the first sentence if None.

    Raises:
        QueryError: the run's text features are others.
    """

    def __init__(self, model: TwoBranch, side: str = "b", encoder: TokenEncoder | None = None) -> None:
        dim = model.dims["ab".index(side)]
        if dim != TokenEncoder.dim:
            raise QueryError(
                f"this run was trained on text features of {dim} channels, but sentences are encoded by MiniLM with "
                f"{TokenEncoder.dim}: search with --like ID, or train on features from `crossclr data text`"
            )
        self.model, self.side = model.eval(), side
        self._encoder = encoder
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Vectors] = OrderedDict()

    def warm_up(self) -> None:
        """Load the text expert now, not at the first query."""
        self.encode(["warm"])

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(texts, dim) unit vectors."""
        with self._lock:  # one at a time: the network uses all threads that it is given
            fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
            found = dict(zip(fresh, self._encode(fresh), strict=True)) if fresh else {}
            rows = np.stack([found[text] if text in found else self._known[text] for text in texts])
            self._known.update(found)
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        return rows

    def _encode(self, texts: Sequence[str]) -> Vectors:
        if self._encoder is None:
            self._encoder = TokenEncoder()
        rows = [torch.from_numpy(part) for part in self._encoder(list(texts))]
        encode, name = (self.model.encode_a, "clip_emb") if self.side == "a" else (self.model.encode_b, "sent_emb")
        with torch.inference_mode():
            vectors = encode(Side(Ragged.from_list(rows)).to(self.model.device))[name]
        return unit(vectors.float().cpu().numpy())


def text_side(config: RunConfig) -> str | None:
    """Which modality of a run is text, ``a`` or ``b``: the one named `text`; None if neither is.

    Example:
        >>> from crossclr.training import load_config
        >>> text_side(load_config("emoji"))
        'b'
    """
    names = config.data.modalities
    return "ab"[names.index("text")] if "text" in names else None


def open_text_queries(run: Run, model: TwoBranch | None = None) -> TextQueries:
    """The encoder of typed sentences of a run.

    Raises:
        QueryError: the run has no text, or other text features.
    """
    side = text_side(run.config)
    if side is None:
        raise QueryError("no modality of this run is text, so a sentence cannot be searched; use --like ID")
    return TextQueries(model or run.load_model(), side)
