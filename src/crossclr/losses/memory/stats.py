"""What happened in the last call of a loss, by modality."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields


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
class LossStats(ModalityStats):
    """What happened in the last call: the mean over the modalities, and each of them.

    Args:
        modalities: name -> what happened to it.

    Example:
        >>> stats = LossStats.mean({"a": ModalityStats(pruned=0.25), "b": ModalityStats(pruned=0.75)})
        >>> stats.pruned, stats.modalities["b"].pruned
        (0.5, 0.75)
    """

    modalities: Mapping[str, ModalityStats] = field(default_factory=dict)

    @classmethod
    def mean(cls, modalities: Mapping[str, ModalityStats]) -> "LossStats":
        """The mean over the modalities; ``min_keep_hit`` is set if it is set for any of them."""
        if not modalities:
            return cls()
        found = list(modalities.values())
        names = [item.name for item in fields(ModalityStats) if item.name != "min_keep_hit"]
        means = {name: sum(getattr(one, name) for one in found) / len(found) for name in names}
        return cls(**means, min_keep_hit=any(one.min_keep_hit for one in found), modalities=modalities)
