"""Words and their numbers."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from crossclr.storage.json_yaml import read_json_object
from crossclr.storage.read_error import reading

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]")
PAD, CLS, SEP, VID, BOS, EOS, UNK = range(7)


class Vocabulary:
    """The words that a captioner can read and write; the first seven are its marks.

    Args:
        words: all of them, in the order of their numbers.

    Example:
        >>> vocabulary = Vocabulary([*SPECIALS, "cut", "onion"])
        >>> vocabulary.encode(["cut", "leek"]), vocabulary.decode([7, 8, EOS, 7])
        ([7, 6], 'cut onion')
    """

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(f"a vocabulary begins with {' '.join(SPECIALS)}, found {' '.join(words[:7])}")
        self.words = tuple(words)
        self.numbers = {word: number for number, word in enumerate(self.words)}
        if len(self.numbers) != len(self.words):
            raise ValueError("a word occurs twice in the vocabulary")

    def __len__(self) -> int:
        return len(self.words)

    @classmethod
    def build(cls, sentences: Iterable[str], min_count: int = 3) -> Vocabulary:
        """The words that occur more than ``min_count`` times, the most frequent first.

        Args:
            sentences: training sentences.
            min_count: a word must occur more often than this; 3 for YouCook2 and 5 for ActivityNet in MART.
        """
        counts = Counter(word for sentence in sentences for word in tokenise(sentence))
        kept = [word for word, count in counts.items() if count > min_count]
        return cls([*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read ``{word: number}`` (MART's ``mart_word2idx.json``)."""
        with reading(path, "vocabulary {word: number}"):
            numbers = read_json_object(Path(path))
            words = sorted(numbers, key=lambda word: numbers[word])
            if [numbers[word] for word in words] != list(range(len(words))):
                raise ValueError("the numbers must run from 0 without a gap")
            return cls(words)

    def to_json(self) -> str:
        """``{word: number}``, which ``load`` reads."""
        return json.dumps(self.numbers, indent=0, ensure_ascii=False)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words; [UNK] for unknown words."""
        return [self.numbers.get(word, UNK) for word in words]

    def decode(self, numbers: Iterable[int]) -> str:
        """The text up to the first [EOS], without marks."""
        words = []
        for number in numbers:
            if number == EOS:
                break
            if number >= len(SPECIALS):
                words.append(self.words[number])
        return " ".join(words)


def tokenise(sentence: str) -> list[str]:
    """Lower-case words of a sentence by the rules of the Penn Treebank.

    Example:
        >>> tokenise("Don't cut the onion, yet.")
        ['do', "n't", 'cut', 'the', 'onion', ',', 'yet', '.']
    """
    return list(_tokeniser().tokenize(sentence.lower()))


@cache
def _tokeniser() -> Any:
    try:
        from nltk.tokenize.destructive import NLTKWordTokenizer
    except ImportError as error:
        raise ValueError(f"reading sentences needs nltk ({error}): pip install 'crossclr[captions]'") from error
    return NLTKWordTokenizer()
