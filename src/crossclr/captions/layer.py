"""One layer of the captioner: self-attention, memory, attention over memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from crossclr.captions.attention import Heads
from crossclr.captions.memory import EPSILON, MemoryStart, MemoryUpdate
from crossclr.models.dropout import Dropout


@dataclass
class LayerCache:
    """What a layer keeps while a sentence is written; room for every position is there from the start.

    Args:
        key: (count, heads, length, dim / heads) of self-attention; likewise ``value``.
        memory_key: (count, heads, cells + length, dim / heads) of the attention over memory; likewise ``memory_value``.
        hidden: (count, length, dim) what the memory will read.
        memory: (count, cells, dim) memory before this sentence.
    """

    key: Tensor
    value: Tensor
    memory_key: Tensor
    memory_value: Tensor
    hidden: Tensor
    memory: Tensor

    def select(self, rows: Tensor) -> LayerCache:
        """Some sentences, or some several times."""
        return LayerCache(*(getattr(self, name).index_select(0, rows) for name in self.__dataclass_fields__))


class Layer(nn.Module):
    """A = norm(x + attention(x));  H = gelu(W A);  output = norm(A + W'' (W' attention(H, [M; H]))).

    Args:
        dim: channels.
        heads: attention heads.
        cells: memory cells.
        dropout: everywhere.
        recurrent: with an update of the memory; without one each sentence begins from its own video positions.
    """

    def __init__(self, dim: int, heads: int, cells: int, dropout: float, recurrent: bool = True) -> None:
        super().__init__()
        self.cells = cells
        self.attention = Heads(dim, heads, dropout)
        self.attention_output = nn.Linear(dim, dim)
        self.attention_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.hidden = nn.Linear(dim, dim)
        self.memory_start = MemoryStart(dim, cells, dropout)
        self.memory_update = MemoryUpdate(dim, heads, dropout) if recurrent else None
        self.memory_attention = Heads(dim, heads, dropout)
        self.memory_projection = nn.Linear(dim, dim)
        self.output = nn.Linear(dim, dim)
        self.output_norm = nn.LayerNorm(dim, eps=EPSILON)
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        allowed: Tensor,
        valid: Tensor,
        rows: int,
        active: Sequence[int],
        memory: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """All sentences of a batch at once.

        Args:
            x: (sentences, length, dim), time by time as `MemoryUpdate.chain` wants them.
            allowed: (sentences, 1, length, length) which position may see which.
            valid: (sentences, length) False on padding.
            rows: how many of the positions belong to the video part.
            active: videos of each time.
            memory: (videos, cells, dim) before the first sentences; None: from the video part.

        Returns:
            (sentences, length, dim), H of the same shape, and (sentences, cells, dim) memory before each sentence.
        """
        attended, hidden = self._first_half(x, self.attention.mix(*self.attention.all(x), allowed))
        before = self._memories(hidden, valid, rows, active, memory)
        query = self.memory_attention.query(hidden)
        key, value = self.memory_attention.key_value(torch.cat([before, hidden], dim=1))
        allowed = functional.pad(allowed, (self.cells, 0), value=True)  # everyone sees the memory
        return self._second_half(attended, self.memory_attention.mix(query, key, value, allowed)), hidden, before

    def begin(self, x: Tensor, valid: Tensor, room: int, memory: Tensor | None) -> tuple[Tensor, LayerCache]:
        """The video part (count, rows, dim), with room for ``room`` positions in all."""
        count, rows, dim = x.shape
        query, key, value = self.attention.all(x)
        allowed = valid[:, None, None, :]
        attended, hidden = self._first_half(x, self.attention.mix(query, key, value, allowed))
        memory = self.memory_start(hidden, valid) if memory is None else memory
        memory_key, memory_value = self.memory_attention.key_value(torch.cat([memory, hidden], dim=1))
        seen = functional.pad(allowed, (self.cells, 0), value=True)
        mixed = self.memory_attention.mix(self.memory_attention.query(hidden), memory_key, memory_value, seen)
        heads, cells = self.attention.heads, self.cells
        cache = LayerCache(
            key=x.new_empty(count, heads, room, dim // heads),
            value=x.new_empty(count, heads, room, dim // heads),
            memory_key=x.new_empty(count, heads, cells + room, dim // heads),
            memory_value=x.new_empty(count, heads, cells + room, dim // heads),
            hidden=x.new_empty(count, room, dim),
            memory=memory,
        )
        cache.key[:, :, :rows], cache.value[:, :, :rows] = key, value
        cache.memory_key[:, :, : cells + rows], cache.memory_value[:, :, : cells + rows] = memory_key, memory_value
        cache.hidden[:, :rows] = hidden
        return self._second_half(attended, mixed), cache

    def step(self, x: Tensor, cache: LayerCache, valid: Tensor, position: int) -> Tensor:
        """One more position (count, 1, dim); ``valid`` (count, position + 1) tells what it sees."""
        query, key, value = self.attention.all(x)
        stop, cells = position + 1, self.cells
        cache.key[:, :, position], cache.value[:, :, position] = key[:, :, 0], value[:, :, 0]
        allowed = valid[:, None, None, :]
        mixed = self.attention.mix(query, cache.key[:, :, :stop], cache.value[:, :, :stop], allowed)
        attended, hidden = self._first_half(x, mixed)
        cache.hidden[:, position] = hidden[:, 0]
        query, key, value = self.memory_attention.all(hidden)
        place = cells + position
        cache.memory_key[:, :, place], cache.memory_value[:, :, place] = key[:, :, 0], value[:, :, 0]
        seen = functional.pad(allowed, (cells, 0), value=True)
        keys, values = cache.memory_key[:, :, : place + 1], cache.memory_value[:, :, : place + 1]
        return self._second_half(attended, self.memory_attention.mix(query, keys, values, seen))

    def remember(self, hidden: Tensor, valid: Tensor, memory: Tensor) -> Tensor | None:
        """The memory after a sentence (count, length, dim), or None without recurrence."""
        if self.memory_update is None:
            return None
        key, value = self.memory_update.attention.key_value(hidden)
        out: Tensor = self.memory_update(memory, key, value, valid)
        return out

    def _memories(
        self, hidden: Tensor, valid: Tensor, rows: int, active: Sequence[int], memory: Tensor | None
    ) -> Tensor:
        if self.memory_update is None:
            out: Tensor = self.memory_start(hidden[:, :rows], valid[:, :rows])
            return out
        if memory is None:
            memory = self.memory_start(hidden[: active[0], :rows], valid[: active[0], :rows])
        return self.memory_update.chain(memory, hidden, valid, active)

    def _first_half(self, x: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        attended = self.attention_norm(x + self.dropout(self.attention_output(mixed)))
        return attended, functional.gelu(self.hidden(attended))

    def _second_half(self, attended: Tensor, mixed: Tensor) -> Tensor:
        out: Tensor = self.output_norm(attended + self.dropout(self.output(self.memory_projection(mixed))))
        return out
