"""Concepts: equal ids in batches, any sample of the concept is right in metrics, and both ways to name them."""

import json

import numpy as np
import pytest
import torch

from crossclr.evaluation import evaluate_embeddings
from crossclr.features import DataError, batches, open_source, parse_data_config
from crossclr.features.sources.in_memory import MemorySource
from crossclr.models.embeddings import Embeddings, Vectors

TEXTS = ["Red cat", "red  CAT", "dog", "Dog", "bird"]


@pytest.fixture
def data(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "video.npy", rng.normal(size=(5, 3)).astype(np.float32))
    np.save(tmp_path / "text.npy", rng.normal(size=(5, 4)).astype(np.float32))
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    (tmp_path / "labels.json").write_text(json.dumps({str(row): "xxyyz"[row] for row in range(5)}))

    def opened(concepts, texts="texts.json"):
        modalities = {"video": {"values": "video.npy"}, "text": {"values": "text.npy", "texts": texts}}
        values = {"kind": "arrays", "root": str(tmp_path), "modalities": modalities, "concepts": concepts}
        return open_source(parse_data_config(values))

    return opened


@pytest.mark.parametrize("concepts", [{"from": "text"}, "labels.json"])
def test_samples_of_one_concept_have_equal_ids(data, concepts):
    for source in (data(concepts), MemorySource(data(concepts))):
        batch = next(batches(source, "train", batch_size=5, seed=0, epoch=0))
        ids = dict(zip(batch.keys, batch.ids.tolist(), strict=True))
        assert ids["0"] == ids["1"] != ids["2"]
        assert ids["2"] == ids["3"] != ids["4"]
        assert batch.video_ids.tolist() == batch.ids.tolist()
    plain = next(batches(data(None), "train", batch_size=5, seed=0, epoch=0))
    assert len(set(plain.ids.tolist())) == 5


def test_texts_are_needed(data):
    with pytest.raises(DataError, match="no modality has texts"):
        data({"from": "text"}, texts=None)


def test_any_sample_of_the_concept_is_right():
    rows = {"video": torch.eye(3), "text": torch.eye(3)[[1, 0, 2]]}  # the first two find each other's partner
    vectors = {name: Vectors(values, torch.arange(3)) for name, values in rows.items()}
    keys, ones = ("x", "y", "z"), torch.ones(3, dtype=torch.int64)
    alone = evaluate_embeddings(Embeddings(vectors, keys, ones, keys))
    together = evaluate_embeddings(Embeddings(vectors, keys, ones, keys, concepts=torch.tensor([7, 7, 9])))
    for direction in ("clip/text->video", "clip/video->text"):
        assert alone[direction]["R@1"] == pytest.approx(100 / 3)
        assert together[direction]["R@1"] == 100
