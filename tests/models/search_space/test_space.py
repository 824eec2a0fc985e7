"""Search spaces: shares against cosines, hub correction against a loop, storage, and what cross-fitting decides."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from crossclr.models.choice import SpaceData, choose_space
from crossclr.models.closed_form import ClosedForm
from crossclr.models.feature_map import ClosedFormSettings
from crossclr.models.hubs import SHARPNESS, HubCorrection
from crossclr.models.space import SearchSpace
from crossclr.notices import CrossCLRWarning


def pairs(count=240, noise=0.7, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=generator)
    return {
        name: hidden @ torch.randn(6, dim, generator=generator) + noise * torch.randn(count, dim, generator=generator)
        for name, dim in {"video": 20, "text": 12}.items()
    }


def data(rows, present=None, **more):
    count = len(rows["video"])
    everywhere = torch.ones(count, dtype=torch.bool)
    return SpaceData(rows, {name: (present or {}).get(name, everywhere) for name in rows}, **more)


class Linear(nn.Module):
    """A stand-in for a trained encoder: fixed linear maps."""

    def __init__(self, maps):
        super().__init__()
        self.maps = maps

    def clip_vectors(self, modality, rows):
        return rows.mean() @ self.maps[modality]


def maps(width=5, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(dim, width, generator=generator) for name, dim in {"video": 20, "text": 12}.items()}


def test_similarities_are_weighted_means_of_the_parts():
    rows = pairs()
    closed, encoders = ClosedForm().fit(rows), [Linear(maps(seed=seed)) for seed in (1, 2)]
    space = SearchSpace({"video": 20, "text": 12}, closed, encoders, share=0.4)
    expected = 0.6 * closed.encode("text", rows["text"]) @ closed.encode("video", rows["video"]).T
    for encoder in encoders:
        text, video = (functional.normalize(rows[name] @ encoder.maps[name], dim=1) for name in ("text", "video"))
        expected = expected + 0.2 * text @ video.T
    found = space.encode_queries("text", rows["text"]) @ space.encode_items("video", rows["video"]).T
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(found.new_ones(240), space.encode_items("video", rows["video"]).norm(dim=1))


def test_sequences_are_their_mean_for_the_closed_form():
    rows = pairs()
    space = SearchSpace({"video": 20, "text": 12}, ClosedForm().fit(rows))
    sequences = [torch.stack([row - 1, row + 1]) for row in rows["video"][:5]]
    torch.testing.assert_close(space.encode_items("video", sequences), space.encode_items("video", rows["video"][:5]))
    with pytest.raises(ValueError, match="rows of 'video' have 3 channels, but the search space takes 20"):
        space.encode_items("video", torch.ones(2, 3))
    with pytest.raises(ValueError, match="rows of 'video' have 40 channels, but the search space takes 20"):
        space.encode_queries("video", torch.ones(2, 40))  # not mean and maximum side by side
    with pytest.raises(ValueError, match="there is no modality 'sound'; the search space has video, text"):
        space.encode_items("sound", torch.ones(2, 3))


def test_hub_correction_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    known = {name: functional.normalize(torch.randn(40, 4, generator=generator), dim=1) for name in "xyz"}
    known["y"][::4] = 0  # absent
    correction = HubCorrection(known, 0.5)
    items, queries = (functional.normalize(torch.randn(5, 4, generator=generator), dim=1) for _ in range(2))
    found = correction.queries(queries) @ correction.items("x", items).T
    for i, item in enumerate(items):
        others = [row for name in "yz" for row in known[name] if bool(row.any())]
        assert len(others) == 70
        mean = sum(math.exp(SHARPNESS * float(item @ other)) for other in others) / len(others)
        expected = (queries @ item - 0.5 / SHARPNESS * math.log(mean)) / 2
        torch.testing.assert_close(found[:, i], expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(correction.items("x", items).norm(dim=1), torch.ones(5))


def test_what_is_stored_gives_the_same_vectors():
    rows = pairs()
    space = choose_space(data(rows))
    again = SearchSpace.restore(space.tensors(), space.description())
    for name, values in rows.items():
        torch.testing.assert_close(space.encode_items(name, values), again.encode_items(name, values))
        torch.testing.assert_close(space.encode_queries(name, values), again.encode_queries(name, values))
    assert again.parts == space.parts
    assert again.facts.estimate == space.facts.estimate


def trainer(rows, maps, calls):
    def train(places, number):
        calls.append((len(places), number))
        encoder = Linear(maps)
        return encoder, lambda name, where: rows[name][where] @ maps[name]

    return train


@pytest.mark.slow
def test_an_encoder_that_knows_more_gets_a_share_and_one_that_knows_nothing_does_not():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(400, 40, generator=generator)
    mix = {name: torch.randn(40, 60, generator=generator) for name in ("video", "text")}
    rows = {name: hidden @ one + 9 * torch.randn(400, 60, generator=generator) for name, one in mix.items()}
    calls = []
    truth = {name: torch.linalg.pinv(one) for name, one in mix.items()}
    good = choose_space(data(rows), trainer(rows, truth, calls))
    assert good.share > 0
    assert len(good.encoders) == 2
    assert calls == [(300, 0), (300, 1), (400, 0), (400, 1)]
    calls.clear()
    bad = choose_space(data(rows), trainer(rows, {name: torch.randn(60, 8) for name in rows}, calls))
    assert bad.share == 0
    assert not bad.encoders
    assert calls == [(300, 0), (300, 1)]  # nothing is trained that is not used
    tried = {part.name: part for part in bad.parts}["trained encoders"]
    assert tried.share == 0
    assert tried.gain < tried.error
    assert good.facts.estimate.score > bad.facts.estimate.score


def test_gaps_groups_and_few_samples():
    rows = pairs()
    present = {"text": torch.arange(240) % 3 > 0}
    rows["text"][~present["text"]] = torch.nan
    space = choose_space(data(rows, present, groups=torch.arange(240) // 2))
    assert bool(space.encode_items("video", rows["video"]).isfinite().all())


@pytest.mark.parametrize(
    ("count", "labels", "reason"),
    [
        (10, {}, "there are 10 samples, and 16 are needed"),
        (240, {"groups": torch.arange(240) % 7}, "there are 7 groups, and 8 are needed"),
        (240, {"concepts": torch.zeros(240, dtype=torch.int64)}, "all samples have one concept"),
    ],
)
def test_where_nothing_can_be_chosen_one_warning_says_so(count, labels, reason):
    rows = {name: values[:count] for name, values in pairs().items()}
    with pytest.warns(CrossCLRWarning, match=reason) as caught:
        space = choose_space(data(rows, **labels), lambda places, number: pytest.fail("nothing is trained"))
    assert len(caught) == 1
    assert space.facts.estimate is None
    expected = ClosedForm(ClosedFormSettings()).fit(rows)
    torch.testing.assert_close(space.encode_items("video", rows["video"]), expected.encode("video", rows["video"]))


@pytest.mark.parametrize("measure", ["recall", "map"])
def test_the_measure_decides_and_is_stated(measure):
    concepts = torch.arange(240) % 6
    space = choose_space(data(pairs(noise=3.0), concepts=concepts, measure=measure))
    estimate = space.facts.estimate
    assert (estimate.measure, estimate.samples, estimate.gallery) == (measure, 240, 60)
    assert {"recall": "mean of R@1, R@5 and R@10", "map": "mAP"}[measure] in space.facts.sentence()
    other = choose_space(data(pairs(noise=3.0), concepts=concepts, measure={"recall": "map", "map": "recall"}[measure]))
    assert estimate.score != other.facts.estimate.score


def test_known_concepts_are_not_held_out_as_a_whole():
    """Samples of few concepts without noise within them: known concepts are found, unknown ones could not be."""
    generator = torch.Generator().manual_seed(0)
    concepts = torch.arange(240) % 12
    rows = {
        name: torch.randn(12, dim, generator=generator)[concepts] + 0.1 * torch.randn(240, dim, generator=generator)
        for name, dim in {"video": 30, "text": 20}.items()
    }
    told = choose_space(data(rows, concepts=concepts, measure="map")).facts.estimate
    split = choose_space(data(rows, concepts=concepts, groups=concepts, measure="map")).facts.estimate
    assert told.score > 95
    assert split.score < 80


def test_each_step_is_reported():
    rows, steps = pairs(), []
    choose_space(data(rows), trainer(rows, maps(), []), report=steps.append)
    assert steps[0] == "choosing settings by cross-fitting"
    assert "training encoder 1 of 2 on 180 of 240 samples" in steps
    assert "fitting the closed form" in steps


@pytest.mark.parametrize(("count", "kept"), [(20, [15, 15]), (180, [162])])
def test_of_many_samples_some_decide_by_folds_or_by_a_validation_set(monkeypatch, count, kept):
    """Half of 360 samples decide: by four folds, of which two try encoders, or by a tenth if groups are many."""
    monkeypatch.setattr("crossclr.models.choice.MANY", 179)
    monkeypatch.setattr("crossclr.models.choice.VALIDATION", 17)
    rows, groups, fitted = pairs(360), torch.arange(360) // (360 // count), []
    encoder = Linear(maps())

    def train(places, number):
        fitted.append(len(torch.unique(groups[places])))
        return encoder, lambda name, where: functional.normalize(rows[name][where] @ encoder.maps[name], dim=1)

    choose_space(data(rows, groups=groups), train)
    assert fitted[: len(kept)] == pytest.approx(kept, abs=2)
    assert all(found == count for found in fitted[len(kept) :])
