"""One layer of the captioner: self-attention, memory, attention over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.network.attention import KEY_VALUE, QUERY, Heads
from crossclr.captions.network.memory import EPSILON, MemoryStart, MemoryUpdate
from crossclr.captions.network.unpadded import Layout
from crossclr.models.layers.dropout import Dropout


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
        stop, place = position + 1, self.cells + position
        cache.key[:, :, position], cache.value[:, :, position] = key[:, :, 0], value[:, :, 0]
        mixed = self.attention.mix(query, cache.key[:, :, :stop], cache.value[:, :, :stop], _columns(valid))
        attended, hidden = self._first_half(x, mixed)
        cache.hidden[:, position] = hidden[:, 0]
        query, key, value = self.memory_attention.parts_of(hidden)
        cache.memory_key[:, :, place], cache.memory_value[:, :, place] = key[:, :, 0], value[:, :, 0]
        keys, values = cache.memory_key[:, :, : place + 1], cache.memory_value[:, :, : place + 1]
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
