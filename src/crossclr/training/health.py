"""Detect a run that does not learn or is thrown back, and report the likely cause and the option to change."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COLLAPSED = 0.9  # embeddings have collapsed if the mean cosine between random items is at least this
INTRA_SHARE = 0.9  # positives hardly count if the intra-modal share of the loss's denominator is at least this
SMALL_GALLERY = 100  # with fewer items, retrieval at chance looks like retrieval above chance
PATIENCE = 3  # epochs after the warm-up within which the loss must fall
JUMP = 1.5, 0.5  # the loss jumps if it is above this multiple of the previous epoch's loss, plus this


@dataclass
class Health:
    """Watches the records of epochs after the warm-up; gives at most one warning in a run."""

    warmup_epochs: int = 0  # epochs in which the learning rate rises; they are not judged
    losses: list[float] = field(default_factory=list)  # loss of each epoch after the warm-up
    scores: list[float] = field(default_factory=list)  # validation score of each validated epoch after the warm-up
    warning: str | None = None  # the warning, once it was given

    def observe(self, record: Mapping[str, Any]) -> str | None:
        """Check the record of an epoch; returns a warning the first time that something is wrong."""
        if record["epoch"] < self.warmup_epochs:
            return None
        self.losses.append(record["loss"])
        if "score" in record:
            self.scores.append(record["score"])
        if self.warning is not None or record["epoch"] == self.warmup_epochs:  # one epoch at the full rate
            return None
        problem = self._problem(record)
        self.warning = self._jump() if problem is None else f"This run does not learn: {problem}"
        return self.warning

    def _jump(self) -> str | None:
        before, now = self.losses[-2:]
        if now <= JUMP[0] * before + JUMP[1]:
            return None
        return (
            f"The loss jumped from {before:.3g} to {now:.3g} within one epoch: a few large gradients threw the "
            "weights back. Set training.gradient_clip to 2.0 (0.2 if it is 2.0 already), or the first of "
            "optimiser.betas to 0.9."
        )

    def _problem(self, record: Mapping[str, Any]) -> str | None:
        retrieval = _Retrieval.of(record)
        if retrieval is not None and retrieval.works:
            return None
        return (
            _collapsed(record)
            or _intra_modal(record)
            or (None if retrieval is None else retrieval.problem())
            or self._standing_loss()
        )

    def _standing_loss(self) -> str | None:
        improves = len(self.scores) > 1 and max(self.scores[1:]) > 1.05 * self.scores[0]
        if len(self.losses) <= PATIENCE or self.losses[-1] < 0.99 * self.losses[0] or improves:
            return None
        what = "rises" if self.losses[-1] > 1.01 * self.losses[0] else "stands still"
        return (
            f"the loss {what} ({self.losses[0]:.3g} after the warm-up, {self.losses[-1]:.3g} now). The learning rate "
            "is probably too high: lower optimiser.learning_rate or set training.gradient_clip=1.0."
        )


def _collapsed(record: Mapping[str, Any]) -> str | None:
    cosine = record.get("mean_cosine")
    if cosine is None or cosine < COLLAPSED:
        return None
    what = f"the embeddings have collapsed (mean cosine {cosine:.2f} between random items). "
    if record.get("intra_share", 0.0) > 0.5:
        return what + _INTRA_ADVICE
    return what + "Lower optimiser.learning_rate, or raise the temperature of the loss."


def _intra_modal(record: Mapping[str, Any]) -> str | None:
    share = record.get("intra_share")
    if share is None or share < INTRA_SHARE:
        return None
    return f"{share:.0%} of the loss's denominator are items of the query's own modality. " + _INTRA_ADVICE


_INTRA_ADVICE = (
    "Near-copies within a modality probably outweigh the positives: set loss.local.intra_mode=logit, or lower "
    "loss.local.intra_weight or loss.local.queue_size."
)


@dataclass(frozen=True)
class _Retrieval:
    """Recall at validation next to the recall of random ranks, both in percent."""

    metric: str
    recall: float
    chance: float
    gallery: int

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "_Retrieval | None":
        gallery, metrics = record.get("gallery"), record.get("validation")
        if not gallery or not metrics:
            return None
        cutoff = 10 if gallery >= SMALL_GALLERY else 1
        found = [value for name, value in metrics.items() if name.endswith(f"/R@{cutoff}")]
        if not found:
            return None
        return cls(f"R@{cutoff}", max(found), 100.0 * cutoff / gallery, int(gallery))

    @property
    def works(self) -> bool:
        """Whether recall is far enough above chance to skip the other checks."""
        return self.recall >= min(50.0, 20 * self.chance)

    def problem(self) -> str | None:
        if self.gallery < SMALL_GALLERY or self.recall >= 2 * self.chance:
            return None
        return (
            f"validation retrieval is at chance ({self.metric} {self.recall:.2g}, random ranks give {self.chance:.2g})."
            " Check that the pairs belong together with `crossclr check`, then lower optimiser.learning_rate."
        )
