"""Whether a typed query is made of words at all: how usual its sequences of three letters are."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from crossclr.features.sources.emoji import load_emoji

LANGUAGE = "language.npz"
SMOOTHING = 0.02
LOST = 0.01  # share of real queries that may count as nonsense
MOST_TEXTS = 100_000
_WORD = re.compile(r"[^\W\d_]+")
_LETTERS = 27  # a to z, and the edge of a word


class Language:
    """The sequences of letters in the sentences of a collection, and in English names that come with the package.

    Args:
        counts: (27, 27, 27) how often a letter follows two others.
        others: letters beyond a to z (without accents) that the sentences use.
        limit: queries with a lower `usual` are nonsense.

    Example:
        >>> language = Language.learn(["a dog runs", "two cats sleep"])
        >>> [language.is_nonsense(text) for text in ("sleeping dogs", "x x qwertz", "...")]
        [False, True, True]
    """

    def __init__(self, counts: npt.NDArray[np.float64], others: str, limit: float) -> None:
        self.others, self.limit = frozenset(others), limit
        self.counts = counts
        smoothed = counts + SMOOTHING
        self._chance = np.log(smoothed / smoothed.sum(2, keepdims=True))

    @classmethod
    def learn(cls, texts: Iterable[str]) -> Language:
        """Learn from sentences; the limit is set on sentences that were held out."""
        own = list(dict.fromkeys(texts))[:MOST_TEXTS]
        general = [emoji.text for emoji in load_emoji()]
        halves = [_count([*own[part::2], *general[part::2]]) for part in (0, 1)]
        others = "".join(
            sorted({letter for text in own for word in _words(text) for letter in word if _code(letter) < 0})
        )
        limits = []
        halved = [cls(counts, others, -np.inf) for counts in halves]
        for texts in (own, general):
            usual = [halved[1 - part].usual(query) for part in (0, 1) for query in _queries(texts[part::2])]
            limits += [float(np.quantile(usual, LOST))] if usual else []
        return cls(halves[0] + halves[1], others, min(limits))

    def usual(self, text: str) -> float:
        """Mean log-probability of the letters of a text, the higher the more usual; minus infinity without letters."""
        words = _words(text)
        total, letters = 0.0, 0
        for word in words:
            codes = [_code(letter) for letter in word]
            letters += len(codes) + 1
            if min(codes) < 0:  # another script: known or not, as a whole
                known = all(code >= 0 or letter in self.others for code, letter in zip(codes, word, strict=True))
                total += (-2.0 if known else -12.0) * (len(codes) + 1)
                continue
            for first, second, third in _triples(codes):
                total += float(self._chance[first, second, third])
        return total / letters if letters else -np.inf

    def is_nonsense(self, text: str) -> bool:
        """Whether a query is most likely not made of words."""
        return self.usual(text) < self.limit

    def save(self, folder: Path) -> None:
        """Write it to the folder of an index."""
        np.savez_compressed(folder / LANGUAGE, counts=self.counts, others="".join(self.others), limit=self.limit)

    @classmethod
    def open(cls, folder: Path) -> Language | None:
        """The language of an index; None if it has none."""
        if not (folder / LANGUAGE).is_file():
            return None
        with np.load(folder / LANGUAGE, allow_pickle=False) as stored:
            return cls(stored["counts"], str(stored["others"]), float(stored["limit"]))


def _words(text: str) -> list[str]:
    text = text.lower()
    return _WORD.findall(text if text.isascii() else "".join(map(_plain, text)))


def _plain(letter: str) -> str:
    """A letter without its accent."""
    return letter if letter < "\x80" else unicodedata.normalize("NFD", letter)[0]


def _code(letter: str) -> int:
    return ord(letter) - 96 if "a" <= letter <= "z" else -1


def _triples(codes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Each letter and the end of a word, with the two letters before it."""
    padded = [0, 0, *codes, 0]
    return list(zip(padded, padded[1:], padded[2:], strict=False))


def _count(texts: Iterable[str]) -> npt.NDArray[np.float64]:
    counts = np.zeros((_LETTERS, _LETTERS, _LETTERS))
    for word, times in Counter(word for text in texts for word in _words(text)).items():
        codes = [_code(letter) for letter in word]
        if min(codes) >= 0:
            for triple in _triples(codes):
                counts[triple] += times
    return counts


def _queries(texts: Sequence[str], most: int = 3000) -> list[str]:
    """Short queries as people type them: one to four neighbouring words of a sentence."""
    found = []
    step = max(1, len(texts) // most)
    for number, text in enumerate(texts[::step]):
        words = _words(text)
        size = 1 + number % 4
        place = number % max(1, len(words) - size + 1)
        if words[place : place + size]:
            found.append(" ".join(words[place : place + size]))
    return found
