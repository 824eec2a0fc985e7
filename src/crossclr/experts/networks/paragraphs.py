"""Whole paragraphs through BERT, as COOT and the paper computed their text features."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from crossclr.experts.contract import ExpertError, FloatRows, Needs, TokenExpert
from crossclr.experts.networks.hub import load_pretrained, version_of
from crossclr.experts.networks.tokens import hidden_rows, parse_layers

LEAST = 5  # tokens that a sentence keeps when a paragraph is too long


class ParagraphEncoder(TokenExpert):
    """Token features of a paragraph, of which every token sees all others.

    The paragraph's sentences are one input: ``[CLS]`` stands before the first of them only, ``[SEP]`` behind each and
    in the place of each full stop inside one. A paragraph that is too long loses tokens from its last sentence
    backwards; each sentence keeps five, its ``[SEP]`` among them. Where even that is too long (more than 102 sentences
    for BERT), the paragraph goes through the network in parts of whole sentences.

    Args:
        model: hub name or local folder.
        layers: the hidden states that are joined on the channel axis.
        batch_size: most paragraphs encoded at once.
        device: where the network runs.
        revision: of the hub.
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
            raise ExpertError(f"{model!r} has no [CLS] and [SEP]; paragraphs need an encoder like BERT")
        self._model: Any = load_pretrained("AutoModel", model, revision).float().eval().to(device)
        self.device = torch.device(device)
        self.max_tokens = int(self._model.config.max_position_embeddings)
        self.model, self.layer, self.batch_size = model, layers, batch_size
        self.version = version_of(self._model, model)
        self.dim = int(self._model.config.hidden_size) * len(self.layers)

    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """Features of each text as a paragraph of its own."""
        return [rows for rows, _ in self.paragraphs([[text] for text in texts])]

    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[tuple[FloatRows, list[int]]]:
        """Rows of each paragraph and the number of tokens of each of its sentences."""
        parts: list[tuple[int, list[list[int]]]] = []  # paragraph, token ids of its sentences
        for number, texts in enumerate(paragraphs):
            parts += [(number, part) for part in self.tokenise(texts)]
        order = sorted(range(len(parts)), key=lambda index: sum(map(len, parts[index][1])))
        rows: list[FloatRows | None] = [None] * len(parts)
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            flat = [[token for sentence in parts[index][1] for token in sentence] for index in chosen]
            longest = max(map(len, flat))
            ids = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens in flat], device=self.device)
            mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in flat])
            states = hidden_rows(self._model, ids, mask.to(self.device), self.layers)  # (parts, longest, dim)
            for index, tokens, padded in zip(chosen, flat, states, strict=True):
                rows[index] = padded[: len(tokens)].copy()
        found: list[list[FloatRows]] = [[] for _ in paragraphs]
        counts: list[list[int]] = [[] for _ in paragraphs]
        for (number, sentences), part in zip(parts, rows, strict=True):
            found[number] += [] if part is None else [part]
            counts[number] += map(len, sentences)
        return [(np.concatenate(part), count) for part, count in zip(found, counts, strict=True)]

    def tokenise(self, sentences: Sequence[str]) -> list[list[list[int]]]:
        """Token ids of each sentence of a paragraph, in parts that each fit into the network; usually one."""
        tokenizer = self._tokenizer
        texts = mark_paragraph(sentences, tokenizer.cls_token, tokenizer.sep_token)
        ids = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        return fit_paragraph(ids, self.max_tokens)


def mark_paragraph(sentences: Sequence[str], cls: str = "[CLS]", sep: str = "[SEP]") -> list[str]:
    """The sentences of a paragraph with their marks.

    White space is collapsed, one closing full stop goes (an ellipsis stays), a full stop inside becomes a mark.

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


def fit_paragraph(sentences: Sequence[Sequence[int]], most: int) -> list[list[list[int]]]:
    """Cut a paragraph of tokens to its limit, from the last sentence backwards.

    Args:
        sentences: token ids of each; the last one of each is its mark.
        most: tokens that fit.

    Returns:
        one part, or several of whole sentences where cutting is not enough.

    Example:
        >>> fit_paragraph([[1, 2, 3], list(range(8))], 9)
        [[[1, 2, 3], [0, 1, 2, 3, 4, 7]]]
    """
    lengths = [len(sentence) for sentence in sentences]
    for number in reversed(range(len(lengths))):
        over = sum(lengths) - most
        if over <= 0:
            break
        lengths[number] = min(lengths[number], max(LEAST, lengths[number] - over))
    cut = [
        [*sentence[: length - 1], sentence[-1]] if length < len(sentence) else list(sentence)
        for sentence, length in zip(sentences, lengths, strict=True)
    ]
    parts: list[list[list[int]]] = [[]]
    room = most
    for sentence in cut:
        if len(sentence) > room and parts[-1]:
            parts.append([])
            room = most
        parts[-1].append(sentence)
        room -= len(sentence)
    return parts
