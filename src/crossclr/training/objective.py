"""The training objective: the sum of a local and a global loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from crossclr.features import Batch
from crossclr.losses import Loss, LossStats, build_loss

if TYPE_CHECKING:
    from crossclr.training.config.run_config import LossConfig


class Objective(nn.Module):
    """L_local on clips and sentences + weight · L_global on videos and paragraphs.

    The local loss keeps its queue across batches; a global loss has one only where its options say so.

    Args:
        config: which losses, with which options and weight.

    Example:
        >>> from crossclr.training.config.run_config import LossConfig
        >>> Objective(LossConfig(local={"name": "clip"})).global_ is None
        True
    """

    def __init__(self, config: LossConfig) -> None:
        super().__init__()
        self.local = build_loss(config.local.name, **config.local.options)
        above = config.global_
        self.global_ = None if above is None else build_loss(above.name, **above.options)
        self.global_weight = config.global_weight
        self.parts: dict[str, float] = {}

    @property
    def needs_features(self) -> bool:
        """Whether a loss needs the pooled input features. Your own losses always get them, in case they do."""
        terms = [term for term in (self.local, self.global_) if term is not None]
        return any(term.needs_features if isinstance(term, Loss) else True for term in terms)

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """The loss of a batch; ``parts`` then holds the values to show.

        Args:
            outputs: embeddings by COOT's names, from the model.
            batch: the batch that was embedded.
            generator: source of the positions that cycle consistency samples.
        """
        if isinstance(self.local, Loss) and self.local.covers_all_levels:
            loss: Tensor = self.local.all_levels(outputs, batch.clip_counts, generator)
            self.parts = {}
            return loss
        loss = self.local(outputs["clip_emb"], outputs["sent_emb"], a=batch.pooled_a, b=batch.pooled_b, ids=batch.ids)
        self.parts = {"loss_local": float(loss.detach()), **_shown(self.local)}
        if self.global_ is not None:
            above: Tensor = self.global_(
                outputs["vid_emb"],
                outputs["par_emb"],
                a=batch.pooled_context_a,
                b=batch.pooled_context_b,
                ids=batch.video_ids,
            )
            self.parts["loss_global"] = float(above.detach())
            self.parts.update({f"{name}_global": value for name, value in _shown(self.global_).items()})
            loss = loss + self.global_weight * above
        return loss


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
