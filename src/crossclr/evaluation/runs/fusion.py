"""The paper's ⊕: the normalised embeddings of several runs, concatenated."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from crossclr.models.embeddings import Embeddings

PARTS = ("rows", "videos", "context")


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
        if len(first.names) != len(other.names):
            raise ValueError(
                f"run 1 has the modalities {', '.join(first.names)} and run {number} {', '.join(other.names)}; runs "
                "can be fused only with the same number of modalities"
            )
        for mine, theirs in zip(first.modalities.values(), other.modalities.values(), strict=True):
            if not torch.equal(mine.clip_of, theirs.clip_of):
                raise ValueError(
                    f"run 1 and run {number} assign their sentences to different clips, or lack other samples; "
                    "evaluate them on the same captions"
                )
    fused = {}
    for names in zip(*(one.names for one in embeddings), strict=True):
        vectors = [one[name] for one, name in zip(embeddings, names, strict=True)]
        joined = {part: _side_by_side([getattr(one, part) for one in vectors], part) for part in PARTS}
        if any(one.items is not None for one in vectors):
            joined["items"] = _side_by_side([one.gallery for one in vectors], "items")
        fused["+".join(dict.fromkeys(names))] = replace(vectors[0], **joined)  # type: ignore[arg-type]
    return replace(first, modalities=fused)


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
