"""An index of shards finds what a plain product of the embeddings says."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr.data import DataError
from crossclr.evaluation.bulk import embed_shards
from crossclr.search import Searcher, build_index
from crossclr.training import Run
from tests.support.pairs import first, keys_of, read, second
from tests.support.vectors import unit


@pytest.fixture(scope="module")
def copied(trained, tmp_path_factory):
    path = tmp_path_factory.mktemp("shards") / "run"
    shutil.copytree(trained.path, path)
    return Run.open(path)


@pytest.fixture(scope="module")
def folders(copied, tmp_path_factory):
    """Features and embeddings of the validation split in two shards; one id stands twice."""
    root = tmp_path_factory.mktemp("shards")
    source = copied.open_data()
    keys = list(keys_of(source, "val"))
    keys = [*keys[:60], keys[3]]
    samples = [read(source, key) for key in keys]
    (root / "features").mkdir()
    for number, here in enumerate((slice(0, 30), slice(30, None))):
        part = samples[here]
        columns = {
            "id": [sample.key for sample in part],
            "image": [first(sample).clips[0].tolist() for sample in part],
            "text_features": [second(sample).clips[0].tolist() for sample in part],
            "text": [second(sample).texts[0] for sample in part],
        }
        pq.write_table(pa.table(columns), root / "features" / f"part{number}.parquet")
    embed_shards(copied, [root / "features"], root / "embeddings")
    return root


def test_the_index_equals_a_plain_product(copied, folders):
    build_index(copied, shards=[folders / "embeddings"])
    table = pa.concat_tables(pq.read_table(path) for path in sorted((folders / "embeddings").glob("*.parquet")))
    a, b = (np.stack(table.column(name).to_numpy()) for name in ("image", "text_features"))
    a, b = unit(a), unit(b)
    ids = table.column("id").to_pylist()
    searcher = Searcher.open(copied, text=False)
    assert [searcher.meta["modalities"][name]["count"] for name in ("image", "text")] == [61, 61]
    hits = searcher.search(like=f"text/{ids[10]}", find="image", top=5)
    scores = a @ b[10]
    assert [hit.item.key for hit in hits] == [ids[row] for row in np.argsort(-scores)[:5]]
    np.testing.assert_allclose([hit.score for hit in hits], np.sort(scores)[::-1][:5], atol=1e-5)
    assert searcher.item(f"image/{ids[3]}#2").key == ids[3]
    assert searcher.item(f"image/{ids[40]}").split == "part1"
    assert searcher.item(f"text/{ids[10]}").text == table.column("text").to_pylist()[10]
    searcher.close()


def test_one_modality_can_be_indexed(copied, folders, tmp_path):
    table = pq.read_table(folders / "embeddings" / "part0.parquet").drop_columns(["text_features"])
    pq.write_table(table, tmp_path / "clips.parquet")
    build_index(copied, shards=[tmp_path])
    searcher = Searcher.open(copied, text=False)
    assert searcher.modalities == ("image",)
    searcher.close()
    with pytest.raises(ValueError, match="the shards have no items of text"):
        build_index(copied, shards=[tmp_path], modalities=["text"])


def test_invalid_shards_are_reported(copied, folders, tmp_path):
    with pytest.raises(DataError, match="Embed features first"):
        build_index(copied, shards=[folders / "features"])
    shutil.copytree(folders / "embeddings", tmp_path / "others")
    mark = tmp_path / "others" / "embedding.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "weights": "x"}))
    with pytest.raises(ValueError, match="come from other weights"):
        build_index(copied, shards=[tmp_path / "others"])
    with pytest.raises(ValueError, match="without splits and media"):
        build_index(copied, shards=[folders / "embeddings"], splits=["val"])
