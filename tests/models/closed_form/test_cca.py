"""CCA against a generalised eigenproblem, NumPy's covariances and scikit-learn."""

import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn import cross_decomposition

from crossclr.models.closed_form import Moments, fit_cca


def paired(count=400, dim_a=7, dim_b=5, seed=0):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(count, 3))
    a = hidden @ rng.normal(size=(3, dim_a)) + rng.normal(size=(count, dim_a)) + 100
    b = hidden @ rng.normal(size=(3, dim_b)) + rng.normal(size=(count, dim_b)) - 7
    return torch.tensor(a), torch.tensor(b)


def gather(a, b, batch=64):
    moments = Moments({"a": a.shape[1], "b": b.shape[1]})
    for start in range(0, len(a), batch):
        moments.add({"a": a[start : start + batch], "b": b[start : start + batch]})
    return moments


@pytest.mark.parametrize("batch", [1, 13, 64, 1000])
def test_moments_agree_with_numpy(batch):
    a, b = paired()
    moments = gather(a, b, batch)
    expected = np.cov(np.concatenate([a, b], axis=1).T, bias=True)
    assert moments.count("a", "b") == 400
    np.testing.assert_allclose(moments.mean("a"), a.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.mean("b"), b.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.covariance("a", "a"), expected[:7, :7], atol=1e-10)
    np.testing.assert_allclose(moments.covariance("b", "b"), expected[7:, 7:], atol=1e-10)
    np.testing.assert_allclose(moments.covariance("a", "b"), expected[:7, 7:], atol=1e-10)


def test_moments_keep_their_digits_far_from_zero():
    a, b = paired()
    far = gather(a + 1e6, b - 1e6)
    np.testing.assert_allclose(far.covariance("a", "b"), gather(a, b).covariance("a", "b"), atol=1e-6)


@pytest.mark.parametrize("strength", [0.001, 0.1, 1.0])
@pytest.mark.parametrize("dims", [(7, 5), (3, 6)])
def test_directions_solve_the_generalised_eigenproblem(strength, dims):
    a, b = paired(dim_a=dims[0], dim_b=dims[1])
    moments = gather(a, b)
    cca = fit_cca(moments, (strength,))[0]
    aa, bb, ab = (moments.covariance(*pair).numpy() for pair in ("aa", "bb", "ab"))
    aa = aa + strength * np.trace(aa) / len(aa) * np.eye(len(aa))
    bb = bb + strength * np.trace(bb) / len(bb) * np.eye(len(bb))
    left = np.block([[np.zeros_like(aa), ab], [ab.T, np.zeros_like(bb)]])
    right = scipy.linalg.block_diag(aa, bb)
    expected = np.sort(scipy.linalg.eigh(left, right, eigvals_only=True))[::-1][: min(dims)]
    np.testing.assert_allclose(cca.correlations, expected, atol=1e-9)
    basis_a, basis_b = cca.bases["a"].numpy(), cca.bases["b"].numpy()
    np.testing.assert_allclose(basis_a.T @ aa @ basis_a, np.eye(min(dims)), atol=1e-9)
    np.testing.assert_allclose(basis_b.T @ bb @ basis_b, np.eye(min(dims)), atol=1e-9)
    np.testing.assert_allclose(basis_a.T @ ab @ basis_b, np.diag(expected), atol=1e-9)


def test_correlations_agree_with_scikit_learn():
    a, b = paired()
    cca = fit_cca(gather(a, b), (0.0,))[0]
    theirs = cross_decomposition.CCA(n_components=3, max_iter=5000, tol=1e-12).fit(a.numpy(), b.numpy())
    xa, xb = theirs.transform(a.numpy(), b.numpy())
    expected = [np.corrcoef(xa[:, i], xb[:, i])[0, 1] for i in range(3)]
    np.testing.assert_allclose(cca.correlations[:3], expected, atol=1e-5)
    ours_a, ours_b = cca.encode("a", a), cca.encode("b", b)
    for i in range(5):
        assert np.corrcoef(ours_a[:, i], ours_b[:, i])[0, 1] == pytest.approx(float(cca.correlations[i]), abs=1e-5)


def test_projection_options():
    a, b = paired()
    cca = fit_cca(gather(a, b))[0]
    whole = cca.encode("b", b)
    assert whole.shape == (400, 5)
    assert whole.dtype == torch.float32
    torch.testing.assert_close(cca.encode("b", b, 2), whole[:, :2])
    torch.testing.assert_close(cca.encode("b", b, 3, 2.0), whole[:, :3] * cca.correlations[:3].float() ** 2)


def test_channels_without_variance_do_no_harm():
    a, b = paired()
    wide = torch.cat([a, torch.full((400, 2), 5.0), a[:, :1]], dim=1)  # two dead channels and a copy
    correlations = fit_cca(gather(wide, b), (0.0,))[0].correlations
    torch.testing.assert_close(correlations, fit_cca(gather(a, b), (0.0,))[0].correlations, atol=1e-7, rtol=0)


def test_faults_are_named():
    moments = Moments({"a": 2, "b": 3})
    with pytest.raises(ValueError, match="at least two"):
        fit_cca(moments)
    with pytest.raises(ValueError, match=r"\{'a': 2, 'b': 3\} channels"):
        moments.add({"a": torch.ones(4, 2), "b": torch.ones(4, 2)})
    rows = torch.ones(4, 3)
    rows[2, 1] = torch.nan
    with pytest.raises(ValueError, match="training sample 2 holds NaN or infinity in modality 'b', channel 1"):
        moments.add({"a": torch.ones(4, 2), "b": rows})
    moments.add({"a": torch.ones(4, 2), "b": torch.randn(4, 3, generator=torch.Generator().manual_seed(0))})
    with pytest.raises(ValueError, match="modality 'a' are equal"):
        fit_cca(moments)
