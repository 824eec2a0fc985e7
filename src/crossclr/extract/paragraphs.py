"""Whole paragraphs through BERT, as COOT and the paper computed their text features."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch

from crossclr.extract.contract import ExpertError, FloatRows, LongTexts, Needs, Paragraph, TokenExpert
from crossclr.extract.hub import load_network, load_pretrained, version_of
from crossclr.extract.tokens import hidden_rows, parse_layers

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
        self.device = torch.device(device)
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
        rows = iter(self._encode([list(chain(*part)) for own in parts for part in own]))
        return [
            Paragraph(np.concatenate([next(rows) for _ in own]), [len(sentence) for part in own for sentence in part])
            for own in parts
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

    def _encode(self, token_ids: Sequence[Sequence[int]]) -> list[FloatRows]:
        """Rows of each input, batch by batch, shortest inputs first."""
        found: dict[int, FloatRows] = {}
        order = sorted(range(len(token_ids)), key=lambda index: len(token_ids[index]))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            inputs = [torch.tensor(token_ids[index]) for index in chosen]
            ids = torch.nn.utils.rnn.pad_sequence(inputs, batch_first=True)
            mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(tokens) for tokens in inputs], batch_first=True)
            states = hidden_rows(self._model, ids.to(self.device), mask.to(self.device), self.layers)
            for index, padded in zip(chosen, states, strict=True):  # (longest, dim)
                found[index] = padded[: len(token_ids[index])].copy()
        return [found[index] for index in range(len(token_ids))]


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
        marked.append(" ".join(part for part in (cls if number == 0 else "", text, sep) if part))
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
