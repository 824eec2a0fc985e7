"""What happened in the last call of a loss, by modality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ModalityStats:
    """What happened to one modality.

    Args:
        pruned: share of the reference set that was pruned.
        intra_share: intra-modal share of the denominator, averaged over anchors. Near 1 the positive no longer counts:
            lower ``intra_weight`` or ``queue_size``.
        weight_ratio: largest over smallest anchor weight.
        queue_fill: share of the queue that is filled (0 without a queue).
        min_keep_hit: whether ``min_keep`` limited the pruning.
    """

    pruned: float = 0.0
    intra_share: float = 0.0
    weight_ratio: float = 1.0
    queue_fill: float = 0.0
    min_keep_hit: bool = False


@dataclass(frozen=True)
class LossStats:
    """What happened in the last call: by modality, and the mean over the modalities.

    Args:
        modalities: name -> what happened to it.

    Example:
        >>> LossStats({"a": ModalityStats(pruned=0.2), "b": ModalityStats(pruned=0.4)}).pruned
        0.30000000000000004
    """

    modalities: Mapping[str, ModalityStats] = field(default_factory=dict)

    @property
    def pruned(self) -> float:
        """Share of the reference set that was pruned."""
        return self._mean([one.pruned for one in self.modalities.values()])

    @property
    def intra_share(self) -> float:
        """Share of the denominator that is intra-modal."""
        return self._mean([one.intra_share for one in self.modalities.values()])

    @property
    def weight_ratio(self) -> float:
        """Largest over smallest anchor weight."""
        return self._mean([one.weight_ratio for one in self.modalities.values()], 1.0)

    @property
    def queue_fill(self) -> float:
        """Share of the queues that is filled."""
        return self._mean([one.queue_fill for one in self.modalities.values()])

    @property
    def min_keep_hit(self) -> bool:
        """Whether ``min_keep`` limited the pruning of any modality."""
        return any(one.min_keep_hit for one in self.modalities.values())

    @staticmethod
    def _mean(values: list[float], otherwise: float = 0.0) -> float:
        return sum(values) / len(values) if values else otherwise
