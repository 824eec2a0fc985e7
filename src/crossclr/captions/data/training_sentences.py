"""Training sentences as numbers; if a clip has many captions, each epoch samples different ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crossclr.captions.data.caption_set import CaptionSet, make_batcher
from crossclr.captions.data.vocabulary import BOS, EOS, PAD, Vocabulary, tokenise


@dataclass(frozen=True)
class TrainingBatch:
    """Clips of some videos, time by time, with a sentence each."""

    features: Tensor  # (sentences, longest, dim) padded with zeros
    rows: Tensor  # (sentences,) rows of each
    words: Tensor  # (sentences, length) [BOS] words [EOS], padded; no longer than the longest sentence here
    lengths: Tensor  # (sentences,) positions that count
    active: tuple[int, ...]  # how many videos have a first, second, ... sentence

    def targets(self) -> tuple[Tensor, Tensor]:
        """The positions with a next word to predict (sentences, length - 1), and these words, flat."""
        following = self.words[:, 1:]
        has_target = following != PAD
        return has_target, following[has_target]


class TrainingSentences:
    """The training videos with their sentences; each clip has at least one.

    An epoch contains a video whose clips have several captions ``captions_per_clip`` times, each time with different
    captions as long as there are enough.
    """

    def __init__(
        self, data: CaptionSet, vocabulary: Vocabulary, max_words: int, max_clips: int, captions_per_clip: int = 1
    ) -> None:
        missing = next((clip for clip, texts in enumerate(data.texts) if not texts), None)
        if missing is not None:
            video = next(key for key, stop in zip(data.keys, data.starts[1:], strict=True) if missing < stop)
            raise ValueError(
                f"a clip of {video!r} has no sentence to train on; name files with sentences in data.captions"
            )
        self.data = data
        self._gather = make_batcher(data, max_clips)
        self._encoded = [
            [[BOS, *vocabulary.encode(tokenise(text)[:max_words]), EOS] for text in texts] for texts in data.texts
        ]
        several = any(len(texts) > 1 for texts in data.texts)
        self.draws = captions_per_clip if several else 1

    def batches_per_epoch(self, batch_size: int) -> int:
        """Steps of an epoch."""
        return -(-len(self.data.keys) * self.draws // batch_size)

    def batches(self, seed: int, epoch: int, batch_size: int, start: int = 0) -> Iterator[TrainingBatch]:
        """The batches of an epoch from ``start`` on; they depend on (seed, epoch) alone."""
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(self.data.keys) * self.draws)
        shuffled = [rng.permutation(len(texts)).tolist() if len(texts) > 1 else [0] for texts in self._encoded]
        for first in range(start * batch_size, len(order), batch_size):
            chosen = order[first : first + batch_size]
            # a video may occur twice in a batch with different captions, so identify it by its position in the batch
            yield self._batch([int(item) for item in chosen], shuffled)

    def _batch(self, items: Sequence[int], shuffled: Sequence[Sequence[int]]) -> TrainingBatch:
        ordered = sorted(items, key=lambda item: -self.data.counts[item // self.draws])
        batch = self._gather([item // self.draws for item in ordered])
        sentences = []
        position = 0
        for active in batch.active:
            for item, clip in zip(ordered, batch.clips[position : position + active], strict=False):
                picks = shuffled[clip]
                sentences.append(self._encoded[clip][picks[(item % self.draws) % len(picks)]])
            position += active
        lengths = torch.tensor([len(sentence) for sentence in sentences])
        words = torch.full((len(sentences), int(lengths.max())), PAD)
        inside = torch.arange(words.shape[1]) < lengths.unsqueeze(1)
        words[inside] = torch.tensor([word for sentence in sentences for word in sentence])
        return TrainingBatch(batch.features, batch.rows, words, lengths, batch.active)
