"""Sentences without padding: layers work on valid positions only, and only attention uses a padded rectangle.

Attention of the captioner: padded, with keys that can be cached.

The memory of a layer: its initial state, and its update by a sentence.

One layer of the captioner: self-attention, memory, attention over memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.models.packing import Dropout


@dataclass(frozen=True)
class Layout:
    """The positions of the rows of a packed batch."""

    valid: Tensor  # (sentences, length) positions that are not padding; the video part, then the text part
    index: Tensor  # (rows,) place of each packed row among all sentences · length positions
    allowed: Tensor  # (sentences, 1, length, length) which position may see which
    video_rows: Tensor  # packed rows of the video part
    video_owner: Tensor  # the sentence of each of them
    video_length: int  # positions of the video part

    @classmethod
    def of(cls, video: Tensor, text: Tensor) -> Layout:
        """From the valid positions (sentences, positions) of the video part and of the text part."""
        rows = video.shape[1]
        valid = torch.cat([video, text], dim=1)
        position = torch.arange(valid.shape[1], device=valid.device)
        # every position sees the video part; words also see themselves and earlier words
        order = (position < rows) | ((position <= position.unsqueeze(1)) & (position.unsqueeze(1) >= rows))
        index = valid.flatten().nonzero().squeeze(1)
        video_rows = (index % valid.shape[1] < rows).nonzero().squeeze(1)
        owner = index[video_rows] // valid.shape[1]
        return cls(valid, index, valid[:, None, None, :] & order, video_rows, owner, rows)

    def pack(self, x: Tensor) -> Tensor:
        """(sentences, length, ...) to (rows, ...)."""
        return x.flatten(0, 1).index_select(0, self.index)

    def pad(self, x: Tensor) -> Tensor:
        """(rows, channels) to (sentences, length, channels), zeros elsewhere."""
        sentences, length = self.valid.shape
        flat = x.new_zeros(sentences * length, x.shape[1]).index_copy(0, self.index, x)
        return flat.view(sentences, length, -1)

    def video_mean(self, x: Tensor) -> Tensor:
        """The mean of the video part of each sentence: (rows, channels) to (sentences, channels)."""
        sums = x.new_zeros(len(self.valid), x.shape[1]).index_add(0, self.video_owner, x[self.video_rows])
        counts = self.valid[:, : self.video_length].sum(1, keepdim=True)
        return sums / counts


ALL, QUERY, KEY_VALUE = slice(0, 3), slice(0, 1), slice(1, 3)  # parts of the projection


class Heads(nn.Module):
    """Multi-head attention without an output projection; query, key and value are one matrix, in this order."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.dim, self.heads = dim, heads
        self.projection = nn.Linear(dim, 3 * dim)
        self.dropout = Dropout(dropout)

    def project(self, x: Tensor, parts: slice = ALL) -> Tensor:
        """(..., dim) to the chosen parts, next to each other: (..., parts · dim)."""
        rows = slice(parts.start * self.dim, parts.stop * self.dim)
        return functional.linear(x, self.projection.weight[rows], self.projection.bias[rows])

    def split(self, projected: Tensor) -> tuple[Tensor, ...]:
        """(count, length, n · dim) to n parts (count, heads, length, dim / heads)."""
        count, length = projected.shape[:2]
        parts = torch.split(projected, self.dim, dim=-1)
        return tuple(part.view(count, length, self.heads, -1).transpose(1, 2) for part in parts)

    def parts_of(self, x: Tensor, parts: slice = ALL) -> tuple[Tensor, ...]:
        """Query, key and value of (count, length, dim), or some of them."""
        return self.split(self.project(x, parts))

    def mix(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """Attention itself: (count, queries, dim); ``allowed`` fits (count, heads, queries, length)."""
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if allowed is not None:
            scores = scores.masked_fill(~allowed, -math.inf)
        mixed: Tensor = self.dropout(scores.softmax(-1)) @ value
        return mixed.transpose(1, 2).flatten(2)


EPSILON = 1e-12  # of every layer norm here, as in BERT


class MemoryStart(nn.Module):
    """Memory before the first sentence: from the mean of the video positions, with a learned number for each cell."""

    def __init__(self, config: CaptionModelConfig) -> None:
        super().__init__()
        self.cell_bias = nn.Parameter(torch.randn(config.memory_cells, 1))  # makes the cells differ
        self.projection = nn.Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, eps=EPSILON)
        self.dropout = Dropout(config.dropout)

    def forward(self, mean: Tensor) -> Tensor:
        """The mean of each video part (count, dim) to (count, cells, dim)."""
        out: Tensor = self.dropout(self.norm(self.projection(mean.unsqueeze(1) + self.cell_bias)))
        return out


class MemoryUpdate(nn.Module):
    """A gated update of the memory by a sentence.

    S = attention(M, H);  C = tanh(W_mc M + W_sc S + b);  Z = σ(W_mz M + W_sz S + b');  M' = (1 − Z) ⊙ C + Z ⊙ M
    """

    def __init__(self, config: CaptionModelConfig) -> None:
        super().__init__()
        self.attention = Heads(config.dim, config.heads, config.dropout)
        self.from_memory = nn.Linear(config.dim, 2 * config.dim, bias=False)  # candidate and gate next to each other
        self.from_sentence = nn.Linear(config.dim, 2 * config.dim)

    def forward(self, memory: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """Memory (count, cells, dim) after sentences with these keys and values; ``valid`` (count, length)."""
        (query,) = self.attention.parts_of(memory, QUERY)
        seen = self.attention.mix(query, key, value, valid[:, None, None, :])
        candidate, gate = (self.from_memory(memory) + self.from_sentence(seen)).chunk(2, dim=-1)
        return torch.lerp(candidate.tanh(), memory, gate.sigmoid())

    def chain(self, first: Tensor, hidden: Tensor, layout: Layout, active: Sequence[int]) -> Tensor:
        """The memory before every sentence: (sentences, cells, dim).

        ``first`` (videos, cells, dim) is the memory before the first sentences and ``hidden`` (rows, dim) is packed.
        ``active`` counts the videos that have a first, a second, ... sentence and never rises; the videos of a time
        are the first ones of the time before. Keys and values of all sentences are computed at once, so only the
        cells pass from sentence to sentence.
        """
        memories = [first]
        if len(active) > 1:
            key, value = self.attention.split(layout.pad(self.attention.project(hidden, KEY_VALUE)))
            # split instead of slicing, because the gradient of a slice is as large as the whole tensor
            parts = (torch.split(tensor, list(active)) for tensor in (key, value, layout.valid))
            for keys, values, valid, count in zip(*parts, active[1:], strict=False):
                # the last sentence of a video changes no other one
                memories.append(self(memories[-1][:count], keys[:count], values[:count], valid[:count]))
        return torch.cat(memories)


@dataclass
class LayerCache:
    """The cache of a layer while a sentence is written, allocated for all positions at the start."""

    key: Tensor  # (count, heads, length, dim / heads) of self-attention; likewise ``value``
    value: Tensor
    # (count, heads, cells + length, dim / heads) of the attention over memory; likewise ``memory_value``
    memory_key: Tensor
    memory_value: Tensor
    hidden: Tensor  # (count, length, dim) input of the memory
    memory: Tensor  # (count, cells, dim) memory before this sentence

    def select(self, rows: Tensor) -> LayerCache:
        """Some sentences, or some several times."""
        return LayerCache(*(getattr(self, name).index_select(0, rows) for name in self.__dataclass_fields__))


class Layer(nn.Module):
    """A = norm(x + attention(x));  H = gelu(W A);  output = norm(A + W'' (W' attention(H, [M; H]))).

    Without ``recurrent``, the memory of each sentence comes from its own video positions.
    """

    def __init__(self, config: CaptionModelConfig, recurrent: bool = True) -> None:
        super().__init__()
        dim, heads, dropout = config.dim, config.heads, config.dropout
        self.cells = config.memory_cells
        self.attention = Heads(dim, heads, dropout)
        self.attention_output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.hidden = nn.Linear(dim, dim)
        self.memory_start = MemoryStart(config)
        self.memory_update = MemoryUpdate(config) if recurrent else None
        self.memory_attention = Heads(dim, heads, dropout)
        self.memory_projection = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.output_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Tensor, layout: Layout, active: Sequence[int], memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All sentences of a batch at once; ``x`` (rows, dim) is packed and ordered as for `MemoryUpdate.chain`.

        Returns (rows, dim), H of the same shape, and the memory before each sentence (sentences, cells, dim).
        """
        query, key, value = self.attention.split(layout.pad(self.attention.project(x)))
        mixed = layout.pack(self.attention.mix(query, key, value, layout.allowed))
        attended, hidden = self._first_half(x, mixed)
        before = self._memories(hidden, layout, active, memory)
        query, key, value = self.memory_attention.split(layout.pad(self.memory_attention.project(hidden)))
        memory_key, memory_value = self.memory_attention.parts_of(before, KEY_VALUE)
        key, value = torch.cat([memory_key, key], dim=2), torch.cat([memory_value, value], dim=2)
        allowed = functional.pad(layout.allowed, (self.cells, 0), value=True)  # every position sees the memory
        mixed = layout.pack(self.memory_attention.mix(query, key, value, allowed))
        return self._second_half(attended, mixed), hidden, before

    def begin(self, x: Tensor, valid: Tensor | None, room: int, memory: Tensor | None) -> tuple[Tensor, LayerCache]:
        """The video part (count, rows, dim), with room for ``room`` positions in all; ``valid`` None: no padding."""
        query, key, value = self.attention.parts_of(x)
        attended, hidden = self._first_half(x, self.attention.mix(query, key, value, _columns(valid)))
        if memory is None:
            weights = torch.ones_like(x[:, :, 0]) if valid is None else valid.to(x.dtype)
            memory = self.memory_start((hidden * weights.unsqueeze(2)).sum(1) / weights.sum(1, keepdim=True))
        memory_key, memory_value = self.memory_attention.parts_of(torch.cat([memory, hidden], dim=1), KEY_VALUE)
        (query,) = self.memory_attention.parts_of(hidden, QUERY)
        mixed = self.memory_attention.mix(query, memory_key, memory_value, _columns(valid, self.cells))
        free = room - x.shape[1]
        cache = LayerCache(
            _with_room(key, free),
            _with_room(value, free),
            _with_room(memory_key, free),
            _with_room(memory_value, free),
            _with_room(hidden, free),
            memory,
        )
        return self._second_half(attended, mixed), cache

    def step(self, x: Tensor, cache: LayerCache, valid: Tensor | None, position: int) -> Tensor:
        """One more position (count, 1, dim); it sees the ``valid`` (count, position + 1) positions, None: all."""
        query, key, value = self.attention.parts_of(x)
        stop, cell = position + 1, self.cells + position
        cache.key[:, :, position], cache.value[:, :, position] = key[:, :, 0], value[:, :, 0]
        mixed = self.attention.mix(query, cache.key[:, :, :stop], cache.value[:, :, :stop], _columns(valid))
        attended, hidden = self._first_half(x, mixed)
        cache.hidden[:, position] = hidden[:, 0]
        query, key, value = self.memory_attention.parts_of(hidden)
        cache.memory_key[:, :, cell], cache.memory_value[:, :, cell] = key[:, :, 0], value[:, :, 0]
        keys, values = cache.memory_key[:, :, : cell + 1], cache.memory_value[:, :, : cell + 1]
        mixed = self.memory_attention.mix(query, keys, values, _columns(valid, self.cells))
        return self._second_half(attended, mixed)

    def remember(self, hidden: Tensor, valid: Tensor, memory: Tensor) -> Tensor | None:
        """The memory after a sentence (count, length, dim), or None without recurrence."""
        if self.memory_update is None:
            return None
        key, value = self.memory_update.attention.parts_of(hidden, KEY_VALUE)
        out: Tensor = self.memory_update(memory, key, value, valid)
        return out

    def _memories(self, hidden: Tensor, layout: Layout, active: Sequence[int], memory: Tensor | None) -> Tensor:
        if self.memory_update is None:
            out: Tensor = self.memory_start(layout.video_mean(hidden))
            return out
        if memory is None:
            memory = self.memory_start(layout.video_mean(hidden)[: active[0]])
        return self.memory_update.chain(memory, hidden, layout, active)

    def _first_half(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        attended = self.attention_norm(x + self.dropout(self.attention_output(mixed)))
        return attended, functional.gelu(self.hidden(attended))

    def _second_half(self, attended: Tensor, mixed: Tensor) -> Tensor:
        out: Tensor = self.output_norm(attended + self.dropout(self.output(self.memory_projection(mixed))))
        return out


def _columns(valid: Tensor | None, memory_cells: int = 0) -> Tensor | None:
    """A mask of keys for all heads and queries; memory is always visible."""
    if valid is None:
        return None
    return functional.pad(valid, (memory_cells, 0), value=True)[:, None, None, :]


def _with_room(x: Tensor, free: int) -> Tensor:
    """A copy (..., length, dim) with ``free`` more positions, which are not initialised."""
    *counts, length, dim = x.shape
    whole = x.new_empty(*counts, length + free, dim)
    whole[..., :length, :] = x
    return whole
