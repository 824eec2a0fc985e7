"""The captioner: a transformer whose layers carry a memory from sentence to sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.network.input_embedding import CaptionEmbedding
from crossclr.captions.network.layer import Layer, LayerCache
from crossclr.captions.network.memory import EPSILON

Memory = list[Tensor]  # (count, cells, dim) for each layer


@dataclass
class Writing:
    """Sentences that are being written."""

    caches: list[LayerCache]  # the cache of each layer
    valid: Tensor  # (count, length) positions that are not padding; the video part and all of the text part
    rows: int  # positions of the video part
    padded: bool  # whether any position of the video parts is padding
    blank: Tensor  # (1, dim) replaces the feature row in the text part
    length: int = 0  # positions of the text part so far

    def select(self, chosen: Tensor) -> Writing:
        """Some sentences, or some several times."""
        caches = [cache.select(chosen) for cache in self.caches]
        return Writing(caches, self.valid.index_select(0, chosen), self.rows, self.padded, self.blank, self.length)


class Captioner(nn.Module):
    """Writes one sentence for each clip, with a memory of the sentences before it.

    Args:
        config: sizes.
        feature_dim: channels of a feature row.
        vocabulary_size: words.
        recurrent: carry memory from sentence to sentence; without it, sentences are independent.

    Example:
        >>> config = CaptionModelConfig(dim=8, heads=2, word_dim=4)
        >>> model = Captioner(config, feature_dim=3, vocabulary_size=11)
        >>> features, rows, words = torch.randn(3, 1, 3), torch.ones(3, dtype=torch.long), torch.full((3, 5), 7)
        >>> model(features, rows, words, torch.tensor([5, 4, 5]), active=[2, 1]).shape  # two videos, one has two clips
        torch.Size([3, 5, 8])
    """

    def __init__(
        self, config: CaptionModelConfig, feature_dim: int, vocabulary_size: int, recurrent: bool = True
    ) -> None:
        super().__init__()
        self.feature_dim, self.recurrent = feature_dim, recurrent
        self.text_length = config.max_words + 2
        self.embedding = CaptionEmbedding(config, feature_dim, vocabulary_size, self.text_length)
        self.layers = nn.ModuleList(Layer(config, recurrent) for _ in range(config.layers))
        self.transform = nn.Sequential(
            nn.Linear(config.dim, config.dim), nn.GELU(), nn.LayerNorm(config.dim, eps=EPSILON)
        )
        self.to_words = nn.Linear(config.dim, vocabulary_size)
        self.apply(_initialise)

    def forward(self, features: Tensor, rows: Tensor, words: Tensor, lengths: Tensor, active: Sequence[int]) -> Tensor:
        """All sentences of a batch of videos at once.

        Sentences are ordered by time: the first sentences of all videos, then the second ones, and so on; videos with
        more sentences come first.

        Args:
            features: (sentences, longest, feature_dim) rows of each clip, padded with anything.
            rows: (sentences,) how many rows each clip has.
            words: (sentences, length) [BOS] words [EOS], padded.
            lengths: (sentences,) words of each sentence.
            active: videos that have a first, second, ... sentence.

        Returns:
            (sentences, length, dim) hidden rows of the text part, zeros on padding; `logits` turns them into words.
        """
        return self._run(features, rows, words, lengths, active)[0]

    def after(
        self, features: Tensor, rows: Tensor, words: Tensor, lengths: Tensor, memory: Memory | None = None
    ) -> tuple[Tensor, Memory | None]:
        """Single sentences (one for each video): hidden rows, and the memory after them (None without recurrence)."""
        return self._run(features, rows, words, lengths, [len(rows)], memory, remember=True)

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., dim) to (..., words)."""
        out: Tensor = self.to_words(self.transform(hidden))
        return out

    def begin(self, features: Tensor, rows: Tensor, memory: Memory | None = None) -> Writing:
        """Read the video part; then `write` word by word."""
        x, valid = self.embedding.video(features, rows)
        count, positions = valid.shape
        mask = None if bool(valid.all()) else valid
        caches = []
        for number, layer in enumerate(self.layers):
            before = None if memory is None else memory[number]
            x, cache = layer.begin(x, mask, positions + self.text_length, before)  # type: ignore[operator]
            caches.append(cache)
        text = valid.new_ones(count, self.text_length)
        return Writing(caches, torch.cat([valid, text], dim=1), positions, mask is not None, self.embedding.blank())

    def write(self, writing: Writing, words: Tensor) -> Tensor:
        """Add one word to each sentence (count,); returns the logits of the next words (count, words)."""
        if writing.length >= self.text_length:
            raise ValueError(f"a sentence has room for {self.text_length} positions (model.max_words)")
        position = writing.rows + writing.length
        x = self.embedding.text(words.unsqueeze(1), writing.length, writing.blank)
        seen = writing.valid[:, : position + 1] if writing.padded else None
        for layer, cache in zip(self.layers, writing.caches, strict=True):
            x = layer.step(x, cache, seen, position)  # type: ignore[operator]
        writing.length += 1
        return self.logits(x[:, 0])

    def remember(self, writing: Writing, lengths: Tensor) -> Memory | None:
        """The memory after the written sentences, of which the first ``lengths`` (count,) positions count."""
        stop = writing.rows + writing.length
        place = torch.arange(stop, device=lengths.device)
        valid = writing.valid[:, :stop] & (place < writing.rows + lengths.unsqueeze(1))
        found = [
            layer.remember(cache.hidden[:, :stop], valid, cache.memory)  # type: ignore[operator]
            for layer, cache in zip(self.layers, writing.caches, strict=True)
        ]
        return found if self.recurrent else None

    def _run(
        self,
        features: Tensor,
        rows: Tensor,
        words: Tensor,
        lengths: Tensor,
        active: Sequence[int],
        memory: Memory | None = None,
        remember: bool = False,
    ) -> tuple[Tensor, Memory | None]:
        if sum(active) != len(rows) or any(b > a for a, b in pairwise(active)):
            raise ValueError(f"{len(rows)} sentences are not ordered by time for {list(active)} videos")
        x, layout = self.embedding.packed(features, rows, words, lengths)
        after = []
        for number, layer in enumerate(self.layers):
            x, hidden, before = layer(x, layout, active, None if memory is None else memory[number])
            if remember and self.recurrent:
                after.append(layer.remember(layout.pad(hidden), layout.valid, before))  # type: ignore[operator]
        return layout.pad(x)[:, layout.video_length :], after or None


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight.data.normal_(0.0, 0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            module.bias.data.zero_()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx] = 0.0
