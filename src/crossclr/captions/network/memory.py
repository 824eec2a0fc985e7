"""The memory of a layer: its initial state, and its update by a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossclr.captions.network.attention import Heads
from crossclr.captions.network.unpadded import Layout
from crossclr.models.layers.dropout import Dropout

EPSILON = 1e-12  # of every layer norm here, as in BERT


class MemoryStart(nn.Module):
    """Memory before the first sentence: from the mean of the video positions, with a learned number for each cell.

    Args:
        dim: channels.
        cells: memory cells.
        dropout: on the result.
    """

    def __init__(self, dim: int, cells: int, dropout: float) -> None:
        super().__init__()
        self.cell_bias = nn.Parameter(torch.randn(cells, 1))  # makes the cells differ
        self.projection = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim, eps=EPSILON)
        self.dropout = Dropout(dropout)

    def forward(self, mean: Tensor) -> Tensor:
        """The mean of each video part (count, dim) to (count, cells, dim)."""
        out: Tensor = self.dropout(self.norm(self.projection(mean.unsqueeze(1) + self.cell_bias)))
        return out


class MemoryUpdate(nn.Module):
    """A gated update of the memory by a sentence.

    S = attention(M, H);  C = tanh(W_mc M + W_sc S + b);  Z = σ(W_mz M + W_sz S + b');  M' = (1 − Z) ⊙ C + Z ⊙ M

    Args:
        dim: channels.
        heads: attention heads.
        dropout: on the attention probabilities.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention = Heads(dim, heads, dropout)
        self.from_memory = nn.Linear(dim, 2 * dim, bias=False)  # candidate and gate side by side
        self.from_sentence = nn.Linear(dim, 2 * dim)

    def forward(self, memory: Tensor, key: Tensor, value: Tensor, valid: Tensor) -> Tensor:
        """Memory (count, cells, dim) after sentences with these keys and values; ``valid`` (count, length)."""
        seen = self.attention.mix(self.attention.query(memory), key, value, valid[:, None, None, :])
        candidate, gate = (self.from_memory(memory) + self.from_sentence(seen)).chunk(2, dim=-1)
        gate = gate.sigmoid()
        return torch.lerp(candidate.tanh(), memory, gate)

    def chain(self, first: Tensor, hidden: Tensor, layout: Layout, active: Sequence[int]) -> Tensor:
        """The memory before every sentence of a batch whose sentences are ordered by time.

        Only the cells pass from sentence to sentence; keys and values of all sentences are computed at once.

        Args:
            first: (videos, cells, dim) memory before the first sentences.
            hidden: (rows, dim) packed.
            layout: where the rows stand.
            active: how many videos have a first, a second, ... sentence; never rising. The videos of a time are the
                first ones of the time before.

        Returns:
            (sentences, cells, dim).
        """
        memories = [first]
        if len(active) > 1:
            key, value = self.attention.split(layout.pad(self.attention.project_key_value(hidden)))
            # split instead of slicing, because the gradient of a slice is as large as the whole tensor
            parts = (torch.split(tensor, list(active)) for tensor in (key, value, layout.valid))
            for keys, values, valid, count in zip(*parts, active[1:], strict=False):
                # the last sentence of a video changes no other one
                memories.append(self(memories[-1][:count], keys[:count], values[:count], valid[:count]))
        return torch.cat(memories)
