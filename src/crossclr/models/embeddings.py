"""Embeddings of a data set: what validation, export, evaluation, search and captioning all speak."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from crossclr.models.adjustments.hub_bias import with_bias


@dataclass(frozen=True)
class Embeddings:
    """Raw (not normalised) embeddings of both modalities with their keys, on the CPU in float32.

    Args:
        clip_a: (clips, D) modality A.
        clip_b: (sentences, D) modality B.
        clip_of: (sentences,) int64, the row of ``clip_a`` that each row of ``clip_b`` belongs to.
        clip_keys: (clips) a unique key for each clip; ``video/index`` where a video has several.
        clip_counts: (videos,) int64 clips of each video.
        video_keys: (videos) key of each video in its source.
        texts: (sentences) the sentences as text, or empty.
        groups: (videos) a coarse label for each video, or empty.
        video_a: (videos, Dv) or None for data of one level; likewise ``video_b``.
        context_a: (videos, D) the local encoder on whole videos, or None; likewise ``context_b``.
        anchored_a: (clips, D) where sentences shall look for the clips, moved by anchors; None: at ``clip_a``.
        hub_a: (clips,) what is added to the score of a clip that is searched, see `Hubs`; None: nothing.
        hub_b: (sentences,) likewise.
        modalities: names of the two modalities, as their source has them.
    """

    clip_a: Tensor
    clip_b: Tensor
    clip_of: Tensor
    clip_keys: tuple[str, ...]
    clip_counts: Tensor
    video_keys: tuple[str, ...]
    texts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    video_a: Tensor | None = None
    video_b: Tensor | None = None
    context_a: Tensor | None = None
    context_b: Tensor | None = None
    anchored_a: Tensor | None = None
    hub_a: Tensor | None = None
    hub_b: Tensor | None = None
    modalities: tuple[str, str] = ("a", "b")

    @property
    def gallery_a(self) -> Tensor:
        """(clips, D) the clips as what is searched."""
        return self.clip_a if self.anchored_a is None else self.anchored_a

    def b_to_a(self) -> tuple[Tensor, Tensor]:
        """Queries and gallery, to be compared by cosine, where sentences look for clips."""
        return with_bias(self.clip_b, self.gallery_a, self.hub_a)

    def a_to_b(self) -> tuple[Tensor, Tensor]:
        """Queries and gallery, to be compared by cosine, where clips look for sentences."""
        return with_bias(self.clip_a, self.clip_b, self.hub_b)
