"""The input of the captioner: words and feature rows as positions of one sequence."""

import torch
from torch import Tensor, nn

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.data.vocabulary import CLS, PAD, SEP, VID
from crossclr.captions.network.memory import EPSILON
from crossclr.captions.network.unpadded import Layout
from crossclr.models.layers.dropout import Dropout


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
        place = torch.arange(words.shape[1], device=words.device)
        layout = Layout.of(valid, place < lengths.unsqueeze(1))
        has_row = valid[:, 2:]  # row i has its [SEP] at position i + 2 or later
        given = self.feature_input(features[has_row])  # only rows that are there
        in_text = torch.arange(layout.valid.shape[1], device=words.device) >= layout.video_length
        places = torch.where(in_text, place.new_tensor(self.video_length) - layout.video_length, 0)
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
        place = torch.arange(longest + 2, device=rows.device)
        last = rows.unsqueeze(1) + 1  # position of [SEP]
        ids = torch.where(place < last, VID, torch.where(place == last, SEP, PAD))
        ids[:, 0] = CLS
        return ids, place <= last

    def blank(self) -> Tensor:
        """Replaces the feature row of positions that have none: (1, dim)."""
        out: Tensor = self.feature_input(self.words.weight.new_zeros(1, self.feature_dim))
        return out

    def _finish(self, x: Tensor, start: int, part: int) -> Tensor:
        positions = self.positions[start : start + x.shape[1]]
        out: Tensor = self.dropout(self.norm(x + self.parts.weight[part] + positions))
        return out
