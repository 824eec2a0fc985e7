"""The training objective: the sum of a local and a global loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossclr.data import Batch
from crossclr.losses import Coot, Loss, LossStats, build_loss
from crossclr.models.joint_model import at_level

if TYPE_CHECKING:
    from crossclr.training.run_config import LossConfig


class Objective(nn.Module):
    """L_local on clips + weight · L_global on whole videos, each between all modalities.

    The local loss keeps its queue across batches; a global loss has one only where its options say so.

    Args:
        config: which losses, with which options and weight.
        experts: number of experts of the model whose vectors lie side by side in a row.

    Example:
        >>> from crossclr.training.run_config import LossConfig
        >>> Objective(LossConfig(local={"name": "clip"})).global_ is None
        True
    """

    def __init__(self, config: LossConfig, experts: int = 1) -> None:
        super().__init__()
        self.local = build_loss(config.local.name, **config.local.options)
        if isinstance(self.local, Loss):
            self.local.experts = experts
        above = config.global_
        self.global_ = None if above is None else build_loss(above.name, **above.options)
        self.global_weight = config.global_weight
        self.parts: dict[str, float] = {}

    @property
    def needs_features(self) -> bool:
        """Whether a loss needs the pooled input features. Your own losses always get them, in case they do."""
        terms = [term for term in (self.local, self.global_) if term is not None]
        return any(term.needs_features if isinstance(term, Loss) else True for term in terms)

    def check(self, modalities: Sequence[str]) -> None:
        """Check that the option ``pairs`` of the losses names modalities of the data.

        Raises:
            ValueError: it names another one.
        """
        for term in (self.local, self.global_):
            for name in {name for pair in getattr(term, "pair_weights", None) or () for name in pair}:
                if name not in modalities:
                    raise ValueError(f"pairs: the data has no modality {name!r}; it has {', '.join(modalities)}")

    def forward(
        self,
        outputs: Mapping[str, Tensor],
        batch: Batch,
        generator: torch.Generator | None = None,
        group: Any = None,
    ) -> Tensor:
        """The loss of a batch; ``parts`` then holds the values to show.

        Args:
            outputs: embeddings by ``level/modality``, from the model.
            batch: the batch that was embedded.
            generator: source of the positions that cycle consistency samples.
            group: the processes that all hold this batch and share the work on it.
        """
        if isinstance(self.local, Coot):
            self.parts = {}
            return self.local.all_levels(outputs, batch.clip_counts, generator, batch.present, group)
        loss = between(self.local, at_level(outputs, "clip"), batch.pooled, batch.ids, batch.present, group)
        self.parts = {"loss_local": float(loss.detach()), **_shown(self.local)}
        if self.global_ is not None:
            videos = at_level(outputs, "video")
            above = between(self.global_, videos, batch.pooled_context, batch.video_ids, batch.present_videos(), group)
            self.parts["loss_global"] = float(above.detach())
            self.parts.update({f"{name}_global": value for name, value in _shown(self.global_).items()})
            loss = loss + self.global_weight * above
        return loss


def between(
    loss: nn.Module,
    embeddings: Mapping[str, Tensor],
    features: Mapping[str, Tensor],
    ids: Tensor,
    present: Mapping[str, Tensor],
    group: Any = None,
) -> Tensor:
    """The loss between modalities. A loss of your own compares two at a time: ``loss(x, y, a=..., b=..., ids=...)``."""
    if isinstance(loss, Loss):
        found: Tensor = loss(embeddings, features=features, ids=ids, present=present, group=group)
        return found
    terms = []
    for x, y in combinations(embeddings, 2):
        both = (present[x] & present[y]).to(ids.device)
        if bool(both.any()):
            rows = [None if one is None else one[both] for one in (features.get(x), features.get(y))]
            terms.append(loss(embeddings[x][both], embeddings[y][both], a=rows[0], b=rows[1], ids=ids[both]))
    if not terms:
        return sum((rows.sum() for rows in embeddings.values()), torch.zeros((), device=ids.device)) * 0.0
    return torch.stack(terms).mean()


def _shown(loss: nn.Module) -> dict[str, float]:
    """Pruned share, intra-modal share and weight ratio (means over the modalities) and queue fill, if known."""
    stats = getattr(loss, "stats", None)
    if not isinstance(stats, LossStats):
        return {}
    return {
        "pruned": stats.pruned,
        "intra_share": stats.intra_share,
        "weight_ratio": stats.weight_ratio,
        "queue_fill": stats.queue_fill,
    }
