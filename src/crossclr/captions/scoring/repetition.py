"""RE@n: how much a paragraph repeats itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence


def repetition(sentences: Sequence[str], n: int) -> float:
    """Share of a paragraph's n-grams that occurred before, in percent.

    n-grams do not cross sentences; their counts are pooled over the paragraph. Case and punctuation matter, except for
    commas and one final full stop.

    Args:
        sentences: the sentences as they were written.
        n: words of an n-gram.

    Returns:
        Σ (count − 1) / Σ count over all n-grams, times 100; 0 where there is none.

    Example:
        >>> repetition(["cut the onion", "cut the leek."], 2)  # "cut the" stands twice among four bigrams
        25.0
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for sentence in sentences:
        words = _words(sentence)
        counts.update(tuple(words[start : start + n]) for start in range(len(words) - n + 1))
    total = counts.total()
    return 100.0 * (total - len(counts)) / total if total else 0.0


def mean_repetition(paragraphs: Sequence[Sequence[str]], n: int) -> float:
    """The mean over videos; 0 where there are none."""
    return sum(repetition(sentences, n) for sentences in paragraphs) / len(paragraphs) if paragraphs else 0.0


def _words(sentence: str) -> list[str]:
    sentence = sentence.removesuffix(".").rstrip().replace(",", " ")
    return re.sub(" +", " ", sentence).split(" ")
