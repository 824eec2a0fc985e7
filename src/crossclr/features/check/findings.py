"""Findings of the check of a data set."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

EXAMPLES = 5  # keys that a finding names


@dataclass(frozen=True)
class Finding:
    """One fault (training fails or is wrong) or one warning (it may be intended).

    Args:
        level: ``fault`` or ``warning``.
        kind: a short name to search for, e.g. ``unreadable`` or ``shared-group``.
        message: what was found, where, and how to fix it.
        count: number of samples it concerns.
        keys: the first of them.
    """

    level: Literal["fault", "warning"]
    kind: str
    message: str
    count: int = 1
    keys: tuple[str, ...] = ()


def warn(kind: str, message: str, keys: Sequence[str]) -> Finding:
    """A warning about some keys; the message names the first few.

    Example:
        >>> warn("unused", "{count} entries are not used", ["x", "y"]).message
        "2 entries are not used (first: 'x', 'y')"
    """
    return _about("warning", kind, message, keys)


def fault(kind: str, message: str, keys: Sequence[str]) -> Finding:
    """A fault of some keys; the message names the first few."""
    return _about("fault", kind, message, keys)


def _about(level: Literal["fault", "warning"], kind: str, message: str, keys: Sequence[str]) -> Finding:
    first = tuple(keys[:EXAMPLES])
    named = f" (first: {', '.join(repr(key) for key in first)})" if first else ""
    return Finding(level, kind, message.replace("{count}", f"{len(keys):,}") + named, len(keys), first)
