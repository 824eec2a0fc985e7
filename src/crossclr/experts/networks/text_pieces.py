"""Cut a long text into overlapping pieces that fit a network, and join the rows of the pieces again."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossclr.experts.contract import FloatRows


@dataclass(frozen=True)
class Pieces:
    """A text in pieces."""

    ids: list[list[int]]  # token ids of each piece, with its special tokens
    kept: list[slice]  # for each piece the slice of its rows that the joined text keeps


def cut_pieces(ids: Sequence[int], limit: int, before: int, after: int) -> Pieces:
    """Cut a text into pieces of at most ``limit`` tokens; each overlaps the next by half.

    Every piece gets the text's special tokens. Two pieces share their overlap: the first keeps the rows up to the
    middle of it, the second keeps the rest. The first piece keeps the leading special tokens, the last piece the
    trailing ones.

    Example:
        >>> cut_pieces([0, 11, 12, 13, 14, 15, 16, 9], 6, 1, 1)
        Pieces(ids=[[0, 11, 12, 13, 14, 9], [0, 13, 14, 15, 16, 9]], kept=[slice(0, 4, None), slice(2, 6, None)])
    """
    if len(ids) <= limit:
        return Pieces([list(ids)], [slice(0, len(ids))])
    end = len(ids) - after
    head, content, tail = list(ids[:before]), ids[before:end], list(ids[end:])
    room = limit - before - after
    overlap = room // 2
    starts = range(0, len(content) - overlap, room - overlap)
    pieces, kept = [], []
    for start in starts:
        piece = list(content[start : start + room])
        pieces.append([*head, *piece, *tail])
        first = 0 if start == 0 else before + overlap // 2
        last = len(pieces[-1]) if start == starts[-1] else before + room - overlap + overlap // 2
        kept.append(slice(first, last))
    return Pieces(pieces, kept)


def join_pieces(pieces: Pieces, rows: Sequence[FloatRows]) -> FloatRows:
    """(tokens, dim): the rows of the text, one for each of its tokens."""
    if len(rows) == 1:
        return rows[0]
    return np.concatenate([part[kept] for part, kept in zip(rows, pieces.kept, strict=True)])
