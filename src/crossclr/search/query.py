"""The error of a query that cannot be answered.

Weights and filters as people type them; light, so that a command can ask a running service at once.

One query from several things: a sentence, a file, items of which you want more, and items of which you want less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from crossclr.errors import CrossCLRError
from crossclr.search.index import Vectors, unit


class QueryError(CrossCLRError, ValueError):
    """A query that has no answer; the message says why."""


@dataclass(frozen=True)
class Weights:
    """How much each kind of part counts; the items of one kind share its weight.

    The defaults of ``more`` and ``less`` were chosen on clips of MSVD that were held out (docs/search.md).
    """

    text: float = 1.0
    file: float = 1.0
    more: float = 1.25
    less: float = 0.25

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not 0 <= getattr(self, name) <= 100:
                raise QueryError(f"the weight of {name} must be between 0 and 100, got {getattr(self, name)}")

    @classmethod
    def parse(cls, given: Sequence[str]) -> Self:
        """From words such as ``text=0.5``; what is not named has its default.

        Example:
            >>> Weights.parse(["text=0.5", "file=2"])
            Weights(text=0.5, file=2.0, more=1.25, less=0.25)
        """
        names, found = [field.name for field in fields(cls)], {}
        for one in given:
            name, _, number = one.partition("=")
            try:
                found[name] = float(number)
            except ValueError:
                name = ""
            if name not in names:
                raise QueryError(f"the weight {one!r} is not one of {', '.join(names)} with a number, such as text=0.5")
        return cls(**found)


def parse_where(texts: Sequence[str]) -> dict[str, list[str]]:
    """Values by filter, from texts such as ``year=2010..2015``.

    Example:
        >>> parse_where(["place=kitchen", "place=hall", "year=2010.."])
        {'place': ['kitchen', 'hall'], 'year': ['2010..']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise QueryError(f"a filter must look like NAME=VALUE, such as duration=..10; got {text[:100]!r}")
        found.setdefault(name.strip(), []).append(value.strip())
    return found


def with_sentences(item: Vectors, sentences: Vectors) -> Vectors:
    """(1, dim) an item that a person judged, together with the sentences of its clip, which count twice.

    Example:
        >>> vector = with_sentences(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]]))
        >>> [round(float(value), 2) for value in vector[0]]
        [0.45, 0.89]
    """
    return unit(unit(item) + 2 * unit(unit(sentences).mean(0, keepdims=True))) if len(sentences) else item


def combine(
    *,
    text: Vectors | None = None,
    file: Vectors | None = None,
    more: Vectors | None = None,
    less: Vectors | None = None,
    weights: Weights | None = None,
) -> Vectors:
    """(1, dim) the unit vector of a combined query, by Rocchio's rule.

    Each kind of part is the unit vector of its mean. The query is their weighted sum, in which ``less`` is subtracted.

    Args:
        text: (1, dim) vector of the sentence.
        file: (1, dim) vector of the file.
        more: (items, dim) vectors of the items that the results should resemble.
        less: (items, dim) vectors of the items that they should not resemble.
        weights: how much each part counts.

    Raises:
        QueryError: nothing says what to find, or the parts cancel each other.

    Example:
        >>> query = combine(text=np.array([[1, 0]]), more=np.array([[0, 1], [0, 3]]), weights=Weights(more=1))
        >>> query.round(4).astype(str).tolist()
        [['0.7071', '0.7071']]
    """
    weights = weights or Weights()
    parts = [
        sign * getattr(weights, name) * unit(unit(np.asarray(found, dtype=np.float32)).mean(0, keepdims=True))
        for name, found, sign in (("text", text, 1), ("file", file, 1), ("more", more, 1), ("less", less, -1))
        if found is not None and len(found)
    ]
    if (text is None and file is None and more is None) or not parts:
        raise QueryError("say what to find: a sentence, a file, or an item to find more of")
    total = np.sum(parts, axis=0)
    if float(np.linalg.norm(total)) < 1e-6:
        raise QueryError("the parts of the query cancel each other; change their weights")
    return unit(total)
