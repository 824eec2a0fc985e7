"""Small images of clips for a report.

Retrieval examples: the three nearest clips of a sentence, and the three nearest clips of a clip.
"""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import normalize

from crossclr.data import DataError, Dataset
from crossclr.data.emoji_set import is_built_in, read_image
from crossclr.evaluation.semantics import SharedCaptions
from crossclr.models import Embeddings

SIDE = 64  # pixels
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".gif"}


def image_uri(data: Dataset, clip_key: str) -> str:
    """The image of a clip as a data URI, from the data or from a sample's image file; empty if there is none."""
    key, clip = clip_key, 0
    if data.clip_starts is not None:
        key, _, number = clip_key.rpartition("/")
        clip = int(number) if number.isdigit() else 0
    try:
        place = data.where(keys=[key or clip_key])[0].media[clip]
    except (DataError, IndexError):
        return ""
    if is_built_in(place):
        return f"data:image/webp;base64,{base64.b64encode(read_image(place)).decode()}"
    media = Path(place)
    return _small(media) if media.suffix.lower() in ENDINGS and media.is_file() else ""


def _small(path: Path) -> str:
    from PIL import Image

    written = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((SIDE, SIDE))
        image.convert("RGB").save(written, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"


QUERIES, TOP = 6, 3


@dataclass(frozen=True)
class RetrievedClip:
    """One retrieved clip."""

    key: str
    text: str  # one of its sentences
    cosine: float  # its similarity to the query
    right: str  # ``own`` for the query's own clip, ``shared`` for one that shares a caption with it, else empty


@dataclass(frozen=True)
class Example:
    """A query and its nearest clips."""

    key: str
    text: str
    hits: list[RetrievedClip]


def choose_examples(embeddings: Embeddings, by_text: bool) -> list[Example]:
    """Random sentences, or random clips, with their nearest (other) clips; no text is a query or an answer twice."""
    items, sentences = embeddings.pair()
    shared = SharedCaptions(sentences.texts, sentences.clip_of.tolist(), len(items.rows))
    clips, keys = normalize(items.rows, dim=1), [embeddings.clip_keys[clip] for clip in items.clip_of]
    queries = normalize(sentences.rows, dim=1) if by_text else clips
    texts = sentences.texts if by_text else [_text(embeddings, clip) or keys[clip] for clip in range(len(queries))]
    order = np.random.default_rng(0).permutation(len(queries)).tolist()
    chosen = list({texts[number].casefold(): number for number in reversed(order)}.values())[::-1][:QUERIES]
    examples = []
    for number in sorted(chosen):
        own = int(sentences.clip_of[number]) if by_text else number
        scores = clips @ queries[number]
        if not by_text:
            scores[own] = -torch.inf
        right = shared.pairs(torch.tensor([own]), torch.arange(len(clips))).toarray()[0]
        hits: dict[str, RetrievedClip] = {}
        for clip in scores.argsort(descending=True).tolist():
            text = _text(embeddings, clip)
            kind = "own" if clip == own else "shared" if right[clip] else ""
            hits.setdefault(text.casefold() or keys[clip], RetrievedClip(keys[clip], text, float(scores[clip]), kind))
            if len(hits) == TOP:
                break
        text = sentences.texts[number] if by_text else _text(embeddings, own)
        examples.append(Example(keys[own], text, list(hits.values())))
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


def _text(embeddings: Embeddings, clip: int) -> str:
    _, sentences = embeddings.pair()
    own = (sentences.clip_of == clip).nonzero().flatten()
    return sentences.texts[int(own[0])] if len(own) else ""
