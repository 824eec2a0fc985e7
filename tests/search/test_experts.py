"""Search with experts that have weights: exact scores, and which expert decided."""

import numpy as np
import pytest

from crossclr import api
from crossclr.search import Searcher, build_index
from crossclr.search.onnx_export import ExportError, export_run
from crossclr.search.results import plain_hit
from crossclr.training import load_config

EXPERTS = {"noto": 1280, "fluent": 1280, "twemoji": 1280}
SMALL = {
    "training.epochs": 1,
    "model.dim": 16,
    "model.encoder": {"kind": "mlp", "blocks": 0},
    "model.encoders": {"image": {"kind": "experts", "fusion": "mee", "experts": EXPERTS}},
    "splits.validate": None,
}


@pytest.fixture(scope="module")
def searcher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts") / "run"
    run = api.train(load_config("emoji-experts", SMALL), out=folder, baseline=False)
    build_index(run.path, splits=["val"])
    opened = Searcher.open(run.path)
    yield opened
    opened.close()


@pytest.mark.slow
def test_results_have_the_exact_similarity_and_say_which_expert_decided(searcher):
    query = np.random.default_rng(0).standard_normal(48).astype(np.float32)
    hits = searcher.search(vector=query, find="image", top=5)
    rows = {row[0]: row[1] for row in searcher.items.columns("id", "name", where="image")}
    stored = searcher.indexes["image"].vectors(np.array(list(rows))).astype(np.float64).reshape(-1, 3, 16)
    asked = query.astype(np.float64).reshape(3, 16)
    scores = []
    for item in stored:
        weights = [np.linalg.norm(item[m]) * np.linalg.norm(asked[m]) for m in range(3)]
        cosines = [item[m] @ asked[m] / weights[m] for m in range(3)]
        scores.append(sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights))
    best = np.argsort(-np.array(scores))[:5]
    assert [hit.item.name for hit in hits] == [list(rows.values())[place] for place in best]
    np.testing.assert_allclose([hit.score for hit in hits], np.array(scores)[best], atol=1e-6)
    for hit in hits:
        assert set(hit.experts) <= set(EXPERTS)
        assert sum(hit.experts.values()) == pytest.approx(1)
        assert list(hit.experts.values()) == sorted(hit.experts.values(), reverse=True)
    assert set(plain_hit(hits[0])["experts"]) == set(hits[0].experts)


@pytest.mark.slow
def test_a_sentence_finds_items_by_its_own_weights(searcher):
    assert len(searcher.search(text="a red apple", top=3)) == 3


@pytest.mark.slow
def test_such_encoders_are_not_exported(searcher, tmp_path):
    pytest.importorskip("onnxruntime")
    with pytest.raises(ExportError, match="experts"):
        export_run(searcher.folder.parents[1], tmp_path / "onnx")
