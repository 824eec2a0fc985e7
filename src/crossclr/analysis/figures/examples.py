"""Retrieval examples: the three nearest clips of a sentence, and the three nearest clips of a clip."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import normalize

from crossclr.evaluation import SharedCaptions
from crossclr.models import Embeddings

QUERIES, TOP = 6, 3


@dataclass(frozen=True)
class Hit:
    """One retrieved clip.

    Args:
        key: its key.
        text: one of its sentences.
        cosine: its similarity to the query.
        right: ``own`` for the query's own clip, ``shared`` for a clip that shares a caption with it, else empty.
    """

    key: str
    text: str
    cosine: float
    right: str


@dataclass(frozen=True)
class Example:
    """A query and its nearest clips."""

    key: str
    text: str
    hits: list[Hit]


def choose_examples(embeddings: Embeddings, by_text: bool, seed: int = 0) -> list[Example]:
    """Random sentences, or random clips, with their nearest (other) clips."""
    items, sentences = embeddings.pair()
    shared = SharedCaptions(sentences.texts, sentences.clip_of.tolist(), len(items.rows))
    clips = normalize(items.rows, dim=1)
    queries = normalize(sentences.rows, dim=1) if by_text else clips
    chosen = np.random.default_rng(seed).choice(len(queries), size=min(QUERIES, len(queries)), replace=False)
    examples = []
    for number in sorted(chosen.tolist()):
        own = int(sentences.clip_of[number]) if by_text else number
        scores = clips @ queries[number]
        if not by_text:
            scores[own] = -torch.inf
        right = shared.block([own])[0]
        hits = [_hit(embeddings, clip, scores, own, bool(right[clip])) for clip in scores.topk(TOP).indices.tolist()]
        text = sentences.texts[number] if by_text else _text(embeddings, own)
        examples.append(Example(embeddings.clip_keys[own], text, hits))
    return examples


def sentence(examples: list[Example], by_text: bool = True) -> str:
    """How many of the examples have a correct clip among the three."""
    own = sum(any(hit.right == "own" for hit in example.hits) for example in examples)
    shared = sum(any(hit.right for hit in example.hits) for example in examples)
    if not by_text:
        return (
            f"Random examples: {shared} of {len(examples)} clips have one among their nearest three that shares a "
            "caption with them."
        )
    return (
        f"Random examples: {own} of {len(examples)} queries have their own clip among the first three, {shared} have "
        "it or one that shares a caption with it."
    )


def _hit(embeddings: Embeddings, clip: int, scores: torch.Tensor, own: int, shares: bool) -> Hit:
    right = "own" if clip == own else "shared" if shares else ""
    return Hit(embeddings.clip_keys[clip], _text(embeddings, clip), float(scores[clip]), right)


def _text(embeddings: Embeddings, clip: int) -> str:
    _, sentences = embeddings.pair()
    own = (sentences.clip_of == clip).nonzero().flatten()
    return sentences.texts[int(own[0])] if len(own) else ""
