"""The CCA baseline on sources of one and two levels."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from crossclr.data import Dataset
from crossclr.evaluation import cca_baseline
from crossclr.evaluation.baseline import fit_baseline, pooled_rows
from crossclr.models.closed_form import ClosedForm
from tests.support.pairs import first, second


@pytest.mark.parametrize("two_level", [False, True])
@pytest.mark.parametrize("validation", [None, "val"])
def test_a_linear_relation_is_found(hidden_points, two_level, validation):
    source = hidden_points(two_level=two_level, sentences=2, count=120)
    results = cca_baseline(source, "test", validation=validation)
    assert list(results) == ["clip/text->video", "clip/video->text"] + (
        ["video/text->video", "video/video->text"] if two_level else []
    )
    assert results["clip/text->video"]["R@1"] > 85
    assert results["clip/text->video"]["MnR"] < 1.5
    if two_level:
        assert results["video/text->video"]["R@5"] > 85


def test_unrelated_modalities_stay_at_chance(hidden_points):
    source = hidden_points(count=400, noise=200.0)
    results = cca_baseline(source, "test", validation="val")
    assert 40 < results["clip/text->video"]["MnR"] < 61  # chance among 100 is 50.5


def test_pooled_rows_are_means_with_their_keys(hidden_points):
    source = hidden_points(two_level=True, sentences=3, count=40)
    train = source.where(split="train")
    keys, joined = list(train.keys), pooled_rows(train)
    samples = [train[place] for place in range(len(train))]
    expected_a = [rows.astype(np.float64).mean(0) for sample in samples for rows in first(sample).clips]
    expected_b = [rows.astype(np.float64).mean(0) for sample in samples for rows in second(sample).clips]
    np.testing.assert_allclose(first(joined).rows, expected_a, rtol=1e-5)
    np.testing.assert_allclose(second(joined).rows, expected_b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(second(joined).videos, [second(s).whole.mean(0) for s in samples], rtol=1e-5)
    assert joined.video_keys == tuple(keys)
    assert joined.clip_keys[:2] == (f"{keys[0]}/0", f"{keys[0]}/1")
    owners = [f"{s.key}/{c}" for s in samples for c in second(s).clip_of]
    assert [joined.clip_keys[i] for i in second(joined).clip_of.tolist()] == owners
    assert joined.clip_counts.tolist() == [len(first(s).clips) for s in samples]
    assert second(joined).texts == tuple(text for s in samples for text in second(s).texts)


def test_test_samples_are_not_seen_while_fitting(hidden_points):
    """Other test samples, same training samples: the baseline stays the same."""
    one = hidden_points(count=80)
    train, samples = one.where(split="train")[0], [one[place] for place in range(80)]
    two = Dataset.from_samples(
        replace(train, key=sample.key, split="test") if sample.split == "test" else sample for sample in samples
    )
    first, second = fit_baseline(one, validation="val")["clip"], fit_baseline(two, validation="val")["clip"]
    torch.testing.assert_close(first.tensors(), second.tensors(), rtol=0, atol=0)
    assert first.settings == second.settings


def test_validation_samples_choose_but_are_not_fitted(hidden_points):
    source = hidden_points(count=120, noise=3.0)
    model = fit_baseline(source, validation="val")["clip"]
    assert all(model.settings.of(name).bandwidth is None for name in source.modalities)  # linear
    pooled = pooled_rows(source.where(split="train"))
    rows = {name: pooled[name].rows for name in source.modalities}
    by_hand = ClosedForm(model.settings).fit(rows)
    torch.testing.assert_close(model.tensors(), by_hand.tensors(), rtol=1e-4, atol=1e-6)


def test_an_unknown_split_is_named(hidden_points):
    with pytest.raises(ValueError, match="no split 'dev'"):
        cca_baseline(hidden_points(), "dev", validation="val")
