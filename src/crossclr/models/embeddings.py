"""Embeddings of a data set: the input of validation, export, evaluation, search and captioning."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Embeddings:
    """Raw (not normalised) embeddings of both modalities with their keys, on the CPU in float32.

    Args:
        clip_a: (clips, D) first modality.
        clip_b: (sentences, D) second modality.
        clip_of: (sentences,) int64, for each row of ``clip_b``, the row of ``clip_a`` it belongs to.
        clip_keys: (clips) a unique key per clip, see `crossclr.features.clip_keys`.
        clip_counts: (videos,) int64 number of clips of each video.
        video_keys: (videos) key of each video in its source.
        texts: (sentences) the sentences as text, or empty.
        groups: (videos) a coarse label of each video, or empty.
        video_a: (videos, Dv) or None for one-level data; likewise ``video_b``.
        context_a: (videos, D) the local encoder on whole videos, or None; likewise ``context_b``.
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
    modalities: tuple[str, str] = ("a", "b")
