"""Directions of retrieval: their keys in results, such as ``clip/text->video``, and their words, ``text → video``."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Self

LEVELS = {"clip": "clips", "video": "whole videos"}


@dataclass(frozen=True)
class Direction:
    """A search from one modality to another, at one level."""

    level: str  # ``clip`` or ``video``
    query: str  # name of the modality of the queries
    searched: str  # name of the modality that is searched

    @classmethod
    def parse(cls, key: str) -> Self:
        """From its key."""
        level, _, names = key.partition("/")
        query, arrow, searched = names.partition("->")
        if not (level and query and arrow and searched):
            raise ValueError(f"{key!r} is not the key of a direction; an example of one is clip/text->video")
        return cls(level, query, searched)

    @property
    def key(self) -> str:
        """Its name in results and configs."""
        return f"{self.level}/{self.query}->{self.searched}"

    @property
    def words(self) -> str:
        """Its name in texts, without the level."""
        return f"{self.query} → {self.searched}"


def directions_of(modalities: Sequence[str], level: str = "clip") -> list[str]:
    """The keys of every ordered pair of modalities.

    Example:
        >>> directions_of(["video", "text"])
        ['clip/text->video', 'clip/video->text']
    """
    pairs = combinations(modalities, 2)
    return [Direction(level, *pair).key for first, second in pairs for pair in ((second, first), (first, second))]


def direction_words(keys: Iterable[str]) -> dict[str, str]:
    """The words of directions that are shown together, by key; they name the level only if there are two."""
    found = {key: Direction.parse(key) for key in keys}
    if len({one.level for one in found.values()}) < 2:
        return {key: one.words for key, one in found.items()}
    return {key: f"{one.words} ({LEVELS.get(one.level, one.level)})" for key, one in found.items()}
