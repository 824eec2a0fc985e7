"""nDCG, shared-caption recall and kept neighbours against loops that share no code with them."""

import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import ndcg_score

from crossclr.evaluation import Relevance, evaluate_embeddings, ndcg, retrieval_ranks, semantic_scores
from crossclr.evaluation import relevance as relevance_module
from crossclr.evaluation.semantics import Semantics, SharedCaptions, kept_neighbours, neighbours_kept, shared_ranks
from crossclr.evaluation.words import content_words
from tests.support.pairs import first, pair_embeddings, second
from tests.support.vectors import cosine, cosines

WORDS = ("man", "dog", "cat", "rides", "plays", "guitar", "horse", "red")


def some_captions(clips, seed, most=4):
    """Clips with captions of few words, so that many are shared."""
    rng = random.Random(seed)
    texts, clip_of = [], []
    for clip in range(clips):
        for _ in range(rng.randint(1, most)):
            texts.append("a " + " ".join(rng.sample(WORDS, rng.randint(1, 3))) + rng.choice(["", ".", " ."]))
            clip_of.append(clip)
    return texts, clip_of


def embeddings_of(texts, clip_of, clips, seed=0, dim=5):
    generator = torch.Generator().manual_seed(seed)
    keys = tuple(f"c{clip}" for clip in range(clips))
    rows = torch.randn(clips, dim, generator=generator)
    sentences = rows[clip_of] + torch.randn(len(texts), dim, generator=generator)
    return pair_embeddings(rows, sentences, torch.tensor(clip_of), texts=texts, clip_keys=keys, video_keys=keys)


def iou(first, second):
    return len(first & second) / len(first | second) if first | second else 0.0


def relevance_by_hand(texts, clip_of, clips):
    words = [{w.strip(".") for w in text.split()} - {"a", "", "."} for text in texts]
    bags = []
    for clip in range(clips):
        own = [words[i] for i in range(len(texts)) if clip_of[i] == clip]
        bags.append({w for w in WORDS if sum(w in bag for bag in own) >= len(own) / 4})
        bags[-1] &= set().union(*own) if own else set()
    return [[iou(sentence, bag) for bag in bags] for sentence in words]


def ndcg_by_hand(scores, grades):
    """One query without ties: sort in Python, add up."""
    order = sorted(range(len(scores)), key=lambda j: -scores[j])
    cut = sum(grade > 0 for grade in grades)
    if not cut:
        return math.nan
    best = sorted(grades, reverse=True)
    gained = sum(grades[j] / math.log2(place + 2) for place, j in enumerate(order[:cut]))
    return gained / sum(best[place] / math.log2(place + 2) for place in range(cut))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cells", [7, 10_000])
def test_ndcg_is_the_sum_by_hand(seed, cells, monkeypatch):
    monkeypatch.setattr(relevance_module, "CELLS", cells)
    texts, clip_of = some_captions(12, seed)
    found = embeddings_of(texts, clip_of, 12, seed)
    grades = relevance_by_hand(texts, clip_of, 12)
    relevance = Relevance.of_captions(texts, clip_of, 12)
    np.testing.assert_allclose(relevance.block(0, len(texts)), grades, atol=1e-12)
    got = ndcg(second(found).rows, first(found).rows, relevance)
    expected = [ndcg_by_hand(s, g) for s, g in zip(cosines(second(found).rows, first(found).rows), grades, strict=True)]
    np.testing.assert_allclose(got, expected, atol=1e-12)
    back = [list(column) for column in zip(*grades, strict=True)]
    expected = [ndcg_by_hand(s, g) for s, g in zip(cosines(first(found).rows, second(found).rows), back, strict=True)]
    turned = Relevance(relevance.gallery, relevance.queries)
    np.testing.assert_allclose(ndcg(first(found).rows, second(found).rows, turned), expected, atol=1e-12)


def test_ties_are_averaged_as_in_scikit_learn():
    # All words differ from zero only where all items are relevant, so that the cut at K does not matter.
    texts = ["dog", "dog cat", "dog cat horse", "dog man", "dog man red cat"]
    relevance = Relevance.of_captions(texts, range(5), 5)
    grades = relevance.block(0, 5)
    assert (grades > 0).all()
    gallery = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    queries = torch.tensor([[1.0, 0.2], [0.1, 1.0], [1.0, 1.0], [0.0, 0.0], [3.0, -1.0]])
    scores = np.zeros((5, 5))  # the row of zeros ties with everybody
    scores[[0, 1, 2, 4]] = np.round(cosines(queries[[0, 1, 2, 4]], gallery), 12)
    expected = [ndcg_score([grade], [score], ignore_ties=False) for grade, score in zip(grades, scores, strict=True)]
    np.testing.assert_allclose(ndcg(queries, gallery, relevance), expected, atol=1e-10)


@given(st.integers(0, 10_000), st.integers(2, 9))
@settings(max_examples=30, deadline=None)
def test_ndcg_lies_between_zero_and_one_and_the_best_order_has_one(seed, clips):
    texts, clip_of = some_captions(clips, seed)
    found = embeddings_of(texts, clip_of, clips, seed)
    relevance = Relevance.of_captions(texts, clip_of, clips)
    values = ndcg(second(found).rows, first(found).rows, relevance)
    known = values[~values.isnan()]
    assert ((known >= 0) & (known <= 1 + 1e-12)).all()
    grades = torch.from_numpy(relevance.block(0, len(texts)))
    # One query at a time, so that its scores can be its grades.
    for row, grade in enumerate(grades):
        alone = Relevance(relevance.queries[[row]], relevance.gallery)
        angle = torch.arccos(grade.clamp(-1, 1))
        ideal = ndcg(torch.tensor([[1.0, 0.0]]), torch.stack([angle.cos(), angle.sin()], dim=1), alone)
        assert bool(ideal.isnan()) == (not bool((grade > 0).any()))
        assert bool(ideal.isnan()) or float(ideal) == pytest.approx(1, abs=1e-9)


def test_function_words_and_case_do_not_count():
    assert content_words("He IS putting the Dough into a pan, isn't it?") == {"putting", "dough", "pan", "isn't"}
    assert content_words("") == frozenset()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cells", [5, 10_000])
def test_shared_captions_are_right(seed, cells, monkeypatch):
    monkeypatch.setattr(relevance_module, "CELLS", cells)
    clips = 15
    texts, clip_of = some_captions(clips, seed, most=2)
    found = embeddings_of(texts, clip_of, clips, seed)
    captions = [
        {text.rstrip(" .") for text, c in zip(texts, clip_of, strict=True) if c == clip} for clip in range(clips)
    ]
    right = [[bool(captions[i] & captions[j]) for j in range(clips)] for i in range(clips)]
    shared = SharedCaptions(texts, clip_of, clips)
    assert shared.pairs(torch.arange(clips), torch.arange(clips)).toarray().tolist() == right
    scores = cosines(second(found).rows, first(found).rows)
    expected = []
    for row, clip in zip(scores, clip_of, strict=True):
        best = max(s for s, ok in zip(row, right[clip], strict=True) if ok)
        expected.append(1 + sum(s > best for s, ok in zip(row, right[clip], strict=True) if not ok))
    ranks = shared_ranks(second(found).rows, first(found).rows, second(found).clip_of, torch.arange(clips), shared)
    assert ranks.tolist() == expected
    # The same as ranking with several targets, in both directions.
    targets = [[j for j in range(clips) if right[clip][j]] for clip in clip_of]
    assert ranks.tolist() == retrieval_ranks(second(found).rows, first(found).rows, targets).tolist()
    back = shared_ranks(first(found).rows, second(found).rows, torch.arange(clips), second(found).clip_of, shared)
    targets = [[i for i, c in enumerate(clip_of) if right[clip][c]] for clip in range(clips)]
    assert back.tolist() == retrieval_ranks(first(found).rows, second(found).rows, targets).tolist()


def test_a_collapsed_embedding_is_never_lucky():
    texts, clip_of = ["dog", "dog", "cat", "cow"], [0, 1, 2, 3]
    point = torch.ones(4, 3)
    shared = SharedCaptions(texts, clip_of, 4)
    ranks = shared_ranks(point, point, torch.arange(4), torch.arange(4), shared)
    assert ranks.tolist() == [2.0, 2.0, 2.5, 2.5]  # two and three others tie
    assert ndcg(point, point, Relevance.of_captions(texts, clip_of, 4))[2] == pytest.approx(1 / 4)


def neighbours_by_hand(inputs, outputs, k):
    def nearest(rows, i):
        cos = [(-cosine(rows[i], row), j) for j, row in enumerate(rows)]
        return {j for _, j in sorted(pair for pair in cos if pair[1] != i)[:k]}

    kept = [len(nearest(inputs, i) & nearest(outputs, i)) / k for i in range(len(inputs))]
    return 100 * sum(kept) / len(kept)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_kept_neighbours_by_hand(k):
    rng = np.random.default_rng(k)
    inputs = rng.normal(size=(40, 6)).astype(np.float32)
    outputs = (inputs @ rng.normal(size=(6, 4)) + 0.2 * rng.normal(size=(40, 4))).astype(np.float32)
    assert neighbours_kept(inputs, outputs, k) == pytest.approx(neighbours_by_hand(inputs, outputs, k))


def test_equal_inputs_count_once():
    rng = np.random.default_rng(0)
    inputs, outputs = rng.normal(size=(20, 6)), rng.normal(size=(20, 4))
    twice = neighbours_kept(np.concatenate([inputs, inputs]), np.concatenate([outputs, outputs]), k=3)
    assert twice == neighbours_kept(inputs, outputs, k=3)


def test_a_random_space_keeps_a_random_share():
    rng = np.random.default_rng(0)
    kept = neighbours_kept(rng.normal(size=(600, 8)), rng.normal(size=(600, 8)), k=10, anchors=300)
    assert kept == pytest.approx(100 * 10 / 599, abs=0.8)


def test_few_samples_and_unlike_samples():
    rows = np.eye(3)
    assert neighbours_kept(rows, rows, k=10) == 100.0  # two others are all there are
    with pytest.raises(ValueError, match="at least two"):
        neighbours_kept(np.ones((3, 2)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="3 input rows but 2 embeddings"):
        neighbours_kept(rows, rows[:2])


def test_scores_of_embeddings():
    texts, clip_of = some_captions(20, 4)
    found = embeddings_of(texts, clip_of, 20)
    scores = semantic_scores(found)
    assert set(scores) == {"clip/text->video", "clip/video->text"}
    strict = evaluate_embeddings(found)
    for direction, values in scores.items():
        assert set(values) == {"nDCG", "sR@1", "sR@5", "sR@10"}
        assert values["sR@1"] >= strict[direction]["R@1"]
    relevance = Relevance.of_captions(texts, clip_of, 20)
    expected = np.nanmean(ndcg(second(found).rows, first(found).rows, relevance).numpy())
    assert scores["clip/text->video"]["nDCG"] == pytest.approx(100 * expected)
    same = Semantics.of(found).scores(found)
    assert same == scores


def test_clips_without_sentences_ask_nothing():
    found = embeddings_of(["a dog", "a cat", "a dog"], [0, 2, 3], 4)
    assert semantic_scores(found)["clip/video->text"]["sR@10"] == 100.0


def test_without_texts_there_is_nothing_to_say():
    found = embeddings_of(["x"], [0], 1)
    assert (
        semantic_scores(
            replace(found, modalities={name: replace(one, texts=()) for name, one in found.modalities.items()})
        )
        == {}
    )


def test_other_samples_are_refused():
    found = embeddings_of(["a dog", "a cat"], [0, 1], 2)
    with pytest.raises(ValueError, match="other samples"):
        Semantics("text", ["a dog", "a cat"], torch.tensor([1, 0]), 2).scores(found)
    with pytest.raises(ValueError, match="not of the same samples"):
        kept_neighbours(replace(found, clip_keys=("x", "y")), found)
    with pytest.raises(ValueError, match="relevance is for"):
        ndcg(first(found).rows[:1], first(found).rows, Relevance.of_captions(["a", "b"], [0, 1], 2))
