"""What to say when a name is unknown. This module lies below all others and imports none of them."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question; without a near one, the list of all.

    Example:
        >>> suggest("tempreature", ["temperature", "queue_size"])
        "did you mean 'temperature'?"
        >>> suggest("size", ["temperature", "queue_size"])
        'there are: temperature, queue_size'
    """
    known = list(known)
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
