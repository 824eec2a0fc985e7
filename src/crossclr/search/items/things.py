"""Several items of one thing, such as the drawings of an emoji or the moments of a film, as one result."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossclr.features.sources.emoji import is_built_in
from crossclr.search.items.item_table import Item


@dataclass(frozen=True)
class Hit:
    """One result.

    Args:
        item: the item.
        score: its cosine to the query, plus the index's correction against hubs if it has one.
    """

    item: Item
    score: float


@dataclass(frozen=True)
class Thing:
    """The hits of one thing, the best one first."""

    best: Hit
    others: tuple[Hit, ...] = ()


def group_hits(hits: Sequence[Hit], most: int) -> list[Thing]:
    """At most ``most`` things in the order of their best hits.

    Items belong to one thing if they show the same clip or lie in the same file.

    Example:
        >>> apples = [Hit(Item(n, f"a/x@{n}", "a", "x"), 0.9 - n / 10) for n in range(2)]
        >>> pear = Hit(Item(2, "a/y", "a", "y"), 0.85)
        >>> [(thing.best.item.id, len(thing.others)) for thing in group_hits([apples[0], pear, apples[1]], 5)]
        [(0, 1), (2, 0)]
    """
    things: dict[str, list[Hit]] = {}
    for hit in hits:
        name = _thing(hit.item)
        if name in things or len(things) < most:
            things.setdefault(name, []).append(hit)
    return [Thing(found[0], tuple(found[1:])) for found in things.values()]


def _thing(item: Item) -> str:
    if item.file and not is_built_in(item.file):
        return item.file
    return f"{item.modality}/{item.key}"
