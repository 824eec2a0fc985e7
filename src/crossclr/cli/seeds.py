"""The option ``--seeds``, which all commands read in the same way."""

from __future__ import annotations


def parse_seeds(text: str) -> list[int]:
    """The numbers of ``--seeds 0,1,2``.

    Raises:
        ValueError: the text is not a list of different numbers.

    Example:
        >>> parse_seeds("0,1,2")
        [0, 1, 2]
    """
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--seeds takes numbers separated by commas, as in 0,1,2; got {text!r}") from None
    if len(set(found)) != len(found):
        raise ValueError(f"--seeds takes different numbers, got {text!r}")
    return found
