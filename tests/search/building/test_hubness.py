import numpy as np
import pytest

from crossclr.search.building.hubness import correction, count_occurrences, explain, influence
from crossclr.search.building.map_layout import centre, place_among, project
from crossclr.search.building.run_items import unit
from crossclr.search.index.faiss_index import FaissIndex
from tests.support.vectors import cosine


def test_occurrences_equal_a_plain_count():
    rng = np.random.default_rng(0)
    items, queries = unit(rng.standard_normal((40, 5))), unit(rng.standard_normal((30, 5)))
    index = FaissIndex(5)
    index.add(np.arange(40), items)
    counts, tried = count_occurrences(index, queries, 40)
    expected = np.zeros(40, dtype=int)
    for query in queries:
        for row in sorted(range(40), key=lambda row: -float(query @ items[row]))[:10]:
            expected[row] += 1
    np.testing.assert_array_equal(counts, expected)
    assert tried == 30


def test_influence_is_the_mean_cosine_to_all_others():
    rows = np.random.default_rng(1).standard_normal((12, 6)).astype(np.float32)
    scores, shares = influence(rows)
    for i in range(12):
        others = [cosine(rows[i], rows[j]) for j in range(12) if j != i]
        assert scores[i] == pytest.approx(np.mean(others), abs=1e-6)
        assert shares[i] == pytest.approx(np.mean([other < scores[i] for other in scores]))


def test_the_correction_rides_on_one_more_channel():
    rng = np.random.default_rng(2)
    middle = rng.standard_normal(8)
    queries = unit(middle + rng.standard_normal((60, 8)))
    items = unit(np.linspace(0, 2, 25)[:, None] * middle + rng.standard_normal((25, 8)))  # the last ones are hubs
    asked = FaissIndex(8)
    asked.add(np.arange(60), queries)
    bias = correction(asked, items)
    for row in range(25):
        assert bias[row, 0] == pytest.approx(-0.5 * np.sort(queries @ items[row])[-10:].mean(), abs=1e-6)
    index = FaissIndex(9)
    index.add(np.arange(25), np.concatenate([items, bias], axis=1))
    scores, ids = index.search(np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0), 25)
    expected = queries @ items.T + bias[:, 0]
    np.testing.assert_allclose(scores, -np.sort(-expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(expected, ids, 1), scores, atol=1e-6)
    plain, corrected = FaissIndex(8), index
    plain.add(np.arange(25), items)
    before = count_occurrences(plain, queries, 25)[0]
    after = count_occurrences(corrected, np.pad(queries, ((0, 0), (0, 1)), constant_values=1.0), 25)[0]
    assert after.std() < before.std()  # that is what it is for
    with pytest.raises(ValueError, match="none"):
        correction(FaissIndex(8), items)


def test_sentences_about_special_items_only():
    assert explain(5, 5.0, 100, 0.5, 0.1, 0.9) == []
    assert "Hard to find" in explain(0, 5.0, 100, 0.5, 0.1, 0.9)[0]
    assert "A hub" in explain(50, 5.0, 100, 0.5, 0.1, 0.9)[0]
    assert "prunes" in explain(5, 5.0, 100, 0.99, 0.95, 0.9)[0]
    assert "Rather influential" in explain(5, 5.0, 100, 0.97, 0.5, 0.9)[0]
    assert explain(0, 0.0, 0, 0.5, 0.1, 0.9) == []


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
