"""Concepts: equal ids in batches, any sample of the concept is right in metrics, and both ways to name them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from crossclr.data import DataError, batches, open_data
from crossclr.data.kinds import parse_data_config
from crossclr.evaluation import evaluate_embeddings
from crossclr.models.embeddings import Embeddings, Vectors
from tests.support.tiny_runs import write_coot

COOT = {"kind": "coot", "video": "video.h5", "text": "text.h5", "add_stop_frame": 0}
TEXTS = ["Red cat", "red  CAT", "dog", "Dog", "bird"]


@pytest.fixture
def open_with(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "video.npy", rng.normal(size=(5, 3)).astype(np.float32))
    np.save(tmp_path / "text.npy", rng.normal(size=(5, 4)).astype(np.float32))
    (tmp_path / "texts.json").write_text(json.dumps(TEXTS))
    (tmp_path / "labels.json").write_text(json.dumps({str(row): "xxyyz"[row] for row in range(5)}))

    def opened(concepts, texts="texts.json"):
        modalities = {"video": {"values": "video.npy"}, "text": {"values": "text.npy", "texts": texts}}
        values = {"kind": "arrays", "root": str(tmp_path), "modalities": modalities, "concepts": concepts}
        return open_data(parse_data_config(values))

    return opened


@pytest.mark.parametrize("concepts", [{"from": "text"}, "labels.json"])
def test_samples_of_one_concept_have_equal_ids(open_with, concepts):
    for data in (open_with(concepts), open_with(concepts).in_memory()):
        batch = next(batches(data.where(split="train"), batch_size=5, seed=0, epoch=0))
        ids = dict(zip(batch.keys, batch.ids.tolist(), strict=True))
        assert ids["0"] == ids["1"] != ids["2"]
        assert ids["2"] == ids["3"] != ids["4"]
        assert batch.video_ids.tolist() == batch.ids.tolist()
    plain = next(batches(open_with(None).where(split="train"), batch_size=5, seed=0, epoch=0))
    assert len(set(plain.ids.tolist())) == 5


@pytest.mark.parametrize("two_level", [True, False])
@pytest.mark.parametrize("concepts", [{"from": "text"}, "action"])
def test_clips_of_one_concept_have_equal_ids(tmp_path, concepts, two_level):
    meta = json.loads((write_coot(tmp_path) / "meta_all.json").read_text())
    for number, entry in enumerate(meta.values()):
        for place, segment in enumerate(entry["segments"]):
            segment |= {"text": f"Step  {number} {place % 2}".swapcase(), "action": f"step {number} {place % 2}"}
    meta["train01"]["segments"][0] |= {"text": "step 0 1", "action": "step 0 1"}
    (tmp_path / "meta_all.json").write_text(json.dumps(meta))
    data = open_data(parse_data_config(COOT | {"root": str(tmp_path), "concepts": concepts, "two_level": two_level}))
    chosen = data.where(split="train")
    samples = [chosen[place] for place in range(len(chosen))]
    ids = [number for sample in samples for number in sample.clip_ids]
    labels = [segment["action"] for key in sorted(meta) if "train" in key for segment in meta[key]["segments"]]
    assert [[x == y for x in ids] for y in ids] == [[x == y for x in labels] for y in labels]
    if two_level:  # a whole video shows its own thing
        assert len({sample.video_id for sample in samples}) == len(samples)


def test_a_field_that_segments_lack(tmp_path):
    write_coot(tmp_path)
    with pytest.raises(DataError, match=r"no field 'action'.*data\.concepts"):
        open_data(parse_data_config(COOT | {"root": str(tmp_path), "concepts": "action"}))


@pytest.mark.parametrize("concepts", [None, {"from": "text"}])
def test_shards_have_concepts(tmp_path, concepts):
    rows = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32).tolist()
    table = {"id": list("abcde"), "video": rows, "text_features": rows, "text": TEXTS}
    if concepts is None:
        table["concept"] = list("xxyyz")
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    modalities = {"video": {}, "text": {}}
    values = {"kind": "shards", "root": str(tmp_path), "shards": {"train": "x.parquet"}, "modalities": modalities}
    data = open_data(parse_data_config(values | {"concepts": concepts}))
    ids = [data[place].clip_ids[0] for place in range(5)]
    assert ids[0] == ids[1] != ids[2] == ids[3] != ids[4]


def test_texts_are_needed(open_with):
    with pytest.raises(DataError, match="no modality has texts"):
        open_with({"from": "text"}, texts=None)


def test_any_sample_of_the_concept_is_right():
    rows = {"video": torch.eye(3), "text": torch.eye(3)[[1, 0, 2]]}  # the first two find each other's partner
    vectors = {name: Vectors(values, torch.arange(3)) for name, values in rows.items()}
    keys, ones = ("x", "y", "z"), torch.ones(3, dtype=torch.int64)
    alone = evaluate_embeddings(Embeddings(vectors, keys, ones, keys))
    together = evaluate_embeddings(Embeddings(vectors, keys, ones, keys, concepts=torch.tensor([7, 7, 9])))
    for direction in ("clip/text->video", "clip/video->text"):
        assert alone[direction]["R@1"] == pytest.approx(100 / 3)
        assert together[direction]["R@1"] == 100
