"""The memory of a layer: its initial state, and its update by a sentence."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from crossclr.captions.caption_config import CaptionModelConfig
from crossclr.captions.network.attention import KEY_VALUE, QUERY, Heads
from crossclr.captions.network.unpadded import Layout
from crossclr.models.layers.dropout import Dropout

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
