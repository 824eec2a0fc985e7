"""Initial word vectors from GloVe's text files, or from npz files made of them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from crossclr.captions.data.vocabulary import Vocabulary
from crossclr.storage.read_error import reading

SPREAD = 0.4  # standard deviation of vectors for words that are not in the file, as in MART


def read_word_vectors(
    path: str | os.PathLike[str], vocabulary: Vocabulary, dim: int, generator: torch.Generator | None = None
) -> tuple[Tensor, int]:
    """A vector for each word of the vocabulary.

    Args:
        path: GloVe's text format (a word and its numbers on each line) or an ``.npz`` with ``words`` and ``vec``.
        vocabulary: the words.
        dim: numbers of each vector.
        generator: samples vectors for words that are not in the file.

    Returns:
        (words, dim) and how many words the file had.

    Raises:
        ValueError: the file's vectors have another length, or it has none of the words.
    """
    path = Path(path)
    vectors = torch.empty(len(vocabulary), dim).normal_(0.0, SPREAD, generator=generator)
    found = _from_npz(path, vocabulary, dim) if path.suffix == ".npz" else _from_text(path, vocabulary, dim)
    if not found:
        raise ValueError(f"{path} has none of the {len(vocabulary)} words of the vocabulary")
    for number, vector in found.items():
        vectors[number] = torch.from_numpy(vector)
    return vectors, len(found)


def _from_npz(path: Path, vocabulary: Vocabulary, dim: int) -> dict[int, np.ndarray]:
    with reading(path, ".npz"), np.load(path, allow_pickle=False) as file:
        if not {"words", "vec"} <= set(file.files):
            raise ValueError(f"{path} must hold the arrays words and vec, but holds {', '.join(file.files)}")
        words, values = file["words"].tolist(), file["vec"].astype(np.float32)
    if values.ndim != 2 or len(words) != len(values) or values.shape[1] != dim:
        raise ValueError(f"{path}: {len(words)} words with vectors of shape {values.shape}; {dim} channels are needed")
    return {vocabulary.numbers[w]: values[row] for row, w in enumerate(words) if w in vocabulary.numbers}


def _from_text(path: Path, vocabulary: Vocabulary, dim: int) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            word, _, numbers = line.rstrip().partition(" ")
            if word not in vocabulary.numbers:
                continue
            vector = np.array(numbers.split(), dtype=np.float32)
            if len(vector) != dim:
                raise ValueError(f"{path}, line {number}: {word!r} has {len(vector)} numbers, {dim} are needed")
            found[vocabulary.numbers[word]] = vector
    return found
