"""One query from several things: a sentence, a file, items of which you want more, and items of which you want less.

The module is light, so that a command can ask a running service at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Self

import numpy as np

from crossclr.errors import CrossCLRError
from crossclr.search.index import Vectors, unit

if TYPE_CHECKING:
    from crossclr.search.query_encoders import FileQuery

MOST = 1000  # results of one query
MOST_ITEMS = 50  # items that one query may like or dislike
LONGEST_TEXT = 1000  # characters of a typed query


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
        for name in (about.name for about in fields(self)):
            if not 0 <= getattr(self, name) <= 100:
                raise QueryError(f"the weight of {name} must be between 0 and 100, got {getattr(self, name)}")

    @classmethod
    def parse(cls, given: Sequence[str]) -> Self:
        """From words such as ``text=0.5``; what is not named has its default.

        Example:
            >>> Weights.parse(["text=0.5", "file=2"])
            Weights(text=0.5, file=2.0, more=1.25, less=0.25)
        """
        names, found = [about.name for about in fields(cls)], {}
        for one in given:
            name, _, number = one.partition("=")
            try:
                found[name] = float(number)
            except ValueError:
                name = ""
            if name not in names:
                raise QueryError(f"the weight {one!r} is not one of {', '.join(names)} with a number, such as text=0.5")
        return cls(**found)


@dataclass(frozen=True)
class Query:
    """One query: a sentence, a file and items in any combination, or one vector.

    Args:
        text: a sentence of at most 1,000 characters.
        text_modality: the modality whose encoder reads the sentence, such as ``spanish``, if the data has several that
            are text. Default: the one named ``text``, or the first.
        like: name of an item to find neighbours of; the item itself is not returned.
        file: a file of your own, from ``files.encode``.
        more: names of items that the results should resemble.
        less: names of items that they should not resemble; they are not returned.
        weights: how much each part counts.
        vector: a vector of the joint space, alone.
        find: modality of the results; ``all``: items of every modality; ``fused``: whole samples, compared by the
            normalised mean of their vectors; ``video+picture``: the same with some modalities. Default: a file's
            modality, or the first that is not the query's own.
        top: number of results.
        splits: return only items of these splits. Default: all.
        groups: return only items of these groups. Default: all.
        where: return only items with these values of other filters, by the name of the filter: a column of the
            captions, ``duration`` or ``date``. Numbers and dates may be ranges such as ``10..20``.
        min_probability: return only results that are right with at least this estimated probability, and those that
            contain the words of the query.

    Raises:
        QueryError: a value is out of range, or nothing says what to find.
    """

    text: str | None = None
    text_modality: str | None = None
    like: str | None = None
    file: FileQuery | None = None
    more: Sequence[str] = ()
    less: Sequence[str] = ()
    weights: Weights = Weights()
    vector: Sequence[float] | Vectors | None = None
    find: str | None = None
    top: int = 10
    splits: Sequence[str] = ()
    groups: Sequence[str] = ()
    where: Mapping[str, Sequence[str]] = field(default_factory=dict)
    min_probability: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST:
            raise QueryError(f"top must be between 1 and {MOST}, got {self.top}")
        if not 0 <= self.min_probability <= 1:
            raise QueryError(f"the lowest probability must be between 0 and 1, got {self.min_probability}")
        if len(self.more) + len(self.less) > MOST_ITEMS:
            named = len(self.more) + len(self.less)
            raise QueryError(f"one query may name at most {MOST_ITEMS} items, got {named}")
        others = self.text is not None or self.file is not None or self.like is not None or self.more or self.less
        if self.vector is not None and others:
            raise QueryError("a vector is a whole query; give it without a text, a file and items")

    @property
    def only_text(self) -> bool:
        """Whether a sentence is the whole query."""
        return self.text is not None and self.file is None and not (self.like or self.more or self.less)

    def filters(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """The wanted values of each filter, sorted, so that equal filters are equal.

        Example:
            >>> Query(text="a", splits=["val"], where={"place": ["hall"]}).filters()
            (('group', ()), ('place', ('hall',)), ('split', ('val',)))
        """
        wanted = {**self.where, "split": [*self.splits, *self.where.get("split", ())]}
        wanted["group"] = [*self.groups, *self.where.get("group", ())]
        return tuple((name, tuple(sorted(set(wanted[name])))) for name in sorted(wanted))

    def clean_text(self) -> str:
        """The sentence without superfluous spaces.

        Raises:
            QueryError: it is empty or too long.
        """
        text = " ".join((self.text or "").split())
        if not text:
            raise QueryError("the text is empty; type what you are looking for")
        if len(text) > LONGEST_TEXT:
            raise QueryError(f"the text has {len(text):,} characters; the limit is {LONGEST_TEXT:,}")
        return text


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
