"""Metrics against hand-made loops, and the two levels and directions of embeddings."""

import itertools
import statistics

import numpy as np
import pytest
import torch

from crossclr.evaluation import METRICS, evaluate_embeddings, retrieval_metrics
from crossclr.evaluation.metrics import coot_median, rank_metrics, targets_between
from crossclr.models import Embeddings, Vectors
from tests.support.pairs import first, pair_embeddings, second
from tests.support.vectors import cosines


def loop_metrics(scores, valid):
    """Metrics from a score matrix and the valid columns of each row, by plain sorting (no ties)."""
    ranks = []
    for row, columns in zip(scores, valid, strict=True):
        order = sorted(range(len(row)), key=lambda j: -row[j])
        best = min(order.index(column) for column in columns)
        ranks.append(1 + best)
    share = {f"R@{k}": 100 * statistics.fmean(rank <= k for rank in ranks) for k in (1, 5, 10, 50)}
    return {**share, "MdR": statistics.median(ranks), "MnR": statistics.fmean(ranks)}


def make_embeddings(two_level=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    counts = torch.tensor([3, 1, 2, 4, 2] * 8)
    clips = int(counts.sum())
    clip_of = torch.sort(torch.cat([torch.arange(clips), torch.randint(clips, (70,), generator=generator)])).values
    rows = torch.randn(clips, 6, generator=generator)
    sentences = rows[clip_of] + torch.randn(len(clip_of), 6, generator=generator)
    videos = torch.randn(40, 8, generator=generator)
    return pair_embeddings(
        rows,
        sentences,
        clip_of,
        clip_keys=tuple(f"c{i}" for i in range(clips)),
        clip_counts=counts,
        video_keys=tuple(f"v{i}" for i in range(40)),
        videos=(videos, videos + torch.randn(40, 8, generator=generator)) if two_level else None,
    )


def test_keys_are_the_promised_ones():
    metrics = retrieval_metrics(torch.eye(3), torch.eye(3))
    assert metrics == {"R@1": 100.0, "R@5": 100.0, "R@10": 100.0, "R@50": 100.0, "MdR": 1.0, "MnR": 1.0}
    assert tuple(metrics) == tuple(METRICS)
    assert all(type(value) is float for value in metrics.values())


@pytest.mark.parametrize("count", [1, 2, 9, 60, 101])
def test_metrics_agree_with_a_loop(count):
    rng = np.random.default_rng(count)
    gallery = rng.normal(size=(count, 5))
    queries = gallery + rng.normal(size=(count, 5))
    expected = loop_metrics(cosines(queries, gallery), [[i] for i in range(count)])
    assert retrieval_metrics(queries, gallery) == pytest.approx(expected)


def test_a_tie_for_the_first_place_is_not_a_hit():
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    metrics = retrieval_metrics(gallery, gallery)
    assert metrics["R@1"] == pytest.approx(100 / 3)
    assert metrics["MnR"] == pytest.approx((1.5 + 1.5 + 1) / 3)


def test_constant_embeddings_are_chance():
    metrics = retrieval_metrics(torch.ones(500, 4), torch.ones(500, 4))
    assert metrics["MnR"] == metrics["MdR"] == 250.5
    assert metrics["R@50"] == 0


def test_medians():
    assert rank_metrics(torch.tensor([1.0, 4.0]))["MdR"] == 2.5
    # COOT: 0-based ranks 0 and 3 have the median 1.5, rounded down to 1, so it prints 2.
    assert coot_median(torch.tensor([1.0, 4.0])) == 2
    assert coot_median(torch.tensor([5.0, 1.0, 9.0])) == 5
    for seed in range(20):
        ranks = torch.randint(1, 30, (seed + 1,), generator=torch.Generator().manual_seed(seed))
        assert coot_median(ranks) == np.floor(np.median(ranks.numpy() - 1)) + 1


def test_no_queries_is_an_error():
    with pytest.raises(ValueError, match="no queries"):
        retrieval_metrics(torch.ones(0, 2), torch.ones(0, 2))


def test_both_levels_and_directions():
    embeddings = make_embeddings()
    results = evaluate_embeddings(embeddings)
    assert list(results) == ["clip/text->video", "clip/video->text", "video/text->video", "video/video->text"]
    clip_of = second(embeddings).clip_of.tolist()
    down = cosines(second(embeddings).rows, first(embeddings).rows)
    up = cosines(second(embeddings).videos, first(embeddings).videos)
    own = [[s for s, c in enumerate(clip_of) if c == clip] for clip in range(len(first(embeddings).rows))]
    assert results["clip/text->video"] == pytest.approx(loop_metrics(down, [[c] for c in clip_of]))
    # Any sentence of the clip is right; the other right ones may stand above it only if they are better themselves,
    # in which case the best of them is the one that counts: the loop takes the first valid column of the sorted row.
    assert results["clip/video->text"] == pytest.approx(loop_metrics(down.T, own))
    assert results["video/text->video"] == pytest.approx(loop_metrics(up, [[i] for i in range(40)]))
    assert results["video/video->text"] == pytest.approx(loop_metrics(up.T, [[i] for i in range(40)]))


@pytest.mark.parametrize("words", ["text->text", "text->text+video"])
def test_a_modality_is_not_searched_with_itself(words):
    with pytest.raises(ValueError, match="searches text with itself"):
        evaluate_embeddings(make_embeddings(), fused=[words])


def test_one_level_has_no_video_results():
    assert list(evaluate_embeddings(make_embeddings(two_level=False))) == ["clip/text->video", "clip/video->text"]


def test_clips_without_a_target_are_no_queries():
    asked, targets = targets_between(torch.arange(6), torch.tensor([4, 1, 1, 4, 0]))
    assert asked.tolist() == [0, 1, 4]
    rows = torch.split(targets.columns, targets.counts.tolist())
    assert [row.tolist() for row in rows] == [[4], [1, 2], [0, 3]]


def test_every_ordered_pair_with_gaps_against_a_loop():
    """Four modalities, each of which some clips lack; one has several rows for a clip."""
    generator = torch.Generator().manual_seed(3)
    clips = 30
    hidden = torch.randn(clips, 5, generator=generator)
    vectors = {}
    for number, name in enumerate(("video", "sound", "english", "spanish")):
        has = torch.randperm(clips, generator=generator)[: clips - 5 * number].sort().values
        places = torch.cat([has, has[:7]]).sort().values if name == "english" else has
        vectors[name] = Vectors(hidden[places] + torch.randn(len(places), 5, generator=generator), places)
    keys = tuple(map(str, range(clips)))
    results = evaluate_embeddings(Embeddings(vectors, keys, torch.ones(clips, dtype=torch.int64), keys))
    assert len(results) == 12
    for query, searched in itertools.permutations(vectors, 2):
        x, y = vectors[query], vectors[searched]
        chosen = [row for row, clip in enumerate(x.clip_of.tolist()) if clip in y.clip_of.tolist()]
        own = [[i for i, clip in enumerate(y.clip_of.tolist()) if clip == int(x.clip_of[row])] for row in chosen]
        expected = loop_metrics(cosines(x.rows[chosen], y.rows), own)
        assert results[f"clip/{query}->{searched}"] == pytest.approx(expected)
