"""A small data set in memory, of one or two levels, with several sentences for a clip."""

import numpy as np
import pytest
import torch

from crossclr.data import Dataset
from tests.support.pairs import pair_embeddings, pair_sample


class HiddenPoints:
    """Clips are noisy views of hidden points; sentences are a linear map of the same points with more noise."""

    def __init__(self, two_level=False, sentences=1, count=60, noise=0.3, seed=0):
        rng = np.random.default_rng(seed)
        self.samples, self.reads = [], 0
        maps = rng.normal(size=(4, 12)), rng.normal(size=(4, 9))
        for number in range(count):
            clips = int(rng.integers(2, 5)) if two_level else 1
            hidden = rng.normal(size=(clips, 4))
            clip_of = np.repeat(np.arange(clips), sentences)
            key = f"v{number:03d}"
            rows = [(h @ maps[0] + 3 + noise * rng.normal(size=(5, 12))).astype(np.float32) for h in hidden]
            words = [(hidden[c] @ maps[1] - 2 + noise * rng.normal(size=(3, 9))).astype(np.float32) for c in clip_of]
            sample = pair_sample(
                key,
                rows,
                words,
                (np.concatenate(rows), np.concatenate(words)) if two_level else (None, None),
                clip_of=tuple(clip_of.tolist()),
                texts=tuple(f"{key} says {i} ü" for i in range(len(words))),
                group=f"group {number % 3}",
                split="test" if number % 4 == 3 else "val" if number % 4 == 2 else "train",
            )
            self.samples.append(sample)
        self.data = Dataset.from_samples(self)
        self.reads = 0

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, place):
        self.reads += 1
        return self.samples[place]


@pytest.fixture
def hidden_points():
    """A data set that is read on demand."""
    return lambda *args, **options: HiddenPoints(*args, **options).data


def random_embeddings(two_level=True, sentences=2, seed=0, dim=6):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([3, 1, 2, 4])
    clip_of = torch.repeat_interleave(torch.arange(10), sentences)

    def rows(count, width):
        return torch.randn(count, width, generator=generator)

    keys = ("küche", "b", "c", "d")
    return pair_embeddings(
        rows(10, dim),
        rows(10 * sentences, dim),
        clip_of,
        clip_keys=tuple(
            f"{k}/{i}" if n > 1 else k for k, n in zip(keys, counts.tolist(), strict=True) for i in range(n)
        ),
        clip_counts=counts,
        video_keys=keys,
        texts=tuple(f"sentence {i}" for i in range(10 * sentences)),
        groups=("x", "x", "y", ""),
        videos=(rows(4, 2 * dim), rows(4, 2 * dim)) if two_level else None,
        contexts=(rows(4, dim), rows(4, dim)) if two_level else None,
    )


@pytest.fixture
def make_embeddings():
    return random_embeddings
