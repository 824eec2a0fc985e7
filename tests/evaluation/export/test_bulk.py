"""Shards of features become shards of embeddings: every sample once, whoever does it and whoever is lost on the way."""

import json
import shutil

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr import api
from crossclr.data import DataError
from crossclr.evaluation import bulk
from crossclr.evaluation.bulk import embed_shards
from crossclr.models import embed_data
from crossclr.search.run_items import read_shard_items
from crossclr.training.config_files import check_config
from tests.support.pairs import first, second

SHARDS, ROWS = 6, 40


def write_shards(folder, shards=SHARDS, rows=ROWS, seed=0):
    """Sequences of 1 to 3 rows in Parquet and single vectors in HDF5, ids counted through."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(shards * rows, 4))
    a = hidden @ rng.normal(size=(4, 6)) + 0.1 * rng.normal(size=(shards * rows, 6))
    b = hidden @ rng.normal(size=(4, 5)) + 0.1 * rng.normal(size=(shards * rows, 5))
    for number in range(shards):
        here = slice(number * rows, (number + 1) * rows)
        ids = [f"s{place}" for place in range(here.start, here.stop)]
        if number % 3 == 2:
            with h5py.File(folder / f"part{number:03}.h5", "w") as file:
                file["id"] = np.array([name.encode() for name in ids])
                file["video"], file["text_features"] = a[here].astype(np.float32), b[here].astype(np.float32)
        else:
            sequences = [[row.tolist()] * (1 + place % 3) for place, row in enumerate(a[here])]
            columns = {
                "id": ids,
                "video": sequences,
                "text_features": b[here].tolist(),
                "text": [f"text {name}" for name in ids],
            }
            pq.write_table(pa.table(columns), folder / f"part{number:03}.parquet", row_group_size=16)
    return folder


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("bulk") / "features")


@pytest.fixture(scope="module")
def run(features, tmp_path_factory):
    """A run that was trained on the shards themselves."""
    values = {
        "name": "bulk",
        "data": {
            "kind": "shards",
            "root": str(features),
            "shards": {"train": "part00[2-5].*", "test": "part00[01].parquet", "all": "*"},
        },
        "splits": {"validate": None},
        "model": {"dim": 8, "encoder": {"kind": "mlp", "blocks": 0}},
        "loss": {"local": {"name": "clip"}},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "schedule": {"name": "constant", "warmup_epochs": 0},
        "training": {"epochs": 12, "batch_size": 16, "accelerator": "cpu", "threads": 1},
    }
    return api.train(check_config(values), out=tmp_path_factory.mktemp("bulk") / "run")


def joined(folder):
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    ids = [name for table in tables for name in table.column("id").to_pylist()]
    vectors = [
        np.concatenate([np.stack(t.column(name).to_numpy()) for t in tables]) for name in ("video", "text_features")
    ]
    return ids, vectors


def test_training_on_shards_learns(run):
    assert run.results["test"]["clip/text->video"]["R@10"] > 40
    assert run.results["cca_baseline"] is not None


def test_embeddings_equal_those_of_the_source(run, features, tmp_path):
    counts = embed_shards(run, [features], tmp_path / "out", batch_size=7)
    assert counts == {"shards": SHARDS, "samples": SHARDS * ROWS, "embedded": SHARDS}
    ids, (a, b) = joined(tmp_path / "out")
    wanted = embed_data(run.load_model(), run.open_data().where(split="all"))
    assert tuple(ids) == wanted.clip_keys == tuple(f"s{place}" for place in range(SHARDS * ROWS))
    np.testing.assert_allclose(a, first(wanted).rows, atol=1e-6)
    np.testing.assert_allclose(b, second(wanted).rows, atol=1e-6)
    table = pq.read_table(tmp_path / "out" / "part000.parquet")
    assert table.column("text").to_pylist()[:2] == ["text s0", "text s1"]
    assert pa.types.is_fixed_size_list(table.schema.field("video").type)


def test_finished_shards_are_left_alone(run, features, tmp_path):
    out = tmp_path / "out"
    seen = []
    embed_shards(run, [features], out, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, SHARDS) for done in range(SHARDS + 1)]
    times = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (out / "part001.parquet").unlink()
    assert embed_shards(run, [features], out)["embedded"] == 1
    after = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert {name for name in times if after[name] != times[name]} == {"part001.parquet"}


def test_a_stop_in_a_shard_leaves_no_half_file(run, features, tmp_path, monkeypatch):
    plain, calls = bulk._encode, []

    def failing(*arguments):
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return plain(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(bulk, "_encode", failing)
        with pytest.raises(KeyboardInterrupt):
            embed_shards(run, [features], tmp_path / "out")
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["embedding.json", "part000.parquet"]
    assert embed_shards(run, [features], tmp_path / "out")["embedded"] == SHARDS - 1


def test_faults_are_told(run, features, tmp_path):
    embed_shards(run, [features / "part000.parquet"], tmp_path / "out")
    mark = tmp_path / "out" / "embedding.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "weights": "others"}))
    with pytest.raises(ValueError, match="holds embeddings of another model"):
        embed_shards(run, [features], tmp_path / "out")
    with pytest.raises(ValueError, match="holds other Parquet files"):
        embed_shards(run, [features], features)
    pq.write_table(pa.table({"id": ["x"], "video": [[1.0, 2.0]]}), tmp_path / "narrow.parquet")
    with pytest.raises(DataError, match=r"narrow\.parquet: video has 2 channels but the model was trained on 6"):
        embed_shards(run, [tmp_path / "narrow.parquet"], tmp_path / "other")


def test_one_modality_is_enough(run, tmp_path):
    pq.write_table(pa.table({"id": [7], "text_features": [[1.0] * 5]}), tmp_path / "texts.parquet")
    embed_shards(run, [tmp_path / "texts.parquet"], tmp_path / "out")
    found = pq.read_table(tmp_path / "out" / "texts.parquet")
    assert found.column_names == ["id", "text_features"]
    assert found.column("id").to_pylist() == ["7"]


def test_samples_may_lack_a_modality(run, tmp_path):
    rows = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32).tolist()
    whole = {"id": ["x", "y", "z"], "video": rows, "text_features": [[1.0] * 5] * 3}
    (tmp_path / "whole").mkdir()
    pq.write_table(pa.table(whole), tmp_path / "whole" / "x.parquet", row_group_size=2)
    (tmp_path / "gaps").mkdir()
    gaps = whole | {"video": [None, rows[1], rows[2]], "text_features": [[1.0] * 5, [1.0] * 5, None]}
    pq.write_table(pa.table(gaps), tmp_path / "gaps" / "x.parquet", row_group_size=2)
    found = {}
    for name in ("whole", "gaps"):
        embed_shards(run, [tmp_path / name], tmp_path / "out" / name)
        found[name] = pq.read_table(tmp_path / "out" / name / "x.parquet")
    for column, absent in (("video", 0), ("text_features", 2)):
        expected = found["whole"].column(column).to_pylist()
        expected[absent] = None
        for one, other in zip(found["gaps"].column(column).to_pylist(), expected, strict=True):
            assert one == (None if other is None else pytest.approx(other, abs=1e-6))
    digest = run.digest()
    names = {"video": "video", "text": "text_features"}
    items = read_shard_items([tmp_path / "out" / "gaps"], len(expected[0]), digest, names)
    assert [item.name for item in items["video"].items] == ["video/y", "video/z"]
    assert [item.name for item in items["text"].items] == ["text/x", "text/y"]


# On a cluster


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one CPU each on this machine; the second may be killed."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    small = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=small)
    second = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
    yield cluster, second
    ray.shutdown()
    cluster.shutdown()


def test_a_lost_node_loses_nothing(run, cluster, tmp_path):
    ray_cluster, second = cluster
    features = write_shards(tmp_path / "many", shards=10, rows=400, seed=1)
    out = tmp_path / "out"
    killed = []

    def kill_once(done, total):
        if done == 2:
            ray_cluster.remove_node(second, allow_graceful=False)
            killed.append(done)

    counts = embed_shards(run, [features], out, engine="ray", workers=2, batch_size=64, progress=kill_once)
    assert killed == [2]
    assert counts == {"shards": 10, "samples": 4000, "embedded": 10}
    ids, vectors = joined(out)
    assert ids == [f"s{place}" for place in range(4000)]  # each once, in its place
    embed_shards(run, [features], tmp_path / "alone", batch_size=64)
    for found, wanted in zip(vectors, joined(tmp_path / "alone")[1], strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_a_run_that_is_trained_again_at_the_same_place_is_loaded_again(features, run, tmp_path):
    place, shard = tmp_path / "run", features / "part000.parquet"
    vectors = []
    for seed in (1, 2):
        config = run.config.model_copy(update={"seed": seed})
        shutil.rmtree(place, ignore_errors=True)
        api.train(config, out=place, baseline=False)
        embed_shards(place, [shard], tmp_path / f"out{seed}")
        vectors.append(np.stack(pq.read_table(tmp_path / f"out{seed}" / shard.name)["video"].to_numpy()))
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
