"""Directions against SciPy's generalised eigenproblem, scikit-learn and plain float64 loops."""

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn import cross_decomposition

from crossclr.models.canonical import Problem
from crossclr.models.pair_moments import Moments


def related(dims, count=400, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, 3))
    return {
        name: torch.tensor(hidden @ rng.normal(size=(3, dim)) + rng.normal(size=(count, dim)) + 5)
        for name, dim in dims.items()
    }


def moments_of(rows, present=None):
    moments = Moments({name: values.shape[1] for name, values in rows.items()})
    moments.add(rows, present)
    return moments


def test_two_modalities_are_ordinary_cca():
    rows = related({"video": 7, "text": 5})
    found = Problem.of(moments_of(rows)).solve(0.0)
    theirs = cross_decomposition.CCA(n_components=3, max_iter=5000, tol=1e-12)
    scores = theirs.fit_transform(rows["video"].numpy(), rows["text"].numpy())
    expected = [np.corrcoef(scores[0][:, i], scores[1][:, i])[0, 1] for i in range(3)]
    np.testing.assert_allclose(found.correlations[:3], expected, atol=1e-5)
    for name, theirs_rows in zip(rows, scores, strict=True):
        ours = ((rows[name] - rows[name].mean(0)) @ found.bases[name])[:, :3].numpy()
        for i in range(3):  # up to sign and scale
            assert abs(np.corrcoef(ours[:, i], theirs_rows[:, i])[0, 1]) > 1 - 1e-6
        np.testing.assert_allclose(ours.var(axis=0), 1, atol=1e-9)


@pytest.mark.parametrize("ridge", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("dims", [{"video": 7, "text": 5}, {"video": 3, "text": 6}])
def test_two_modalities_solve_the_generalised_eigenproblem(ridge, dims):
    moments = moments_of(related(dims))
    found = Problem.of(moments).solve(ridge)
    own = {}
    for name, dim in dims.items():
        covariance = moments.covariance(name, name).numpy()
        own[name] = covariance + ridge * np.trace(covariance) / dim * np.eye(dim)
    between = moments.covariance("video", "text").numpy()
    count = min(dims.values())
    left = np.block([[np.zeros_like(own["video"]), between], [between.T, np.zeros_like(own["text"])]])
    expected = scipy.linalg.eigh(left, scipy.linalg.block_diag(*own.values()), eigvals_only=True)[::-1][:count]
    np.testing.assert_allclose(found.correlations, expected, atol=1e-9)
    for name in dims:
        basis = found.bases[name].numpy()
        np.testing.assert_allclose(basis.T @ own[name] @ basis, np.eye(count), atol=1e-9)
    crossed = found.bases["video"].numpy().T @ between @ found.bases["text"].numpy()
    np.testing.assert_allclose(crossed, np.diag(expected), atol=1e-9)


def test_three_modalities_with_gaps_follow_the_formula():
    dims, ridge = {"video": 6, "sound": 4, "text": 5}, 0.2
    rows = related(dims)
    generator = torch.Generator().manual_seed(1)
    present = {name: torch.rand(400, generator=generator) < 0.6 for name in dims}
    found = Problem.of(moments_of(rows, present)).solve(ridge, 3)

    whiten, blocks = {}, []
    for x in dims:
        covariance = np.cov(rows[x][present[x]].numpy().T, bias=True)
        whiten[x] = np.linalg.inv(
            scipy.linalg.sqrtm(covariance + ridge * np.trace(covariance) / dims[x] * np.eye(dims[x]))
        )
    for x in dims:
        line = []
        for y in dims:
            both = (present[x] & present[y]).numpy()
            pair = np.cov(np.concatenate([rows[x][both], rows[y][both]], axis=1).T, bias=True)[: dims[x], dims[x] :]
            line.append(np.zeros((dims[x], dims[x])) if x == y else whiten[x] @ pair @ whiten[y])
        blocks.append(line)
    values, vectors = np.linalg.eigh(np.block(blocks))
    np.testing.assert_allclose(found.correlations, values[::-1][:3] / 2, atol=1e-9)
    starts = np.cumsum([0, *dims.values()])
    for i in range(3):
        parts = [whiten[x] @ vectors[start : start + dims[x], -1 - i] for x, start in zip(dims, starts, strict=False)]
        expected = np.concatenate(parts) * 3**0.5
        ours = np.concatenate([found.bases[x][:, i].numpy() for x in dims])
        np.testing.assert_allclose(ours * np.sign(ours @ expected), expected, atol=1e-9)


def test_order_of_modalities_changes_nothing():
    rows = related({"video": 6, "sound": 4, "text": 5})
    turned = dict(reversed(rows.items()))
    one, other = (Problem.of(moments_of(some)).solve(0.1, 3) for some in (rows, turned))
    torch.testing.assert_close(one.correlations, other.correlations)
    signs = torch.sign((one.bases["text"] * other.bases["text"]).sum(0))
    for name in rows:
        torch.testing.assert_close(one.bases[name], other.bases[name] * signs)


def test_channels_without_variance_do_no_harm():
    rows = related({"video": 7, "text": 5})
    wide = {**rows, "video": torch.cat([rows["video"], torch.full((400, 2), 5.0), rows["video"][:, :1]], dim=1)}
    ours, expected = (Problem.of(moments_of(some)).solve(0.0).correlations for some in (wide, rows))
    torch.testing.assert_close(ours, expected, atol=1e-7, rtol=0)


def test_errors_name_the_modality():
    rows = related({"video": 3, "text": 2}, count=10)
    with pytest.raises(ValueError, match="modality 'text' are equal"):
        Problem.of(moments_of({**rows, "text": torch.ones(10, 2)}))
    apart = torch.arange(10) < 5
    with pytest.raises(ValueError, match="at least two training samples with 'video' and another modality, got 0"):
        Problem.of(moments_of(rows, {"video": apart, "text": ~apart}))
