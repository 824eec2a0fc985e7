"""The words of a captioner: their numbers and their initial vectors."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.errors import ReadError
from crossclr.extras import requires_extra
from crossclr.storage.reading import read_json_object, reading

SPECIALS = ("[PAD]", "[CLS]", "[SEP]", "[VID]", "[BOS]", "[EOS]", "[UNK]")
PAD, CLS, SEP, VID, BOS, EOS, UNK = range(7)
SPREAD = 0.4  # standard deviation of vectors for words that are not in the file, as in MART


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
        """The words that occur more than ``min_count`` times (MART: 3 for YouCook2), the most frequent first."""
        counts = Counter(word for sentence in sentences for word in tokenise(sentence))
        frequent = [word for word, count in counts.items() if count > min_count]
        return cls([*SPECIALS, *sorted(frequent, key=lambda word: (-counts[word], word))])

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read ``{word: number}`` (MART's ``mart_word2idx.json``)."""
        numbers = read_json_object(Path(path))
        try:
            if set(numbers.values()) != set(range(len(numbers))):
                raise ValueError("the numbers must run from 0 without a gap")
            return cls(sorted(numbers, key=lambda word: numbers[word]))
        except (TypeError, ValueError) as error:
            raise ReadError(
                f"{path}: cannot be read as a vocabulary {{word: number}} ({error}); copy or write it again"
            ) from error

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
    with requires_extra("captions", "Reading sentences"):
        from nltk.tokenize.destructive import NLTKWordTokenizer
    return NLTKWordTokenizer()


def read_word_vectors(
    path: str | os.PathLike[str], vocabulary: Vocabulary, dim: int, generator: torch.Generator | None = None
) -> tuple[Tensor, int]:
    """A vector for each word of the vocabulary (words, dim), and how many words the file has.

    The file has GloVe's text format (a word and its numbers on each line) or is an ``.npz`` with ``words`` and ``vec``.
    """
    path = Path(path)
    vectors = torch.empty(len(vocabulary), dim).normal_(0.0, SPREAD, generator=generator)
    known = _from_npz(path, vocabulary, dim) if path.suffix == ".npz" else _from_text(path, vocabulary, dim)
    if not known:
        raise ValueError(f"{path} has none of the {len(vocabulary)} words of the vocabulary")
    for number, vector in known.items():
        vectors[number] = torch.from_numpy(vector)
    return vectors, len(known)


def _from_npz(path: Path, vocabulary: Vocabulary, dim: int) -> dict[int, np.ndarray]:
    with reading(path, ".npz"), np.load(path, allow_pickle=False) as file:
        if not {"words", "vec"} <= set(file.files):
            raise ValueError(f"{path} must hold the arrays words and vec, but holds {', '.join(file.files)}")
        words, values = file["words"].tolist(), file["vec"].astype(np.float32)
    if values.ndim != 2 or len(words) != len(values) or values.shape[1] != dim:
        raise ValueError(f"{path}: {len(words)} words with vectors of shape {values.shape}; {dim} channels are needed")
    return {vocabulary.numbers[w]: values[row] for row, w in enumerate(words) if w in vocabulary.numbers}


def _from_text(path: Path, vocabulary: Vocabulary, dim: int) -> dict[int, np.ndarray]:
    vectors: dict[int, np.ndarray] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, _, numbers = line.rstrip().partition(" ")
            if word not in vocabulary.numbers:
                continue
            vector = np.array(numbers.split(), dtype=np.float32)
            if len(vector) != dim:
                raise ValueError(f"{path}, line {number}: {word!r} has {len(vector)} numbers, {dim} are needed")
            vectors[vocabulary.numbers[word]] = vector
    return vectors
