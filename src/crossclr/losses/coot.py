"""COOT's losses: max-margin, and its objective of alignment and clusters on three levels with cycle consistency."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from crossclr.losses.base import PairwiseLoss
from crossclr.losses.names import PairsOption, check_number
from crossclr.losses.tiles import tiled_loss
from crossclr.models.similarity import paired_similarities, similarity_matrix

LEVELS = {
    "high": "video",
    "low": "clip",
    "context": "context",
}
"""The weight of each level of a model's outputs."""


def max_margin(
    x: Tensor,
    y: Tensor,
    margin: float,
    ids: Tensor | None = None,
    chunk_size: int | None = None,
    group: Any = None,
    experts: int = 1,
) -> Tensor:
    """Σ_{i≠j} [margin + s_ij - s_ii]₊ + [margin + s_ij - s_jj]₊, over N², of unit rows (N, D).

    Rows with equal ids are not negatives of each other.
    """
    labels = torch.arange(len(x), device=x.device) if ids is None else ids

    def tile(here: slice, x_here: Tensor, y_here: Tensor, x: Tensor, y: Tensor) -> Tensor:
        similarity = similarity_matrix(x_here, y, experts)  # (rows, N)
        positive = paired_similarities(x, y, experts)  # (N,)
        cost = (margin + similarity - paired_similarities(x_here, y_here, experts).unsqueeze(1)).clamp(min=0)
        cost = cost + (margin + similarity - positive).clamp(min=0)
        return cost.masked_fill(labels[here].unsqueeze(1) == labels, 0).sum() / len(x) ** 2

    return tiled_loss(tile, (x, y), (), chunk_size, group)[0]


class MaxMargin(PairwiseLoss):
    """Hinge on every negative in both directions, divided by N².

    Args:
        margin: how far the similarity of a positive must exceed that of every negative.
        chunk_size: rows compared at a time; limits memory and does not change the result.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    References:
        Ging et al., COOT: Cooperative Hierarchical Transformer for Video-Text Representation Learning, NeurIPS 2020.

    Example:
        >>> z = torch.eye(4)
        >>> MaxMargin()(z, z).item()
        0.0
    """

    def __init__(
        self,
        margin: float = 0.2,
        chunk_size: int | None = None,
        pairs: PairsOption = "all",
    ) -> None:
        super().__init__(pairs, chunk_size)
        self.margin = check_number("margin", margin, 0)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """Hinge of both directions; see `max_margin`."""
        return max_margin(x, y, self.margin, ids, self.chunk_size, group, self.experts)


class Coot(PairwiseLoss):
    """The sum of COOT's losses, which CrossCLR replaces.

    Each level adds the max-margin loss between the modalities. Its "cluster" term adds the mean of the same loss within
    each modality. Cycle consistency ties the order of clips to the order of sentences. Training calls `all_levels` with
    all embeddings of a two-level model. Calling the loss itself computes one level, with the weights of clips and
    sentences and without cycle consistency.

    Args:
        margin: margin of every max-margin term.
        high: weight of video against paragraph.
        low: weight of clip against sentence.
        context: weight of whole-video against whole-paragraph context.
        cluster_high: weight of the cluster term on videos and paragraphs.
        cluster_low: weight of the cluster term on clips and sentences.
        cluster_context: weight of the cluster term on the contexts.
        cycle: weight of cycle consistency.
        pairs: which pairs of modalities to compare; see :class:`Loss`.

    References:
        Ging et al., COOT: Cooperative Hierarchical Transformer for Video-Text Representation Learning, NeurIPS 2020.

    Example:
        >>> Coot()(torch.eye(4), torch.eye(4)).item()
        0.0
        >>> outputs = {f"{level}/{name}": torch.eye(4) for level in LEVELS.values() for name in ("video", "text")}
        >>> Coot(cycle=0.0).all_levels(outputs, torch.tensor([1, 1, 1, 1])).item()
        0.0
    """

    def __init__(
        self,
        margin: float = 0.2,
        high: float = 1.0,
        low: float = 1.0,
        context: float = 1.0,
        cluster_high: float = 1.0,
        cluster_low: float = 1.0,
        cluster_context: float = 0.0,
        cycle: float = 0.001,
        pairs: PairsOption = "all",
    ) -> None:
        super().__init__(pairs)
        self.margin = check_number("margin", margin, 0)
        align = {"high": high, "low": low, "context": context}
        cluster = {"high": cluster_high, "low": cluster_low, "context": cluster_context}
        self.align = {level: check_number(level, weight, 0) for level, weight in align.items()}
        self.cluster = {level: check_number(f"cluster_{level}", weight, 0) for level, weight in cluster.items()}
        self.cycle = check_number("cycle", cycle, 0)

    def pair_loss(self, x: Tensor, y: Tensor, ids: Tensor | None, group: Any = None) -> Tensor:
        """One level: clips and sentences."""
        return self._level("low", x, y, ids, group)

    def all_levels(
        self,
        outputs: Mapping[str, Tensor],
        clip_counts: Tensor,
        generator: torch.Generator | None = None,
        present: Mapping[str, Tensor] | None = None,
        group: Any = None,
    ) -> Tensor:
        """Scalar loss of all embeddings of a batch, by ``level/modality``: the mean over the pairs of modalities.

        ``clip_counts`` (videos,) has the number of clips of each video; ``generator`` samples the positions of cycle
        consistency; ``present`` has, by modality, which clips (clips,) have it, by default all; ``group``: see
        :class:`Loss`.
        """
        names = [key.removeprefix("clip/") for key in outputs if key.startswith("clip/")]
        owner = torch.repeat_interleave(torch.arange(len(clip_counts)), clip_counts.cpu())
        total, weights = outputs[f"clip/{names[0]}"].new_zeros(()), 0.0
        for x, y in combinations(names, 2):
            weight = 1.0 if self.pair_weights is None else self.pair_weights.get((x, y), 0.0)
            weight = weight or (0.0 if self.pair_weights is None else self.pair_weights.get((y, x), 0.0))
            both = torch.ones(len(owner), dtype=torch.bool)
            for name in (x, y):
                both &= True if present is None or name not in present else present[name].cpu()
            if weight and bool(both.any()):
                counts = torch.bincount(owner[both], minlength=len(clip_counts))
                total = total + weight * self._pair(outputs, x, y, both, counts, generator, group)
                weights += weight
        return total / weights if weights else total

    def _pair(
        self,
        outputs: Mapping[str, Tensor],
        x: str,
        y: str,
        both: Tensor,
        counts: Tensor,
        generator: torch.Generator | None,
        group: Any,
    ) -> Tensor:
        """All levels of two modalities, over the clips and videos that have both."""

        def rows(level: str, name: str) -> Tensor:
            found = outputs[f"{level}/{name}"]
            return found[(both if level == "clip" else counts > 0).to(found.device)]

        loss = outputs[f"clip/{x}"].new_zeros(())
        for weight, level in LEVELS.items():
            if f"{level}/{x}" in outputs:
                one, other = (F.normalize(rows(level, name), dim=1) for name in (x, y))
                loss = loss + self._level(weight, one, other, None, group)
        if self.cycle:
            cycle = cycle_consistency(rows("clip", x), rows("clip", y), counts[counts > 0], generator)
            loss = loss + self.cycle * cycle
        return loss

    def _level(self, level: str, x: Tensor, y: Tensor, ids: Tensor | None, group: Any) -> Tensor:
        loss = x.new_zeros(())
        if self.align[level]:
            loss = loss + self.align[level] * max_margin(x, y, self.margin, ids, group=group, experts=self.experts)
        if self.cluster[level]:
            within = [max_margin(rows, rows, self.margin, ids, group=group, experts=self.experts) for rows in (x, y)]
            loss = loss + self.cluster[level] * (within[0] + within[1]) / 2
        return loss


def cycle_consistency(
    clips: Tensor, sentences: Tensor, clip_counts: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Squared distance between a clip's position in its video and where clip → sentence → clip ends, and the reverse.

    One position is sampled at random for each video and direction.

    Args:
        clips: (clips, D) raw embeddings, flat in video order.
        sentences: (clips, D) raw embeddings, one for each clip.
        clip_counts: (videos,) number of clips of each video.
        generator: samples the positions.

    Returns:
        Scalar, the sum of both directions, each the mean over videos.
    """
    counts = clip_counts.to(clips.device)
    longest = int(clip_counts.max())
    valid = torch.arange(longest, device=clips.device) < counts.unsqueeze(1)  # (videos, longest)
    padded = []
    for flat in (clips, sentences):
        full = flat.new_zeros(len(counts), longest, flat.shape[1])
        full[valid] = flat
        padded.append(full)
    draws = torch.rand(2, len(counts), generator=generator, device="cpu" if generator is None else generator.device)
    places = (draws.to(clips.device) * counts).long().clamp(max=counts - 1)  # (2, videos)
    there, back = padded
    return _cycle(there, back, valid, places[0]) + _cycle(back, there, valid, places[1])


def _cycle(start: Tensor, other: Tensor, valid: Tensor, place: Tensor) -> Tensor:
    query = start[torch.arange(len(start), device=start.device), place]  # (videos, D)
    landed = torch.einsum("vk,vkd->vd", _soft_neighbour(query, other, valid), other)
    weights = _soft_neighbour(landed, start, valid)  # (videos, longest)
    index = weights @ torch.arange(start.shape[1], device=start.device, dtype=start.dtype)
    return (place - index).square().mean()


def _soft_neighbour(query: Tensor, keys: Tensor, valid: Tensor) -> Tensor:
    distance = (query.unsqueeze(1) - keys).square().mean(dim=2)  # (videos, longest)
    return torch.softmax((-distance).masked_fill(~valid, -torch.inf), dim=1)
