from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from crossclr.data.batch import Batch, Inputs, Ragged
from tests.support.references import coot_network


@pytest.fixture(scope="session")
def coot_fixture() -> dict[str, Any]:
    """The small COOT network: its state, an input batch and what COOT itself gives for it."""
    return coot_network()


@pytest.fixture(scope="session")
def make_batch() -> Callable[..., Batch]:
    """Random two-level batches from lists of lengths."""

    def ragged(lengths: list[int], dim: int, generator: torch.Generator, dtype: torch.dtype) -> Ragged:
        values = torch.randn(sum(lengths), dim, generator=generator, dtype=torch.float64).to(dtype)
        return Ragged(values, torch.tensor(lengths))

    def make(
        clip_lengths: list[list[int]],
        sentence_lengths: list[list[int]] | None = None,
        dims: tuple[int, int] = (6, 10),
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        sentence_lengths = sentence_lengths or clip_lengths
        inputs = {}
        for name, lengths, dim in (("video", clip_lengths, dims[0]), ("text", sentence_lengths, dims[1])):
            clips = ragged([n for video in lengths for n in video], dim, generator, dtype)
            context = ragged([sum(video) for video in lengths], dim, generator, dtype)
            inputs[name] = Inputs(clips, context)
        count = sum(map(len, clip_lengths))
        return Batch(
            inputs=inputs,
            present=dict.fromkeys(inputs, torch.ones(count, dtype=torch.bool)),
            pooled={name: rows.clips.mean() for name, rows in inputs.items()},
            clip_counts=torch.tensor([len(video) for video in clip_lengths]),
            ids=torch.arange(count),
            video_ids=torch.arange(len(clip_lengths)),
            keys=tuple(f"v{i}" for i in range(len(clip_lengths))),
        )

    return make
