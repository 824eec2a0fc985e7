"""Phrases that people may use for an emoji: its main colour and one of its tags, such as "red fruit"."""

from collections import Counter
from functools import cache
from threading import Lock

import numpy as np

from crossclr.features.sample import Rows
from crossclr.features.sources.emoji.emoji_catalogue import load_emoji

_LOCK = Lock()  # several threads read batches; only one may run the expert
SHARED_BY = 8  # number of emoji that must share a tag for it to count as a category


@cache
def phrases() -> tuple[tuple[str, ...], ...]:
    """The phrases of every emoji, in the order of `load_emoji`; none for an emoji without a main colour."""
    items = load_emoji()
    uses = Counter(tag for item in items for tag in set(item.tags))
    colours = {item.colour for item in items}
    return tuple(
        tuple(
            f"{item.colour} {tag}"
            for tag in item.tags
            if item.colour and uses[tag] >= SHARED_BY and tag not in colours and tag.replace(" ", "").isalpha()
        )
        for item in items
    )


def load_phrase_rows() -> tuple[tuple[Rows, ...], ...]:
    """Token rows of every emoji's phrases, computed by the text expert; needs the extra `crossclr[experts]`."""
    with _LOCK:
        return _compute_rows()


@cache
def _compute_rows() -> tuple[tuple[Rows, ...], ...]:
    from crossclr.extract import TokenEncoder

    distinct = sorted({phrase for own in phrases() for phrase in own})
    rows = dict(zip(distinct, TokenEncoder()(distinct), strict=True))
    for row in rows.values():
        np.asarray(row).flags.writeable = False
    return tuple(tuple(rows[phrase] for phrase in own) for own in phrases())
