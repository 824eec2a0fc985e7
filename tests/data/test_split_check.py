"""`train` refuses leaks, repeated and missing ids."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr.data import DataError, ShardsConfig, check_data, open_data
from crossclr.data.check import check_splits
from tests.support.pairs import pair_data

ROWS = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def shards(folder, kind, **splits):
    """A split is a list of (id, row of the first modality)."""
    paths = {}
    for split, samples in splits.items():
        ids, rows = [name for name, _ in samples], ROWS[[row for _, row in samples]]
        paths[split] = [folder / f"{split}.{kind}"]
        if kind == "parquet":
            columns = {"id": pa.array(ids), "video": rows.tolist(), "text_features": rows.tolist()}
            pq.write_table(pa.table(columns), paths[split][0])
        else:
            with h5py.File(paths[split][0], "w") as file:
                file["id"], file["video"], file["text_features"] = [name or "" for name in ids], rows, rows
    return open_data(ShardsConfig(shards={split: list(map(str, files)) for split, files in paths.items()}))


@pytest.mark.parametrize("kind", ["parquet", "h5"])
def test_shards(tmp_path, kind):
    fine = [("x", 0), ("x", 0), ("y", 1)]  # two sentences of one clip
    check_splits(shards(tmp_path, kind, train=fine, val=[("z", 2)]), "train", ["val", None])
    wrong = {
        "1 samples of split 'val' are also in split 'train' .first: 'y'": {"train": fine, "val": [("y", 1)]},
        "'x' occurs twice with different features": {"train": [("x", 0), ("x", 1)], "val": [("z", 2)]},
        "has no id": {"train": [("x", 0), (None, 1)], "val": [("z", 2)]},
    }
    for words, splits in wrong.items():
        data = shards(tmp_path, kind, **splits)
        with pytest.raises(DataError, match=words):
            check_splits(data, "train", ["val"])
    report = check_data(shards(tmp_path, kind, train=[*fine, (None, 3)], val=[("y", 1)]))
    assert {finding.kind for finding in report.faults} == {"shared-key", "no-id"}


def test_arrays():
    def data(**splits):
        return pair_data(ROWS, ROWS, splits=splits)

    check_splits(data(train=["0", "1"], val=["2"], test=["2"]), "train", ["val", "test"])
    with pytest.raises(DataError, match="'train' is trained on and also measured"):
        check_splits(data(train=["0", "1"]), "train", ["train"])
    with pytest.raises(DataError, match="also in split 'train'"):
        check_splits(data(train=["0", "1"], test=["1"]), "train", [None, "test"])
    with pytest.raises(DataError, match="'0' occurs twice"):
        check_splits(data(train=["0", "0", "1"]), "train")
    with pytest.raises(DataError, match="one sample"):
        check_splits(data(train=["0"]), "train")
    with pytest.raises(DataError, match="no samples"):
        check_splits(data(train=["0", "1"], val=[]), "train", ["val"])
