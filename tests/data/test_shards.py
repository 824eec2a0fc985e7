"""Shards: what stands in the files is what is read, in an order that is shuffled, repeatable, and kind to the disk."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossclr.data import DataError, ShardsConfig, batches, open_data
from crossclr.data import shards as shards_file
from crossclr.data.kinds import parse_data_config
from crossclr.data.order import WindowOrder
from crossclr.data.sample import stable_hash
from crossclr.data.shards import find_shards
from tests.support.pairs import first, keys_of, read, second


def open_shards(train, **options):
    paths = [str(path) for path in (train if isinstance(train, list) else [train])]
    return open_data(ShardsConfig(shards={"train": paths}, **options))


def sequences(count: int, dim: int, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(rng.integers(1, 5), dim)).astype(np.float32) for _ in range(count)]


def write_parquet(path, ids, a, b, row_group_size=7, **columns):
    table = {
        "id": ids,
        "video": [rows.tolist() for rows in a],
        "text_features": [rows[0].tolist() for rows in b],
        **columns,
    }
    pq.write_table(pa.table(table), path, row_group_size=row_group_size)


def write_hdf5(path, ids, a, b):
    with h5py.File(path, "w") as file:
        file["id"] = np.array([name.encode() for name in ids])
        file["video"], file["video_lengths"] = np.concatenate(a), np.array([len(rows) for rows in a])
        file["text_features"] = np.stack([rows[0] for rows in b])


@pytest.fixture
def folder(tmp_path):
    """Two shards of each kind with 20 samples each, ids from s0 to s79."""
    for number in range(4):
        ids = [f"s{number * 20 + i}" for i in range(20)]
        a, b = sequences(20, 3, number), sequences(20, 2, 10 + number)
        if number % 2:
            write_hdf5(tmp_path / f"part{number}.h5", ids, a, b)
        else:
            texts = [f"text of {name}" for name in ids]
            write_parquet(tmp_path / f"part{number}.parquet", ids, a, b, text=texts, group=["g"] * 20)
    return tmp_path


def expected(place: int) -> tuple[np.ndarray, np.ndarray]:
    number, row = divmod(place, 20)
    return sequences(20, 3, number)[row], sequences(20, 2, 10 + number)[row][:1]


def test_every_sample_is_what_the_files_hold(folder, monkeypatch):
    monkeypatch.setattr(shards_file, "HDF5_BLOCK", 6)
    data = open_shards(folder)
    keys = keys_of(data, "train")
    assert len(keys) == 80
    assert (keys[0], keys[-1], keys[20:22]) == ("part0.parquet:0", "part3.h5:19", ["part1.h5:0", "part1.h5:1"])
    assert tuple(data.dims.values()) == (3, 2)
    for place, key in enumerate(keys):
        sample = read(data, key)
        a, b = expected(place)
        assert sample.key == f"s{place}"
        np.testing.assert_array_equal(first(sample).clips[0], a)
        np.testing.assert_array_equal(second(sample).clips[0], b)
    assert second(read(data, "part2.parquet:3")).texts == ("text of s43",)
    assert read(data, "part2.parquet:3").group == "g"


def test_an_epoch_has_every_sample_once_and_goes_on_anywhere(folder):
    data = open_shards(folder, window=2)

    def ids(epoch, **options):
        return [batch.ids.tolist() for batch in batches(data.where(split="train"), 9, seed=1, epoch=epoch, **options)]

    whole = ids(2, workers=2)
    assert sorted(name for batch in whole for name in batch) == sorted(stable_hash(f"s{place}") for place in range(80))
    assert ids(2, start=4, workers=0) == whole[4:]
    assert ids(3, workers=0) != whole


def test_few_blocks_are_held_and_each_is_decoded_once_an_epoch(folder, monkeypatch):
    read = []
    plain = shards_file.ParquetShard.read

    def watched(self, block):
        read.append((self.path.name, block))
        return plain(self, block)

    monkeypatch.setattr(shards_file.ParquetShard, "read", watched)
    data = open_shards(folder / "*.parquet", window=2)
    kept = data.clips["video"].rows.shards._blocks
    for _ in batches(data.where(split="train"), 4, seed=0, epoch=0, workers=2):
        assert len(kept) <= 4
    assert sorted(read) == sorted({(f"part{number}.parquet", block) for number in (0, 2) for block in range(3)})


@given(blocks=st.lists(st.integers(1, 9), min_size=1, max_size=8), window=st.integers(1, 9), start=st.integers(0, 70))
def test_the_order_is_a_permutation_within_windows(blocks, window, start):
    order = WindowOrder(blocks, window, seed=3, epoch=1)
    listed = [order[place] for place in range(len(order))]
    assert sorted(listed) == list(range(sum(blocks)))
    assert order[start : start + 11] == listed[start : start + 11]
    # cut where the windows end: each piece is all samples of as many blocks as a window has, and of no other
    owner = np.repeat(np.arange(len(blocks)), blocks)
    rest = listed
    shuffled = np.random.default_rng([3, 1]).permutation(len(blocks))
    for begin in range(0, len(blocks), window):
        size = sum(blocks[block] for block in shuffled[begin : begin + window])
        piece, rest = rest[:size], rest[size:]
        assert len(set(owner[piece].tolist())) <= window
        assert not set(owner[piece].tolist()) & set(owner[rest].tolist())


def test_a_config_opens_shards(folder):
    config = parse_data_config({"kind": "shards", "root": str(folder), "shards": {"train": "*.parquet", "val": "*.h5"}})
    data = open_data(config)
    assert [len(keys_of(data, split)) for split in ("train", "val")] == [40, 40]
    assert [path.name for path in data.where(split="val").shards] == ["part1.h5", "part3.h5"]


@pytest.mark.parametrize(
    ("modalities", "message"),
    [
        ({"video": {}, "sound": {"column": "group"}}, "modalities.sound: the column 'group' holds no features"),
        ({"text": {}, "text_features": {}}, "modalities.text: another modality has the column 'text_features' too"),
    ],
)
def test_each_modality_has_a_column_of_its_own(modalities, message):
    with pytest.raises(ValueError, match=message):
        parse_data_config({"kind": "shards", "shards": {"train": "*.parquet"}, "modalities": modalities})


def test_errors_say_what_is_wrong(folder, tmp_path):
    with pytest.raises(DataError, match="there is no shard at"):
        find_shards([tmp_path / "nothing-*.parquet"])
    config = parse_data_config({"kind": "shards", "root": str(folder), "shards": {"train": "x*.parquet"}})
    with pytest.raises(DataError, match=r"data\.shards\.train is 'x\*\.parquet'"):
        open_data(config)
    pq.write_table(pa.table({"id": ["x"], "c": [1.0]}), tmp_path / "wrong.parquet")
    with pytest.raises(DataError, match="a shard needs id and video or text_features"):
        open_shards(tmp_path / "wrong.parquet")
    write_parquet(tmp_path / "nan.parquet", ["x"], [np.full((1, 3), np.nan, np.float32)], [np.ones((1, 2))])
    with pytest.raises(DataError, match=r"nan\.parquet: entry 'x' has NaN"):
        read(open_shards(tmp_path / "nan.parquet"), "nan.parquet:0")
    with pytest.raises(DataError, match=r"there is no sample 'part0\.parquet:20'"):
        read(open_shards(folder / "part0.parquet"), "part0.parquet:20")
    with pytest.raises(DataError, match="there is no split 'test'; there are train"):
        keys_of(open_shards(folder / "part0.parquet"), "test")


@pytest.mark.parametrize("nested", [False, True])
def test_an_empty_cell_is_an_absent_modality(tmp_path, nested):
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    sound = [None, [[4.0, 5.0]] if nested else [4.0, 5.0], None, [[6.0, 7.0]] if nested else [6.0, 7.0]]
    table = {"id": list("abcd"), "video": rows.tolist(), "sound": sound}
    pq.write_table(pa.table(table), tmp_path / "x.parquet", row_group_size=3)
    data = open_shards(tmp_path / "x.parquet", modalities={"video": {}, "sound": {}})
    assert data.dims == {"video": 3, "sound": 2}
    found = [read(data, key) for key in keys_of(data, "train")]
    assert [list(sample.modalities) for sample in found] == [["video"], ["video", "sound"]] * 2
    np.testing.assert_array_equal(found[3]["sound"].clips[0], [[6.0, 7.0]])
    np.testing.assert_array_equal(found[2]["video"].clips[0], rows[2:3])
