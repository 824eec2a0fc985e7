"""The input of the captioner: words and feature rows as positions of one sequence.

The captioner: a transformer whose layers carry a memory from sentence to sentence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.layers import EPSILON, Layer, LayerCache, Layout
from crossclr.captions.vocabulary import CLS, PAD, SEP, VID
from crossclr.models.packing import Dropout


def _sinusoids(length: int, dim: int) -> Tensor:
    """(length, dim) the usual table: sine on even, cosine on odd channels, wavelengths from 2π to 20000π."""
    channel = torch.arange(dim, dtype=torch.float64)
    rate = 10000.0 ** (-(channel - channel % 2) / dim)
    angle = torch.arange(length, dtype=torch.float64).unsqueeze(1) * rate
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()


def _inputs(width: int, dim: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(width, eps=EPSILON),
        Dropout(dropout),
        nn.Linear(width, dim),
        nn.ReLU(),
        nn.LayerNorm(dim, eps=EPSILON),
    )


class CaptionEmbedding(nn.Module):
    """[CLS] [VID] ... [SEP] with the feature rows on the [VID] positions, then [BOS] words [EOS].

    Every position is the sum of its word, its feature row (zeros if it has none), its part and its position. The text
    starts at the same position, however many feature rows there are.
    """

    def __init__(self, config: CaptionModelConfig, feature_dim: int, vocabulary_size: int, text_length: int) -> None:
        super().__init__()
        dim, dropout = config.dim, config.dropout
        self.feature_dim = feature_dim
        self.video_length = config.max_rows + 2
        self.words = nn.Embedding(vocabulary_size, config.word_dim, padding_idx=PAD)
        self.word_input = _inputs(config.word_dim, dim, dropout)
        self.feature_input = _inputs(feature_dim, dim, config.feature_dropout)
        self.parts = nn.Embedding(2, dim)
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.dropout = Dropout(dropout)
        self.positions: Tensor
        self.register_buffer("positions", _sinusoids(self.video_length + text_length, dim), persistent=False)

    def packed(self, features: Tensor, rows: Tensor, words: Tensor, lengths: Tensor) -> tuple[Tensor, Layout]:
        """Whole sentences without padding (rows, dim), and where the rows stand; arguments as for the captioner."""
        ids, valid = self._video_ids(features.shape[1], rows)
        position = torch.arange(words.shape[1], device=words.device)
        layout = Layout.of(valid, position < lengths.unsqueeze(1))
        has_row = valid[:, 2:]  # row i has its [SEP] at position i + 2 or later
        given = self.feature_input(features[has_row])  # only rows that are there
        in_text = torch.arange(layout.valid.shape[1], device=words.device) >= layout.video_length
        places = torch.where(in_text, position.new_tensor(self.video_length) - layout.video_length, 0)
        places = (places + torch.arange(len(in_text), device=words.device)).expand(layout.valid.shape)
        numbers = layout.pack(torch.cat([ids, words], dim=1))
        blank = self.blank()
        x = self.word_input(self.words(numbers)) + blank
        shown = layout.video_rows[(numbers[layout.video_rows] == VID).nonzero().squeeze(1)]
        x = x.index_add(0, shown, given - blank)
        parts = layout.pack(in_text.long().expand(layout.valid.shape))
        x = x + self.parts(parts) + self.positions[layout.pack(places)]
        return self.dropout(self.norm(x)), layout

    def video(self, features: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The video part alone, padded: (count, longest + 2, dim) and which positions are not padding."""
        ids, valid = self._video_ids(features.shape[1], rows)
        blank = self.blank()
        x = self.word_input(self.words(ids)) + blank
        has_row = valid[:, 2:].unsqueeze(2)
        x[:, 1:-1] = x[:, 1:-1] + torch.where(has_row, self.feature_input(features) - blank, 0.0)
        return self._finish(x, 0, 0), valid

    def text(self, ids: Tensor, start: int = 0, blank: Tensor | None = None) -> Tensor:
        """Words (count, length) from position ``start`` of the text part on, to (count, length, dim)."""
        x = self.word_input(self.words(ids)) + (self.blank() if blank is None else blank)
        return self._finish(x, self.video_length + start, 1)

    def _video_ids(self, longest: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[CLS] [VID] ... [SEP] for each clip (count, longest + 2), and which positions are not padding."""
        position = torch.arange(longest + 2, device=rows.device)
        last = rows.unsqueeze(1) + 1  # position of [SEP]
        ids = torch.where(position < last, VID, torch.where(position == last, SEP, PAD))
        ids[:, 0] = CLS
        return ids, position <= last

    def blank(self) -> Tensor:
        """Replaces the feature row of positions that have none: (1, dim)."""
        out: Tensor = self.feature_input(self.words.weight.new_zeros(1, self.feature_dim))
        return out

    def _finish(self, x: Tensor, start: int, part: int) -> Tensor:
        positions = self.positions[start : start + x.shape[1]]
        out: Tensor = self.dropout(self.norm(x + self.parts.weight[part] + positions))
        return out


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

    def select(self, indices: Tensor) -> Writing:
        """Some sentences, or some several times."""
        caches = [cache.select(indices) for cache in self.caches]
        return Writing(caches, self.valid.index_select(0, indices), self.rows, self.padded, self.blank, self.length)


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
        position = torch.arange(stop, device=lengths.device)
        valid = writing.valid[:, :stop] & (position < writing.rows + lengths.unsqueeze(1))
        memories = [
            layer.remember(cache.hidden[:, :stop], valid, cache.memory)  # type: ignore[operator]
            for layer, cache in zip(self.layers, writing.caches, strict=True)
        ]
        return memories if self.recurrent else None

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
