"""Weights and filters as people type them; light, so that a command can ask a running service at once."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Self

from crossclr.search.query_error import QueryError


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
