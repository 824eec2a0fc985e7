"""Several items of one thing, such as the drawings of an emoji or the moments of a film, as one result.

Results as plain values, the same in the JSON of the command and in the answers of the service.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.data.emoji_set import count_images, is_built_in
from crossclr.extract.media import media_type
from crossclr.search.items import Item

SAME_LOOK = 0.985  # correlation of the thumbnails of two versions of one picture
MIN_CONTRAST = 100.0  # length of the differences; below, a picture has only one colour
Floats = npt.NDArray[np.float64]
UNLIKELY = 0.05  # if every result is less likely to be right, there is no good match


@dataclass(frozen=True)
class Hit:
    """One result.

    Args:
        item: the item.
        score: its cosine to the query, plus the index's correction against hubs if it has one.
        probability: the estimated probability that it is right; None if it cannot be estimated.
        words: whether the item contains the words of the query.
        together: if the result is a whole sample, its first item of each modality.
        experts: the share of each expert in the score, the largest first; empty without experts.
    """

    item: Item
    score: float
    probability: float | None = None
    words: bool = False
    together: tuple[Item, ...] = ()
    experts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Thing:
    """The hits of one thing, the best one first, and how many hits of other files look the same."""

    best: Hit
    others: tuple[Hit, ...] = ()
    copies: int = 0


def group_hits(hits: Sequence[Hit], most: int, looks: Mapping[int, bytes] | None = None) -> list[Thing]:
    """At most ``most`` things in the order of their best hits.

    Items belong to one thing if they show the same clip or lie in the same file. Moments that overlap become one. An
    image or video that looks like a better one is counted there, such as a smaller version of the same photo.

    Args:
        hits: the results, best first.
        most: how many things.
        looks: the thumbnails of items by their number (see `Previews.looks`).

    Example:
        >>> apples = [Hit(Item(n, f"image/x@{n}", "image", "x"), 0.9 - n / 10) for n in range(2)]
        >>> pear = Hit(Item(2, "image/y", "image", "y"), 0.85)
        >>> [(thing.best.item.id, len(thing.others)) for thing in group_hits([apples[0], pear, apples[1]], 5)]
        [(0, 1), (2, 0)]
    """
    things: dict[str, list[Hit]] = {}
    pictures = {number: _contrast(look) for number, look in (looks or {}).items()}
    originals: dict[str, Floats] = {}  # the picture of the best hit of each thing that has one
    copies: dict[str, set[str]] = {}  # by thing, the names of the things that look the same
    for hit in hits:
        name, picture = _thing(hit.item), pictures.get(hit.item.id)
        if name not in things and picture is not None:
            same = next((one for one, known in originals.items() if known @ picture >= SAME_LOOK), None)
            if same is not None:
                copies.setdefault(same, set()).add(name)
                continue
        if name in things or len(things) < most:
            things.setdefault(name, []).append(hit)
            if picture is not None:
                originals.setdefault(name, picture)
    return [
        Thing(found[0], tuple(found[1:]), len(copies.get(name, ())))
        for name, found in zip(things, map(_merge_neighbours, things.values()), strict=True)
    ]


def _contrast(look: bytes) -> Floats:
    """A thumbnail as a unit vector of its differences from its mean; zeros for a picture of one colour."""
    values = np.frombuffer(look, dtype=np.uint8).astype(np.float64)
    values -= values.mean()
    length = float(np.linalg.norm(values))
    return values / length if length > MIN_CONTRAST else np.zeros_like(values)


def _merge_neighbours(hits: Sequence[Hit]) -> list[Hit]:
    """Join hits that overlap in time to the best of them, whose span grows to cover them.

    A hit is compared with the span that the better hit had by itself, so that windows do not join in a chain.
    """
    kept: list[Hit] = []
    spans: list[tuple[float, float]] = []  # of the kept hits, before they grew
    for hit in hits:
        start, stop = hit.item.start, hit.item.stop
        if start is None or stop is None:
            kept.append(hit)
            spans.append((0.0, 0.0))
            continue
        place = next((n for n, (first, last) in enumerate(spans) if start < last and first < stop), None)
        if place is None:
            kept.append(hit)
            spans.append((start, stop))
        else:
            item = kept[place].item
            grown = replace(item, start=min(start, item.start or 0.0), stop=max(stop, item.stop or 0.0))
            kept[place] = replace(kept[place], item=grown)
    return kept


def _thing(item: Item) -> str:
    if item.file and not is_built_in(item.file):
        return item.file
    return f"{item.modality}/{item.key}"


def plain_item(item: Item, base: str | None = None) -> dict[str, Any]:
    """An item as JSON values, with the path of its file below ``base``, or the whole path.

    Example:
        >>> plain_item(Item(3, "text/x", "text", "x", text="a cat"))["text"]
        'a cat'
    """
    media = None
    if item.media:
        media = {"kind": item.media, "start": item.start, "stop": item.stop, "parts": count_images(item.file)}
        built_in = is_built_in(item.file)
        media |= {"preview": not built_in, "playable": built_in or media_type(Path(item.file)) is not None}
        if not built_in:
            media["file"] = item.file if base is None else place_below(item.file, base)
    return {
        "id": item.name,
        "modality": item.modality,
        "key": item.key,
        "text": item.text,
        "split": item.split,
        "group": item.group,
        "variant": item.variant,
        "media": media,
        "fields": json.loads(item.fields) if item.fields else {},
    }


def place_below(file: str, base: str) -> str:
    """The path of a file below a folder, or its name alone if it is elsewhere.

    Example:
        >>> place_below("/photos/2019/sea.jpg", "/photos"), place_below("/other/sea.jpg", "/photos")
        ('2019/sea.jpg', 'sea.jpg')
    """
    inside = base and Path(file).is_relative_to(base)
    return Path(file).relative_to(base).as_posix() if inside else Path(file).name


def none_likely(hits: Sequence[Hit]) -> bool:
    """Whether all results have a probability and none reaches 5%.

    Example:
        >>> none_likely([Hit(Item(2, "image/y", "image", "y"), 0.1, probability=0.01)])
        True
    """
    return bool(hits) and all((hit.probability or 1) < UNLIKELY and not hit.words for hit in hits)


def plain_hit(hit: Hit, base: str | None = None) -> dict[str, Any]:
    """A result with its score, and all items of a result that is a whole sample."""
    chance = None if hit.probability is None else round(hit.probability, 4)
    values: dict[str, Any] = {"score": round(hit.score, 5), "probability": chance, "words": hit.words}
    values |= plain_item(hit.item, base)
    values |= {"experts": {name: round(share, 3) for name, share in hit.experts.items()}} if hit.experts else {}
    return values | ({"together": [plain_item(item, base) for item in hit.together]} if hit.together else {})
