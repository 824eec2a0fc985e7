"""Every builder keeps the contract of a data set, and what breaks it is refused."""

import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr.data import (
    ArraysConfig,
    CootConfig,
    DataError,
    Dataset,
    EmojiConfig,
    ShardsConfig,
    check_dataset,
    open_data,
)
from crossclr.data.sequences import RowStore
from tests.support.pairs import pair_data, pair_sample

RNG = np.random.default_rng(0)
A = RNG.standard_normal((20, 5)).astype(np.float32)
B = RNG.standard_normal((20, 3, 4)).astype(np.float32)


def samples():
    for number in range(6):
        clips, sentences = [A[number : number + 2]] * 2, [B[number], B[number + 1], B[number + 2]]
        yield pair_sample(
            f"v{number}", clips, sentences, (A[:4], B[0]), (1, 0, 1), "xyz", concepts=("red", "blue"), split="train"
        )


class Lazy:
    """The same samples, read on demand."""

    def __len__(self):
        return 6

    def __getitem__(self, place):
        return list(samples())[place]


def from_files(folder):
    gaps = B.copy()
    gaps[3] = np.nan
    np.savez(folder / "a.npz", rows=A, ids=np.array([f"k{n}" for n in range(20)]))
    np.save(folder / "b.npy", gaps)
    (folder / "ids.json").write_text(json.dumps([f"k{n}" for n in (*range(10), *range(10))]))
    modalities = {
        "video": {"values": "a.npz#rows", "ids": "#ids"},
        "text": {"values": "b.npy", "ids": "ids.json", "max_frames": 2},
    }
    return ArraysConfig(
        root=str(folder), modalities=modalities, unpaired="drop", split_fractions={"train": 0.7, "val": 0.3}
    )


def shards(folder):
    for number in range(2):
        rows = [A[n : n + 1 + n % 3].tolist() for n in range(9)]
        text = [None if n == 4 else B[n, 0].tolist() for n in range(9)]
        table = {"id": [f"s{number}{n}" for n in range(9)], "video": rows, "text_features": text}
        pq.write_table(pa.table(table), folder / f"x{number}.parquet", row_group_size=4)
    files = {"train": "x0.parquet", "val": "x1.parquet"}
    return ShardsConfig(root=str(folder), shards=files, window=1, split_names={"all": ["val", "train"]})


BUILDERS = {
    "samples": lambda _, __: Dataset.from_samples(samples()),
    "samples on demand": lambda _, __: Dataset.from_samples(Lazy()),
    "arrays": lambda _, __: pair_data(A, B, max_frames=2),
    "captions": lambda _, __: pair_data(
        A[:10], B, owners=[str(n // 2) for n in range(20)], texts=list(map(str, A[:, 0]))
    ),
    "files": lambda folder, _: open_data(from_files(folder)),
    "shards": lambda folder, _: open_data(shards(folder)),
    "coot": lambda _, coot: open_data(CootConfig(**coot.config, max_frames=10, frames_noise=0.1)),
    "coot, one level": lambda _, coot: open_data(CootConfig(**coot.config, max_frames=10, two_level=False)),
    "emoji": lambda _, __: open_data(EmojiConfig()),
    "emoji, two levels": lambda _, __: open_data(EmojiConfig(two_level=True)),
    "emoji that vary": lambda _, __: open_data(EmojiConfig(vary=True)),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_keeps_the_contract(tmp_path, coot, name):
    data = BUILDERS[name](tmp_path, coot)
    check_dataset(data)
    check_dataset(data.where(split=data.splits[0]))
    if not data.varies:
        check_dataset(data.in_memory())
        check_dataset(data.pooled("mean_max"))


def test_what_breaks_the_contract_is_refused():
    data = pair_data(A, B)
    rows = data.clips["a"].rows
    for broken, message in (
        (replace(data.clips["a"], rows=Drifting(rows)), "gives other rows of a"),
        (replace(data.clips["a"], rows=Drifting(rows, draws=True)), "an epoch must draw the same rows again"),
    ):
        with pytest.raises(DataError, match=message):
            check_dataset(Dataset(data._info, {**data.clips, "a": broken}, splits=data.splits_of))
    twice = Dataset(data._info, data.clips, splits=data.splits_of).select([1, 1, 2])
    with pytest.raises(DataError, match="a key of its own"):
        check_dataset(twice)


class Drifting(RowStore):
    """Rows that differ at each reading."""

    def __init__(self, rows, draws=False):
        self.rows, self.draws, self.count, self.path, self.dim = rows, draws, 0, rows.path, rows.dim

    def read(self, number, key):
        self.count += not self.draws
        return self.rows.read(number, key) + np.float32(self.count)

    def draw(self, number, key, rng):
        self.count += 1
        return self.rows.read(number, key) + np.float32(self.count)


def test_a_millionth_key_needs_no_list(tmp_path):
    """A few columns of a million samples are opened in the memory of the columns."""
    ids = pa.array([f"clip{number}" for number in range(20_000)])
    pq.write_table(pa.table({"id": ids, "split": ["val", "train"] * 10_000}), tmp_path / "t.parquet")
    np.save(tmp_path / "a.npy", np.ones((20_000, 2), np.float32))
    side = {"values": "a.npy", "ids": "t.parquet#id"}
    config = ArraysConfig(root=str(tmp_path), modalities={"video": side, "text": side}, splits="t.parquet#split")
    data = open_data(config)
    assert data.where(split="train").keys[-1] == "clip19999"
    assert isinstance(data.clips["video"].item, range)
    assert data.clips["video"].rows.values.filename  # left on disk
