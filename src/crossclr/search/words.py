"""Words of a query that stand in captions, file names, folders and columns, fused with the vectors by ranks.

An item matches if it contains every word of the query that says something, or every phrase in quotation marks. Matching
items come first; all other items keep the order of their vectors.
"""

from __future__ import annotations

import json
import os.path
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from crossclr.data.emoji_set import is_built_in
from crossclr.evaluation.words import FUNCTION_WORDS, WORD

RANK_OFFSET = 60  # of reciprocal rank fusion, as Cormack, Clarke and Büttcher (SIGIR 2009) use it
WORD_WEIGHT = 2.0  # the best item by vectors stays behind the first 62 items by words
KINDS = frozenset("clip clips image images movie photo photos picture pictures recording sound video videos".split())  # noqa: SIM905
NOT_WORDS = frozenset(("date", "duration"))  # fields that a filter compares
_QUOTED = re.compile(r'["“”„]([^"“”„]+)["“”„]')
_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


def word_query(text: str) -> str | None:
    """The expression for FTS5 that a query means; None if no word of it says anything.

    Example:
        >>> word_query('a photo of the red car'), word_query('"the who" live'), word_query("IMG_2031.jpg")
        ('"red" AND "car"', '"the who" AND "live"', '"img" AND "2031" AND "jpg"')
        >>> word_query("of the") is None
        True
    """
    phrases = [" ".join(WORD.findall(phrase.lower())) for phrase in _QUOTED.findall(text)]
    words = [word for word in WORD.findall(_QUOTED.sub(" ", text).lower()) if word not in FUNCTION_WORDS]
    words = [word for word in words if word not in KINDS] or words
    wanted = dict.fromkeys([*(phrase for phrase in phrases if phrase), *words])
    return " AND ".join(f'"{phrase}"' for phrase in wanted) or None


def item_words(
    rows: Sequence[tuple[Any, ...]], texts: Collection[str], roots: Collection[str]
) -> Iterator[tuple[Any, ...]]:
    """What each item can be found by: its number, sentences, file name, folders and columns of the captions.

    A sentence is found by itself, any other item by all sentences of its clip.

    Args:
        rows: id, modality, key, text, file and fields of all items.
        texts: the modalities of sentences.
        roots: the folders of the media files; only what lies below all of them counts as a folder.
    """
    sentences: dict[str, dict[str, None]] = {}
    for _, _, key, text, _, _ in rows:
        sentences.setdefault(key, {})[text] = None
    base = os.path.commonpath(list(roots)) if roots else ""
    for number, modality, key, text, file, fields in rows:
        own = text if modality in texts else "\n".join(sentences[key])
        path = Path(file if file and not is_built_in(file) else "")
        inside = path.is_relative_to(base) if base else False
        folders = path.relative_to(base).parent.parts if inside else ()
        values = [str(value) for name, value in (json.loads(fields) if fields else {}).items() if name not in NOT_WORDS]
        yield number, own, _split_name(path.name), _split_name(" ".join(folders)), " ".join(values)


def fuse_ranks(scores: Mapping[int, float], matches: Sequence[int]) -> list[int]:
    """The items best first, by the sum of the reciprocal ranks of their scores and of their words.

    Args:
        scores: the score of each item.
        matches: the items that contain the words of the query, best first.

    Example:
        >>> fuse_ranks({7: 0.9, 8: 0.5, 9: 0.1}, [9])
        [9, 7, 8]
    """
    fused = {item: 1 / (RANK_OFFSET + rank) for rank, item in enumerate(sorted(scores, key=lambda one: -scores[one]))}
    for rank, item in enumerate(matches):
        fused[item] = fused.get(item, 0.0) + WORD_WEIGHT / (RANK_OFFSET + rank)
    return sorted(fused, key=lambda item: -fused[item])


def _split_name(name: str) -> str:
    """A name, and its parts where letters and digits or small and capital letters meet.

    ``beachDay12`` is found by ``beachday12``, ``beach``, ``day`` and ``12``.
    """
    parts = _BOUNDARY.sub(" ", name)
    return name if parts == name else f"{name} {parts}"
