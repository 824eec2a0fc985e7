import numpy as np
import pytest

from crossclr.search.item_map import centre, place_among, project


def test_the_map_keeps_clusters_together_and_is_repeatable():
    rng = np.random.default_rng(3)
    centres = rng.standard_normal((4, 20)) * 4
    rows = (centres[np.arange(400) % 4] + 0.3 * rng.standard_normal((400, 20))).astype(np.float32)
    modality = (np.arange(400) % 8 >= 4).astype(np.int64)
    rows[modality == 1] += 50  # the gap between modalities, which the map leaves out
    places = project(rows, modality, landmarks=200)
    np.testing.assert_array_equal(places, project(rows, modality, landmarks=200))
    assert places.min() >= 0
    assert places.max() <= 1
    means = np.stack([places[np.arange(400) % 4 == number].mean(0) for number in range(4)])
    nearest = np.argmin(((places[:, None] - means) ** 2).sum(2), axis=1)
    assert (nearest == np.arange(400) % 4).mean() > 0.95
    np.testing.assert_allclose(centre(rows, modality)[modality == 1].mean(0), 0, atol=0.05)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 25])
def test_few_points_have_places_too(count):
    places = project(
        np.random.default_rng(4).standard_normal((count, 6)).astype(np.float32), np.zeros(count, dtype=np.int64)
    )
    assert places.shape == (count, 2)
    assert np.isfinite(places).all()


def test_a_new_item_stands_where_its_like_stand():
    known = np.eye(4, dtype=np.float32)
    places = np.array([[0.1, 0.1], [0.9, 0.1], [0.1, 0.9], [0.9, 0.9]], dtype=np.float32)
    np.testing.assert_allclose(place_among(known[[2]], known, places), places[[2]], atol=0.03)
