"""Cross-fitting: folds, scores against loops, and agreement with separate fits."""

import pytest
import torch

from crossclr.models.closed_form import ClosedForm
from crossclr.models.cross_fit import CrossFit, Grid, assign_folds, mean_recall, score_pairs


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


@pytest.mark.parametrize("shared", [False, True])
def test_mean_recall_against_a_loop(shared):
    scores = (torch.randn(30, 30, generator=torch.Generator().manual_seed(0)) * 3).round()  # with ties
    concepts = torch.arange(30) // 2 if shared else torch.arange(30)
    found = []
    for matrix in (scores, scores.T):
        for cut in (1, 5, 10):
            right = 0
            for i in range(30):
                best = max(float(matrix[i, j]) for j in range(30) if concepts[j] == concepts[i])
                wrong = [float(matrix[i, j]) for j in range(30) if concepts[j] != concepts[i]]
                right += sum(s > best for s in wrong) + sum(s == best for s in wrong) / 2 < cut
            found.append(right / 30)
    assert mean_recall(scores, concepts if shared else None) == pytest.approx(sum(found) / 6)


def test_pairs_without_common_samples_do_not_count():
    vectors = torch.eye(12)
    some, others = torch.arange(12) < 6, torch.arange(12) >= 6
    everywhere = torch.ones(12, dtype=torch.bool)
    score = score_pairs(dict.fromkeys("xyz", vectors), {"x": some, "y": others, "z": everywhere})
    assert score == pytest.approx(1.0)


@pytest.mark.parametrize("gaps", [False, True])
def test_scores_equal_separate_fits(gaps):
    rows = noisy_pairs()
    present = {"text": torch.arange(160) % 5 != 0} if gaps else {}
    search = CrossFit(rows, present, folds=3)
    # A linear map is the same for all folds.
    grid = Grid(("none",), (None,), ridges=(0.01, 1.0), widths=(4, 8), exponents=(0.0, 1.0))
    trials = search.search(grid)
    assert len(trials) == 8
    assert [trial.score for trial in trials] == sorted((trial.score for trial in trials), reverse=True)
    for trial in trials:
        for fold in range(3):
            train, test = search.fold_of != fold, search.fold_of == fold
            masks = {name: mask[train] for name, mask in present.items()}
            model = ClosedForm(trial.settings).fit({name: values[train] for name, values in rows.items()}, masks)
            here = test & present.get("text", torch.ones(160, dtype=torch.bool))
            vectors = {name: model.encode(name, values[here]) for name, values in rows.items()}
            expected = mean_recall(vectors["video"] @ vectors["text"].T)
            assert trial.scores[fold] == pytest.approx(expected, abs=0.01)  # float32 may swap a close rank
            found = search.vectors(trial.settings, fold)
            torch.testing.assert_close(found.places, test.nonzero().flatten())
            for name, values in rows.items():
                there = present.get(name, torch.ones(160, dtype=torch.bool))
                for where, vectors in ((test, found.held_out[name]), (train, found.training[name])):
                    ours = vectors[there[where]] @ vectors[there[where]].T
                    theirs = model.encode(name, values[where & there])
                    torch.testing.assert_close(ours, theirs @ theirs.T, atol=2e-3, rtol=0)


def test_each_modality_gets_its_own_bandwidth():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(300, 1, generator=generator)
    video = torch.cat([torch.sin(hidden * 40), torch.cos(hidden * 40), hidden], dim=1)  # needs a narrow kernel
    rows = {"video": video, "text": torch.cat([hidden, hidden**2], dim=1)}
    grid = Grid(("none",), (0.2, 2.0), ridges=(0.001, 0.1), widths=(8,), exponents=(1.0,))
    best = CrossFit(rows).search(grid)
    tried = {(trial.settings.of("video").bandwidth, trial.settings.of("text").bandwidth) for trial in best}
    assert len(tried) >= 3
    assert best[0].settings.of("video").bandwidth == 0.2
    assert best[0].score >= max(trial.score for trial in best)


def test_a_held_out_part_instead_of_folds():
    rows = noisy_pairs()
    fold_of = torch.where(torch.arange(160) % 4 == 0, 0, -1)
    search = CrossFit(rows, folds=fold_of)
    trials = search.search(Grid(("l2",), (1.0,), ridges=(1.0,), widths=(8,), exponents=(1.0,)))
    assert [len(trial.scores) for trial in trials] == [1]
    assert search.vectors(trials[0].settings, 0).places.tolist() == list(range(0, 160, 4))
