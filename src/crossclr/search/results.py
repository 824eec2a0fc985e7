"""Several items of one thing, such as the drawings of an emoji or the moments of a film, as one result.

Results as plain values, the same in the JSON of the command and in the answers of the service.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crossclr.data.emoji_set import count_images, is_built_in
from crossclr.extract.media import media_type
from crossclr.search.items import Item

UNLIKELY = 0.05  # if every result is less likely to be right, there is no good match


@dataclass(frozen=True)
class Hit:
    """One result.

    Args:
        item: the item.
        score: its cosine to the query, plus the index's correction against hubs if it has one.
        probability: the estimated probability that it is right; None if it cannot be estimated.
        together: if the result is a whole sample, its first item of each modality.
    """

    item: Item
    score: float
    probability: float | None = None
    together: tuple[Item, ...] = ()


@dataclass(frozen=True)
class Thing:
    """The hits of one thing, the best one first."""

    best: Hit
    others: tuple[Hit, ...] = ()


def group_hits(hits: Sequence[Hit], most: int) -> list[Thing]:
    """At most ``most`` things in the order of their best hits.

    Items belong to one thing if they show the same clip or lie in the same file. Moments that overlap become one.

    Example:
        >>> apples = [Hit(Item(n, f"image/x@{n}", "image", "x"), 0.9 - n / 10) for n in range(2)]
        >>> pear = Hit(Item(2, "image/y", "image", "y"), 0.85)
        >>> [(thing.best.item.id, len(thing.others)) for thing in group_hits([apples[0], pear, apples[1]], 5)]
        [(0, 1), (2, 0)]
    """
    things: dict[str, list[Hit]] = {}
    for hit in hits:
        name = _thing(hit.item)
        if name in things or len(things) < most:
            things.setdefault(name, []).append(hit)
    return [Thing(found[0], tuple(found[1:])) for found in map(_merge_neighbours, things.values())]


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


def plain_item(item: Item) -> dict[str, Any]:
    """An item as JSON values.

    Example:
        >>> plain_item(Item(3, "text/x", "text", "x", text="a cat"))["text"]
        'a cat'
    """
    media = None
    if item.media:
        media = {"kind": item.media, "start": item.start, "stop": item.stop, "parts": count_images(item.file)}
        built_in = is_built_in(item.file)
        media |= {"preview": not built_in, "playable": built_in or media_type(Path(item.file)) is not None}
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


def plain_together(hit: Hit) -> dict[str, Any]:
    """The items of a result that is a whole sample; nothing for other results."""
    return {"together": [plain_item(item) for item in hit.together]} if hit.together else {}


def none_likely(hits: Sequence[Hit]) -> bool:
    """Whether all results have a probability and none reaches 5%.

    Example:
        >>> none_likely([Hit(Item(2, "image/y", "image", "y"), 0.1, probability=0.01)])
        True
    """
    return bool(hits) and all(hit.probability is not None and hit.probability < UNLIKELY for hit in hits)


def plain_hit(hit: Hit) -> dict[str, Any]:
    """A result with its score and, for programs on this machine, the path of its file."""
    chance = None if hit.probability is None else round(hit.probability, 4)
    values = {"score": round(hit.score, 5), "probability": chance, **plain_item(hit.item), **plain_together(hit)}
    if values["media"] is not None and not is_built_in(hit.item.file):
        values["media"] = {**values["media"], "file": hit.item.file}
    return values
