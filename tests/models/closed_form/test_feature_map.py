"""Input norms and feature maps against loops and the exact kernel."""

import math

import pytest
import torch

from crossclr.models.feature_map import FeatureMap, FeatureSpec, RowNorm


@pytest.fixture
def rows():
    return torch.randn(40, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 + 3


def test_input_norms(rows):
    mean = rows.mean(0)
    plain = RowNorm.fit(rows, "none")(rows)
    torch.testing.assert_close(plain, rows - mean)
    torch.testing.assert_close(RowNorm.fit(rows, "l2")(rows), rows / rows.norm(dim=1, keepdim=True))
    centred = rows - mean
    torch.testing.assert_close(RowNorm.fit(rows, "centre")(rows), centred / centred.norm(dim=1, keepdim=True))
    standard = RowNorm.fit(rows, "standardise")(rows)
    torch.testing.assert_close(standard.mean(0), torch.zeros(5, dtype=torch.float64))
    torch.testing.assert_close(standard.square().mean(0), torch.ones(5, dtype=torch.float64))


def test_a_constant_channel_is_not_blown_up(rows):
    rows[:, 2] = 7.0
    found = RowNorm.fit(rows, "standardise")(rows + 1e-4)
    assert float(found[:, 2].abs().max()) < 1e-3


def test_inner_products_are_the_gaussian_kernel(rows):
    features = FeatureMap.fit(rows, FeatureSpec(0.7, "none"))(rows)
    distances = sorted(math.dist(rows[i].tolist(), rows[j].tolist()) for i in range(40) for j in range(i))
    width = 0.7 * distances[(len(distances) - 1) // 2]
    for i in range(0, 40, 7):
        for j in range(40):
            expected = math.exp(-(math.dist(rows[i].tolist(), rows[j].tolist()) ** 2) / (2 * width**2))
            assert float(features[i] @ features[j]) == pytest.approx(expected, abs=2e-3)  # the jitter


def test_landmarks_are_capped_and_spread(rows):
    few = FeatureMap.fit(rows, FeatureSpec(1.0, "l2"), landmarks=8)
    assert few.dim == 8
    assert few.similarities is not None
    torch.testing.assert_close(few.similarities.landmarks[[0, -1]], few.norm(rows[[0, -1]]))


def test_equal_rows_give_equal_features():
    features = FeatureMap.fit(torch.ones(6, 3), FeatureSpec())(torch.ones(2, 3))
    assert torch.isfinite(features).all()


def test_linear_features_are_the_rows(rows):
    linear = FeatureMap.fit(rows, FeatureSpec(None, "l2"))
    assert linear.dim == 5
    torch.testing.assert_close(linear(rows), rows / rows.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("bandwidth", [0.0, -1.0])
def test_bandwidth_is_positive(bandwidth):
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        FeatureSpec(bandwidth)
