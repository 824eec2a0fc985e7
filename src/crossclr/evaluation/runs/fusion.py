"""The paper's ⊕: the normalised embeddings of several runs, concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.models.embeddings import Embeddings


def fuse(embeddings: Sequence[Embeddings]) -> Embeddings:
    """Fuse the embeddings of several runs on the same samples.

    The rows of every run are normalised and concatenated, separately for each modality. The dot product of two fused
    rows is the sum of the runs' cosines, so each run has one vote.

    Args:
        embeddings: at least one; all of the same samples in the same order.

    Returns:
        embeddings whose width is the sum of the runs' widths; a modality that has several names gets all of them, as
        in ``video+audio``.

    Raises:
        ValueError: the samples differ, or only some runs have the video level.
    """
    if not embeddings:
        raise ValueError("there is nothing to fuse; name at least one run")
    first = embeddings[0]
    for number, other in enumerate(embeddings[1:], start=2):
        _same(first.clip_keys, other.clip_keys, "clips", number)
        _same(first.video_keys, other.video_keys, "videos", number)
        if not torch.equal(first.clip_of, other.clip_of):
            raise ValueError(
                f"run 1 and run {number} assign their sentences to different clips; evaluate them on the same captions"
            )
    joined: dict[str, Any] = {
        name: _side_by_side([getattr(one, name) for one in embeddings], name)
        for name in ("clip_a", "clip_b", "video_a", "video_b", "context_a", "context_b")
    }
    a, b = ("+".join(dict.fromkeys(names)) for names in zip(*(one.modalities for one in embeddings), strict=True))
    return replace(first, **joined, modalities=(a, b))


def _same(first: tuple[str, ...], other: tuple[str, ...], what: str, number: int) -> None:
    if first == other:
        return
    if len(first) != len(other):
        found = f"{len(first)} and {len(other)}"
    else:
        row = next(i for i, (x, y) in enumerate(zip(first, other, strict=True)) if x != y)
        found = f"row {row} is {first[row]!r} and {other[row]!r}"
    raise ValueError(
        f"run 1 and run {number} were not embedded on the same {what}: {found}; "
        "runs can be fused only on the same data set and split"
    )


def _side_by_side(parts: Sequence[Tensor | None], name: str) -> Tensor | None:
    present = [part for part in parts if part is not None]
    if not present:
        return None
    if len(present) < len(parts):
        missing = next(i for i, part in enumerate(parts) if part is None)
        raise ValueError(f"run {missing + 1} has no {name!r} but others do; fuse runs with the same number of levels")
    return torch.cat([normalize(part, dim=1) for part in present], dim=1)
