from __future__ import annotations

import math

import pytest
import torch

from crossclr.losses import Coot
from crossclr.losses.coot import cycle_consistency
from tests.losses.reference import maxmargin


def outputs(seed: int = 0) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([3, 1, 4])
    sizes = {"clip/video": 8, "clip/text": 8, "video/video": 3, "video/text": 3, "context/video": 3, "context/text": 3}
    return {k: torch.randn(n, 5, generator=generator, dtype=torch.float64) for k, n in sizes.items()}, counts


def test_alignment_and_clusters_equal_the_loops() -> None:
    out, counts = outputs()
    expected = 0.0
    for x, y in (("video/video", "video/text"), ("clip/video", "clip/text"), ("context/video", "context/text")):
        ids = list(range(len(out[x])))
        expected += maxmargin(out[x], out[y], ids).item()
        if x != "context/video":
            expected += (maxmargin(out[x], out[x], ids).item() + maxmargin(out[y], out[y], ids).item()) / 2
    assert Coot(cycle=0.0).all_levels(out, counts).item() == pytest.approx(expected, rel=1e-9)


def soft_index(clips: list[list[float]], sentences: list[list[float]], place: int) -> float:
    def neighbour(query: list[float], keys: list[list[float]]) -> list[float]:
        scores = [math.exp(-sum((q - k) ** 2 for q, k in zip(query, key, strict=True)) / len(query)) for key in keys]
        return [s / sum(scores) for s in scores]

    there = neighbour(clips[place], sentences)
    landed = [sum(w * s[d] for w, s in zip(there, sentences, strict=True)) for d in range(len(sentences[0]))]
    return sum(w * k for k, w in enumerate(neighbour(landed, clips)))


def test_cycle_consistency_equals_the_loop() -> None:
    out, counts = outputs(1)
    value = cycle_consistency(out["clip/video"], out["clip/text"], counts, torch.Generator().manual_seed(7)).item()
    draws = torch.rand(2, 3, generator=torch.Generator().manual_seed(7))
    expected, offset = 0.0, 0
    for video, count in enumerate(counts.tolist()):
        clips = out["clip/video"][offset : offset + count].tolist()
        sentences = out["clip/text"][offset : offset + count].tolist()
        offset += count
        forth, back = (int(draws[d, video] * count) for d in range(2))
        expected += (forth - soft_index(clips, sentences, forth)) ** 2 / len(counts)
        expected += (back - soft_index(sentences, clips, back)) ** 2 / len(counts)
    assert value == pytest.approx(expected, rel=1e-6)


def test_the_whole_loss_has_gradients_for_all_six() -> None:
    out, counts = outputs(2)
    leaves = {name: z.requires_grad_() for name, z in out.items()}
    Coot().all_levels(leaves, counts).backward()
    assert all(bool((z.grad != 0).any()) for z in leaves.values())


def test_one_level_uses_what_is_there() -> None:
    out, counts = outputs(3)
    low = {name: out[name] for name in ("clip/video", "clip/text")}
    assert Coot(cycle=0.0).all_levels(low, counts).item() == pytest.approx(
        Coot(cycle=0.0, high=0, cluster_high=0, context=0).all_levels(out, counts).item()
    )
