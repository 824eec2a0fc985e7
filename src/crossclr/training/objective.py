"""The number that is minimised: a local and a global loss, joined."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from crossclr.features import Batch
from crossclr.losses import Coot, build_loss
from crossclr.suggestions import suggest

if TYPE_CHECKING:
    from crossclr.training.config.run_config import LossConfig


def build_term(name: str, options: Mapping[str, Any]) -> nn.Module:
    """Build one loss; a name or an option that does not exist is a ValueError that suggests the nearest one.

    Example:
        >>> build_term("clip", {"tempreature": 0.1})
        Traceback (most recent call last):
        ...
        ValueError: clip has no option 'tempreature'; did you mean 'temperature'?
    """
    try:
        if name != "coot":
            return build_loss(name, **options)
        known = list(inspect.signature(Coot).parameters)
        for option in options:
            if option not in known:
                raise ValueError(f"coot has no option {option!r}; {suggest(option, known)}")
        return Coot(**options)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


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
        self.local = build_term(config.local.name, config.local.options)
        self.global_ = None if config.global_ is None else build_term(config.global_.name, config.global_.options)
        self.global_weight = config.global_weight
        self.parts: dict[str, float] = {}

    @property
    def needs_features(self) -> bool:
        """Whether a loss needs the pooled input features."""
        return any(getattr(term, "needs_features", False) for term in (self.local, self.global_))

    def forward(self, outputs: Mapping[str, Tensor], batch: Batch, generator: torch.Generator | None = None) -> Tensor:
        """The loss of a batch; ``parts`` then holds what is worth showing of it.

        Args:
            outputs: embeddings by COOT's names, from the model.
            batch: what they were made of.
            generator: source of the positions that cycle consistency samples.
        """
        if isinstance(self.local, Coot):
            loss: Tensor = self.local(outputs, batch.clip_counts, generator)
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
    if stats is None:
        return {}
    return {
        "pruned": (float(stats.pruned_a) + float(stats.pruned_b)) / 2,
        "intra_share": float(stats.intra_share),
        "weight_ratio": (float(stats.weight_ratio_a) + float(stats.weight_ratio_b)) / 2,
        "queue_fill": float(stats.queue_fill),
    }
