"""Cross-fitting: folds, scores against loops, and agreement with separate fits."""

import pytest
import torch

from crossclr.models.closed_form import EXPONENTS, NORMS, RIDGES, WIDTHS, ClosedForm, choose_linear
from crossclr.models.cross_fit import (
    MEASURES,
    CrossFit,
    Grid,
    Trial,
    assign_folds,
    average_precisions,
    query_recalls,
    score_pairs,
)
from crossclr.models.feature_map import ClosedFormSettings, FeatureSpec, FoldFeatures
from crossclr.models.pair_moments import evenly_spaced


def noisy_pairs(count=160, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(count, 6, generator=generator)
    return {
        name: hidden @ torch.randn(6, dim, generator=generator) + torch.randn(count, dim, generator=generator)
        for name, dim in {"video": 20, "text": 12}.items()
    }


def test_groups_stay_together_and_folds_are_even():
    groups = torch.arange(60) // 3
    folds = assign_folds(60, 4, groups, seed=3)
    assert all(len(folds[groups == group].unique()) == 1 for group in range(20))
    assert folds.bincount().tolist() == [15, 15, 15, 15]
    assert not torch.equal(folds, assign_folds(60, 4, groups, seed=4))
    with pytest.raises(ValueError, match="cannot split 2 groups of samples into 4 folds"):
        assign_folds(6, 4, torch.tensor([0, 0, 0, 1, 1, 1]))


def test_without_groups_each_concept_is_spread_over_the_folds():
    concepts = torch.tensor([0] * 40 + [1] * 8 + [2] * 5)[torch.randperm(53)]
    folds = assign_folds(53, 4, concepts=concepts, seed=3)
    for concept, least in ((0, 10), (1, 2), (2, 1)):
        counts = folds[concepts == concept].bincount(minlength=4)
        assert counts.min() == least
        assert counts.max() <= least + (concept == 2)
    groups = torch.arange(53) // 3  # what must not be split comes first
    assert torch.equal(assign_folds(53, 4, groups, concepts, seed=3), assign_folds(53, 4, groups, seed=3))


def counted_recall(row, right):
    """The mean of R@1, R@5 and R@10 of one query; ties with wrong items count half."""
    best = max(score for score, good in zip(row, right, strict=True) if good)
    wrong = [score for score, good in zip(row, right, strict=True) if not good]
    rank = sum(score > best for score in wrong) + sum(score == best for score in wrong) / 2
    return sum(rank < cut for cut in (1, 5, 10)) / 3


def counted_precision(row, right):
    """The average precision of one query; right items come last among equal scores."""
    order = sorted(range(len(row)), key=lambda item: (-row[item], right[item]))
    hits = [place for place, item in enumerate(order, 1) if right[item]]
    return sum(number / place for number, place in enumerate(hits, 1)) / len(hits)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("measure", "counted"), [("recall", counted_recall), ("map", counted_precision)])
def test_measures_against_loops(measure, counted, shared):
    scores = (torch.randn(30, 30, generator=torch.Generator().manual_seed(0)) * 3).round()  # with ties
    concepts = torch.arange(30) // 2 if shared else torch.arange(30)
    for matrix in (scores, scores.T):
        expected = [counted(row, (concepts == concepts[i]).tolist()) for i, row in enumerate(matrix.tolist())]
        values = MEASURES[measure](matrix, concepts if shared else None)
        assert values.tolist() == pytest.approx(expected)


def test_precision_keeps_the_order_of_close_similarities():
    generator = torch.Generator().manual_seed(0)
    close = torch.stack(
        [torch.linspace(0.9, 0.9001, 300)[torch.randperm(300, generator=generator)] for _ in range(300)]
    )
    concepts = torch.arange(300) % 7
    expected = [counted_precision(row, (concepts == concepts[i]).tolist()) for i, row in enumerate(close.tolist())]
    assert average_precisions(close, concepts).tolist() == pytest.approx(expected)


def test_scores_of_all_directions_and_pairs_without_common_samples_do_not_count():
    generator = torch.Generator().manual_seed(0)
    queries, items = ({name: torch.randn(12, 4, generator=generator) for name in "xyz"} for _ in range(2))
    present = {"x": torch.arange(12) < 6, "y": torch.arange(12) >= 6, "z": torch.ones(12, dtype=torch.bool)}
    expected = [
        query_recalls(queries[query][present[other]] @ items[item][present[other]].T)
        for other in "xy"
        for query, item in ((other, "z"), ("z", other))
    ]
    torch.testing.assert_close(score_pairs(queries, items, present), torch.cat(expected))


@pytest.mark.parametrize("measure", ["recall", "map"])
@pytest.mark.parametrize("gaps", [False, True])
def test_scores_equal_separate_fits(gaps, measure):
    rows, concepts = noisy_pairs(), torch.arange(160) // 4
    present = {"text": torch.arange(160) % 5 != 0} if gaps else {}
    search = CrossFit(rows, present, concepts=concepts, measure=measure, folds=3)
    # A linear map is the same for all folds.
    grid = Grid(("none",), (None,), ridges=(0.01, 1.0), widths=(4, 8), exponents=(0.0, 1.0))
    trials = search.search(grid)
    ridges = {tuple(trial.settings.ridge.values()) for trial in trials}
    assert ridges == {(0.01, 0.01), (0.01, 1.0), (1.0, 0.01), (1.0, 1.0)}
    assert [trial.score for trial in trials[1:]] == sorted((trial.score for trial in trials[1:]), reverse=True)
    for trial in trials:
        for fold in range(3):
            train, test = search.fold_of != fold, search.fold_of == fold
            masks = {name: mask[train] for name, mask in present.items()}
            model = ClosedForm(trial.settings).fit({name: values[train] for name, values in rows.items()}, masks)
            here = test & present.get("text", torch.ones(160, dtype=torch.bool))
            vectors = {name: model.encode(name, values[here]) for name, values in rows.items()}
            matrix = vectors["video"] @ vectors["text"].T
            both = [MEASURES[measure](one, concepts[here]).double().mean() for one in (matrix, matrix.T)]
            assert trial.scores[fold] == pytest.approx(float(sum(both)) / 2, abs=0.01)  # float32 may swap a close rank
            found = search.vectors(trial.settings, fold)
            torch.testing.assert_close(found.held_out, test.nonzero().flatten())
            torch.testing.assert_close(found.training, train.nonzero().flatten())
            for name, values in rows.items():
                there = present.get(name, torch.ones(160, dtype=torch.bool))
                ours, theirs = found.vectors[name][there], model.encode(name, values[there])
                torch.testing.assert_close(ours @ ours.T, theirs @ theirs.T, atol=2e-3, rtol=0)
                assert not bool(found.vectors[name][~there].any())


def test_gaussian_features_of_several_bandwidths_equal_those_of_each_alone():
    rows = noisy_pairs()
    grid = Grid(("l2", "standardise"), (0.5, 2.0), ridges=(1.0,), widths=(8,), exponents=(1.0,))
    trials = CrossFit(rows, folds=3).search_all(grid)
    assert len(trials) == 4
    for trial in trials:
        spec = trial.settings.of("video")
        alone = Grid((spec.input_norm,), (spec.bandwidth,), (1.0,), (8,), (1.0,))
        (again,) = CrossFit(rows, folds=3).search_all(alone)
        assert again.settings == trial.settings
        torch.testing.assert_close(torch.cat(again.values), torch.cat(trial.values))


def test_landmarks_of_a_held_out_fold_do_not_count_in_it():
    """Inner products of features are those of Nyström's method with the other landmarks, written out."""
    rows = noisy_pairs(90)["video"].double()
    fold_of, everywhere = torch.arange(90) % 3, torch.ones(90, dtype=torch.bool)
    (features,) = FoldFeatures.each(rows, everywhere, fold_of, "none", [0.5], 60)
    landmarks = evenly_spaced(90, 60)
    squares = torch.cdist(rows - rows.mean(0), rows - rows.mean(0)).square()
    among = squares[landmarks][:, landmarks]
    median = among[~torch.eye(60, dtype=torch.bool)].median()
    kernel = torch.exp(-squares / (2 * 0.5**2 * median))
    for fold in range(3):
        known = landmarks[fold_of[landmarks] != fold]
        to_known = kernel[:, known]
        expected = to_known @ torch.linalg.solve(kernel[known][:, known], to_known.T)
        values = features.values(fold).double()
        torch.testing.assert_close(values @ values.T, expected, atol=0.02, rtol=0)  # the map adds a little jitter
    everything = kernel[:, landmarks] @ torch.linalg.solve(kernel[landmarks][:, landmarks], kernel[landmarks])
    assert (everything - expected).abs().max() > 0.1


@pytest.mark.parametrize("ridge", [0.02, 1.0])
def test_gaussian_scores_are_those_of_new_samples(ridge):
    rows = noisy_pairs(240)
    search = CrossFit(rows, folds=3)
    (trial,) = search.search_all(Grid(("l2",), (0.5,), (ridge,), (64,), (1.0,)))
    expected = []
    for fold in range(3):
        train, test = search.fold_of != fold, search.fold_of == fold
        model = ClosedForm(trial.settings).fit({name: values[train] for name, values in rows.items()})
        there = model.encode("video", rows["video"][test]) @ model.encode("text", rows["text"][test]).T
        expected += [query_recalls(there), query_recalls(there.T)]
    assert trial.score == pytest.approx(float(torch.cat(expected).mean()), abs=0.02)


def test_a_difference_below_its_error_does_not_leave_the_simpler_setting():
    generator = torch.Generator().manual_seed(0)
    plain = torch.rand(400, generator=generator)
    noise = torch.randn(400, generator=generator)
    noise = (noise - noise.mean()) / noise.std()
    settings = ClosedFormSettings(FeatureSpec())
    for gain, better in ((0.9, False), (1.1, True)):  # in standard errors
        other = Trial(settings, (plain + noise + gain / 400**0.5,))
        assert other.gains_on(Trial(settings, (plain,))) == better


def test_the_search_chooses_the_simpler_norm_unless_another_gains_more_than_its_error():
    rows = noisy_pairs(400)
    grid = Grid(("l2", "standardise"), (1.0,), ridges=(1.0,), widths=(8,), exponents=(1.0,))
    chosen, other = CrossFit(rows).search(grid)[:2]
    assert {trial.settings.of("video").input_norm for trial in (chosen, other)} == {"l2", "standardise"}
    simple = next(trial for trial in (chosen, other) if trial.settings.of("video").input_norm == "l2")
    rival = other if simple is chosen else chosen
    assert (chosen is rival) == rival.gains_on(simple)
    rows = {
        name: values * torch.logspace(0, 3, values.shape[1]) for name, values in rows.items()
    }  # l2 sees one channel
    assert CrossFit(rows).search(grid)[0].settings.of("text").input_norm == "standardise"


def test_combinations_are_found_that_no_single_change_reaches():
    """Each modality needs its own ridge and its own bandwidth, and the best of all combinations is known."""
    generator = torch.Generator().manual_seed(1)
    angles = torch.rand(240, 1, generator=generator)
    video = torch.cat([torch.sin(angles * 40), torch.cos(angles * 40), angles], dim=1)
    text = torch.cat([angles, angles**2], dim=1) + 0.02 * torch.randn(240, 2, generator=generator)
    rows = {"video": video, "text": text}
    grid = Grid(("none",), (0.2, 2.0), ridges=(0.01, 1.0), widths=(8,), exponents=(1.0,))
    search = CrossFit(rows)
    best = search.search(grid)[0]
    specs = [(FeatureSpec(bandwidth, "none"), ridge) for bandwidth in (0.2, 2.0) for ridge in (0.01, 1.0)]
    candidates = [(("video", *x), ("text", *y)) for x in specs for y in specs]
    search._score_all(candidates, grid, 4)
    everything = [search._trials(candidate, grid, 4)[0].score for candidate in candidates]
    assert best.score >= sorted(everything)[-3]  # of 16; the rule for simpler settings may give up a little
    assert best.score > sorted(everything)[8]


def test_each_modality_gets_its_own_bandwidth():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(300, 1, generator=generator)
    video = torch.cat([torch.sin(hidden * 40), torch.cos(hidden * 40), hidden], dim=1)  # needs a narrow kernel
    rows = {"video": video, "text": torch.cat([hidden, hidden**2], dim=1)}
    grid = Grid(("none",), (0.2, 2.0), ridges=(0.001, 0.1), widths=(8,), exponents=(1.0,))
    best = CrossFit(rows).search(grid)
    tried = {(trial.settings.of("video").bandwidth, trial.settings.of("text").bandwidth) for trial in best}
    assert len(tried) >= 2
    assert best[0].settings.of("video").bandwidth == 0.2
    assert best[0].score >= max(trial.score for trial in best)


def test_a_held_out_part_instead_of_folds():
    rows = noisy_pairs()
    fold_of = torch.where(torch.arange(160) % 4 == 0, 0, -1)
    search = CrossFit(rows, folds=fold_of)
    trials = search.search(Grid(("l2",), (1.0,), ridges=(1.0,), widths=(8,), exponents=(1.0,)))
    assert [len(trial.scores) for trial in trials] == [1]
    assert search.vectors(trials[0].settings, 0).held_out.tolist() == list(range(0, 160, 4))


@pytest.mark.parametrize(("labels", "measure"), [(None, "recall"), (torch.arange(160) // 4, "map")])
def test_linear_settings_are_the_best_of_the_whole_grid(labels, measure):
    rows = noisy_pairs()
    rows["video"] += 3 * torch.arange(20)
    present = {"text": torch.arange(160) % 5 > 0}
    rows["text"][~present["text"]] = torch.nan
    folds = assign_folds(160, 4, concepts=labels)
    search = CrossFit(rows, present, concepts=labels, measure=measure, folds=folds)
    best = search.search_all(Grid(NORMS, (None,), RIDGES, WIDTHS, EXPONENTS))
    chosen = choose_linear(rows, folds, present, labels, measure)
    scores = {
        (
            str(trial.settings.of("video")),
            trial.settings.ridge_of("text"),
            trial.settings.width,
            trial.settings.exponent,
        ): trial.score
        for trial in best
    }
    found = scores[str(chosen.of("video")), chosen.ridge_of("text"), chosen.width, chosen.exponent]
    assert found == pytest.approx(best[0].score, abs=2e-3)
    assert best[0].score > best[-1].score + 0.02
