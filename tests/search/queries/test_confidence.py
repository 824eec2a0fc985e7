"""Probabilities of results: against scikit-learn's regression, and held-out sentences of two sets."""

from types import SimpleNamespace

import numpy as np
import pytest

from crossclr.evaluation.words import content_words
from crossclr.search.confidence import Calibration, calibration_error, fit_confidence, trial_results
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.items import Item, Items


def data(seed, count):
    """Scores and queries of one or three words, whose results are right with a known probability."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(0, 1, count)
    texts = [("dog", "red dog runs")[number % 2] for number in range(count)]
    chance = 1 / (1 + np.exp(-(4 * scores - 1 - np.arange(count) % 2)))
    return scores, texts, (rng.uniform(0, 1, count) < chance).astype(float)


def test_it_is_logistic_regression():
    linear = pytest.importorskip("sklearn.linear_model")
    scores, texts, right = data(0, 600)
    rows = np.stack([scores, [np.log1p(len(text.split())) for text in texts]], axis=1)
    scale = rows.std(0)
    expected = linear.LogisticRegression(C=1.0, tol=1e-10).fit(rows / scale, right).predict_proba(rows / scale)[:, 1]
    fitted = Calibration.fit(scores, texts, right)
    found = [fitted(score, text) for score, text in zip(scores, texts, strict=True)]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_probabilities_are_right_on_new_data():
    fitted = Calibration.fit(*data(0, 4000))
    scores, texts, right = data(1, 4000)
    chances = np.array([fitted(score, text) for score, text in zip(scores, texts, strict=True)])
    assert calibration_error(chances, right) < 0.03
    assert calibration_error(np.clip(chances + 0.2, 0, 1), right) > 0.1  # the measure notices
    assert fitted(0.5, "a dog") > fitted(0.5, "red dog runs")


def held_out_error(items, indexes, meta, encoder, modality):
    """The calibration error on test sentences, with all clips of the index as results, and the share of right ones."""
    fit_confidence(items, indexes, meta | {"validation": "val"}, encoder)
    fitted = Calibration(**meta["modalities"][modality]["confidence"])
    held_out = trial_results(items, indexes, meta, encoder, modality, "test", with_own=True)
    pairs = zip(held_out.scores, held_out.texts, strict=True)
    return calibration_error(np.array([fitted(*pair) for pair in pairs]), held_out.right), held_out.right.mean()


def test_the_built_in_set_is_calibrated(searcher):
    index = searcher.items, searcher.indexes, searcher.meta | {"modalities": {"image": {}}}, searcher.queries
    error, share = held_out_error(*index, "image")
    assert error <= 0.05
    assert 0.05 < share < 0.9  # neither is trivial
    assert trial_results(*index, "image", "none") is None
    assert trial_results(*index, "text", "val") is None  # text finds text


def test_msvd_is_calibrated(msvd, tmp_path):
    items = Items(tmp_path / "items.sqlite", writable=True)
    clips = [(number, f"clip{number}", str(split)) for number, split in enumerate(msvd.splits)]
    items.put(Item(number, f"video/{key}", "video", key, split=split) for number, key, split in clips)
    sentences = [(key, split, text) for number, key, split in clips for text in msvd.captions[number][:15]]
    items.put(
        Item(len(clips) + row, f"text/{row}", "text", key, text, split)
        for row, (key, split, text) in enumerate(sentences)
    )
    index = FaissIndex(msvd.videos.shape[1])
    index.add(np.arange(len(clips)), msvd.videos.astype(np.float32))
    meta = {"text_modality": "text", "modalities": {"video": {}}}
    error, share = held_out_error(items, {"video": index, "text": index}, meta, msvd, "video")
    items.close()
    assert error <= 0.05
    assert 0.2 < share < 0.9


def test_a_result_is_right_if_its_captions_have_half_of_the_words(tmp_path):
    captions = [f"{animal} {verb} {place}" for animal, verb in (("cat", "sleeps"), ("dog", "runs")) for place in "abcd"]
    texts = [captions[number % 8] for number in range(40)]
    items = Items(tmp_path / "items.sqlite", writable=True)
    items.put(Item(n, f"text/{n}", "text", f"c{n}", text, "val") for n, text in enumerate(texts))
    items.put(Item(40 + n, f"video/{n}", "video", f"c{n}", split="val") for n in range(40))
    index = FaissIndex(2)
    index.add(np.arange(40, 80), np.tile(np.eye(2, dtype=np.float32), (20, 1)))
    meta = {"text_modality": "text"}
    encoder = SimpleNamespace(encode=lambda texts: np.tile(np.float32([[1, 0]]), (len(texts), 1)))
    found = trial_results(items, {"text": index, "video": index}, meta, encoder, "video", "val")
    items.close()
    shown = {tuple(sorted(content_words(texts[n]))) for n in range(0, 40, 2)}  # clips that this index returns
    for query, right in zip(found.texts, found.right, strict=True):
        words = content_words(query)
        shares = [len(words & set(one)) / len(words) for one in shown]
        assert (max(shares) >= 0.5) >= right
        assert (min(shares) >= 0.5) <= right
    assert set(found.scores.tolist()) == {1.0}
