"""From run folders to caption sets: embeddings of every kind, raw rows, untrained encoders."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from crossclr import api
from crossclr.captions.caption_config import CaptionDataConfig
from crossclr.captions.caption_set import load_caption_set, untrained_model
from crossclr.evaluation.embedding_files import save_embeddings
from crossclr.evaluation.evaluate import embed_run
from crossclr.training import Run
from crossclr.training.config_files import check_config
from tests.support.pairs import first, keys_of, read
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    root = write_coot(tmp_path_factory.mktemp("data") / "tiny")
    values = tiny_values(root) | {"training": {"epochs": 2, "batch_size": 4, "accelerator": "cpu", "workers": 0}}
    return api.train(check_config(values), out=tmp_path_factory.mktemp("runs") / "tiny", baseline=False)


def load(run, features="clip", part="val", **options):
    return load_caption_set(CaptionDataConfig(run=str(run.path), features=features, **options), part, max_rows=4)


@pytest.mark.parametrize("features", ["clip", "vid", "vidclip", "vidclipctx"])
def test_rows_are_unit_parts_side_by_side_in_coots_order(run, features):
    found = load(run, features)
    embedded = embed_run(run, split="val")
    clip = 0
    for video, count in enumerate(embedded.clip_counts.tolist()):
        for _ in range(count):
            parts = {
                "vid": normalize(first(embedded).videos[video], dim=0),
                "clip": normalize(first(embedded).rows[clip], dim=0),
                "ctx": normalize(first(embedded).context[video], dim=0),
            }
            expected = torch.cat([part for name, part in parts.items() if name in features])
            torch.testing.assert_close(found.features[clip], expected)
            clip += 1
    assert found.counts == tuple(embedded.clip_counts.tolist())
    assert found.rows.tolist() == [1] * clip


def test_times_and_texts_come_from_the_data(run):
    found = load(run)
    meta = json.loads((run.config.data.resolve(run.config.data.meta, "meta")).read_text())
    wanted = [(s["start_sec"], s["stop_sec"]) for key in found.keys for s in meta[key]["segments"]]
    assert list(found.times) == wanted
    assert found.texts[:2] == (("do 0",), ("do 1",))
    assert found.references()[found.keys[0]] == [" ".join(f"do {i}" for i in range(found.counts[0]))]


def test_files_give_the_same_rows_as_the_run(run, tmp_path):
    save_embeddings(embed_run(run, split="val"), tmp_path / "val.h5")
    from_file = load_caption_set(CaptionDataConfig(features="vidclip"), str(tmp_path / "val.h5"))
    from_run = load(run, "vidclip")
    torch.testing.assert_close(from_file.features, from_run.features)
    assert from_file.keys == from_run.keys
    assert from_file.texts == from_run.texts


def test_raw_rows_are_those_of_the_data_sampled_down(run):
    found = load(run, "raw")
    source = run.open_data()
    rows = [clip for key in keys_of(source, "val") for clip in first(read(source, key)).clips]
    assert found.rows.tolist() == [min(4, len(clip)) for clip in rows]
    assert max(len(clip) for clip in rows) > 4
    parts = torch.split(found.features, found.rows.tolist())
    for clip, part in zip(rows, parts, strict=True):
        if len(clip) <= 4:
            np.testing.assert_array_equal(part.numpy(), clip)
        else:
            known = {row.tobytes() for row in np.asarray(clip)}
            assert all(row.tobytes() in known for row in part.numpy())


def test_an_untrained_encoder_is_the_one_that_training_began_with(run, tmp_path):
    values = tiny_values(run.config.data.resolve(run.config.data.meta, "meta").parent)
    values["training"] = {"epochs": 1, "batch_size": 4, "accelerator": "cpu", "workers": 0}
    values["optimiser"] = {"learning_rate": 1e-30}
    still = api.train(check_config(values), out=tmp_path / "still", baseline=False)
    before = still.load_model("last").state_dict()
    torch.manual_seed(5)
    state = torch.get_rng_state()
    fresh = untrained_model(Run.open(run.path))
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in fresh.state_dict().items():
        torch.testing.assert_close(weight, before[name])
    assert not torch.allclose(load(run).features, load(run, untrained=True).features)


def test_faults_are_named(run):
    with pytest.raises(ValueError, match="no split 'nowhere'"):
        load(run, part="nowhere")
    with pytest.raises(ValueError, match="come from a run folder"):
        CaptionDataConfig(untrained=True)
    with pytest.raises(ValueError, match="does not name a run folder"):
        load_caption_set(CaptionDataConfig(), "val")
