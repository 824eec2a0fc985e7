import json
import subprocess
import sys
import textwrap

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from crossclr.data import ArraysConfig, DataError, Dataset, Ragged, open_data
from crossclr.data.array_files import open_npy, open_npz
from crossclr.data.order import draw_splits
from tests.support.pairs import first, keys_of, pair_data, read, second

RNG = np.random.default_rng(0)
A = RNG.standard_normal((6, 5, 3)).astype(np.float16)
B = RNG.standard_normal((6, 4)).astype(np.float32)
IDS = [f"clip{n}" for n in range(6)]


def test_vectors_and_sequences_in_memory():
    data = pair_data(A, B, ids=IDS)
    sample = read(data, "clip2")
    assert tuple(data.dims.values()) == (3, 4)
    assert not data.two_level
    np.testing.assert_array_equal(first(sample).clips[0], A[2].astype(np.float32))
    np.testing.assert_array_equal(second(sample).clips[0], B[2:3])
    assert first(sample).clips[0].dtype == np.float32


def test_lists_of_sequences_in_memory():
    parts = [RNG.standard_normal((n + 1, 3)) for n in range(6)]
    data = pair_data(parts, B)
    assert [len(first(read(data, key)).clips[0]) for key in keys_of(data, "train")] == [1, 2, 3, 4, 5, 6]


def test_other_containers_in_memory():
    ragged = Ragged.from_list([torch.ones(2, 3), torch.zeros(4, 3)])
    data = pair_data(ragged, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert tuple(data.dims.values()) == (3, 2)
    assert first(read(data, "1")).clips[0].shape == (4, 3)
    assert second(read(data, "1")).clips[0].tolist() == [[3, 4]]
    assert pair_data([[1.0, 2.0], [3.0, 4.0]], np.zeros((2, 1))).dims == {"a": 2, "b": 1}
    with pytest.raises(DataError, match=r"sequence 1 has shape \(3,\)"):
        pair_data([[1.0, 2.0], [3.0, 4.0, 5.0]], np.zeros((2, 1)))


def test_several_sentences_for_one_clip():
    owners = ["clip1", "clip0", "clip1", "clip2", "clip1", "clip3"]
    data = pair_data(A[:4], B, ids=IDS[:4], owners=owners, texts=list("uvwxyz"))
    sample = read(data, "clip1")
    assert second(sample).texts == ("u", "w", "y")
    assert list(second(sample).clip_of) == [0, 0, 0]
    np.testing.assert_array_equal(np.concatenate(second(sample).clips), B[[0, 2, 4]])
    drawn = {second(read(data, "clip1", seed=seed)).texts for seed in range(40)}
    assert drawn == {("u",), ("w",), ("y",)}


def test_the_limit_of_rows_is_for_each_modality():
    data = pair_data(np.zeros((2, 30, 3)), np.zeros((2, 30, 4)), max_frames={"a": 10, "b": 7})
    sample = read(data, "0", seed=0)
    assert (len(first(sample).clips[0]), len(second(sample).clips[0])) == (10, 7)


@given(
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=8).filter(sum),
    seed=st.integers(0, 1000),
)
def test_any_ownership_of_sentences(counts, seed):
    owners = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(counts)), counts))
    values = np.arange(len(owners), dtype=np.float32)[:, None]
    data = pair_data(np.zeros((len(counts), 2)), values, owners=owners.astype(str), unpaired="drop")
    assert list(keys_of(data, "train")) == [str(n) for n, count in enumerate(counts) if count]
    for key in keys_of(data, "train"):
        got = [int(rows[0, 0]) for rows in second(read(data, key)).clips]
        assert got == np.flatnonzero(owners == int(key)).tolist()


def write_files(folder, kind):
    """The same data in each kind of file; gives the config's fields."""
    lengths = np.array([1, 4, 2, 5, 3, 1])
    flat = np.concatenate([A[n, :count] for n, count in enumerate(lengths)])
    if kind == "npy":
        np.save(folder / "a.npy", flat)
        np.save(folder / "n.npy", lengths)
        np.save(folder / "b.npy", B)
        (folder / "ids.json").write_text(json.dumps(IDS))
        return {
            "video": {"values": "a.npy", "lengths": "n.npy", "ids": "ids.json"},
            "text": {"values": "b.npy", "ids": "ids.json"},
        }
    if kind in ("npz", "compressed"):
        save = np.savez if kind == "npz" else np.savez_compressed
        save(folder / "d.npz", feat=A, n=lengths, ids=np.array(IDS), vec=B)
        return {"video": {"values": "d.npz#feat", "lengths": "#n", "ids": "#ids"}, "text": {"values": "d.npz#vec"}}
    table = pa.table(
        {
            "id": IDS,
            "a": pa.array([A[n, :count].astype(np.float32).tolist() for n, count in enumerate(lengths)]),
            "b": pa.FixedSizeListArray.from_arrays(pa.array(B.ravel()), 4),
        }
    )
    pq.write_table(table, folder / "d.parquet", row_group_size=2)
    return {"video": {"values": "d.parquet#a", "ids": "#id"}, "text": {"values": "d.parquet#b", "ids": "#id"}}


@pytest.mark.parametrize("kind", ["npy", "npz", "compressed", "parquet"])
def test_every_kind_of_file_gives_the_same(tmp_path, kind):
    fields = write_files(tmp_path, kind)
    (tmp_path / "splits.json").write_text(json.dumps({"train": IDS[:4], "val": IDS[4:]}))
    data = open_data(ArraysConfig(root=str(tmp_path), splits="splits.json", modalities=fields))
    assert tuple(data.dims.values()) == (3, 4)
    assert [list(keys_of(data, split)) for split in ("train", "val")] == [IDS[:4], IDS[4:]]
    for _ in range(2):
        for number, count in zip([3, 0, 5, 1, 2, 4], [5, 1, 1, 4, 2, 3], strict=True):
            sample = read(data, f"clip{number}")
            np.testing.assert_array_equal(first(sample).clips[0], A[number, :count].astype(np.float32))
            np.testing.assert_array_equal(second(sample).clips[0], B[number : number + 1])


def test_pairing_by_id_in_another_order_and_captions_in_json(tmp_path):
    order = [3, 1, 0, 2]
    np.savez(tmp_path / "a.npz", feat=A[:4], ids=np.array(IDS[:4]))
    np.save(tmp_path / "b.npy", B[order])
    (tmp_path / "ids.txt").write_text("\n".join(f"clip{n}" for n in order))
    entries = {
        f"clip{n}": {"split": "train" if n else "test", "youtube": f"y{n // 2}", "captions": [f"text {n}"]}
        for n in range(4)
    }
    (tmp_path / "captions.json").write_text(json.dumps(entries))
    data = open_data(
        ArraysConfig(
            root=str(tmp_path),
            modalities={
                "video": {"values": "a.npz#feat", "ids": "#ids"},
                "text": {"values": "b.npy", "ids": "ids.txt", "texts": "captions.json#captions"},
            },
            splits="captions.json#split",
            groups="captions.json#youtube",
            split_names={"everything": ["train", "test"]},
            split_parts={"train": {"fit": 0.5, "dev": 0.5}},
        )
    )
    assert sorted([*keys_of(data, "fit"), *keys_of(data, "dev")]) == ["clip1", "clip2", "clip3"]
    assert {"clip2", "clip3"} <= set(keys_of(data, "fit")) or {"clip2", "clip3"} <= set(
        keys_of(data, "dev")
    )  # one group
    assert list(keys_of(data, "test")) == ["clip0"]
    assert len(keys_of(data, "everything")) == 4
    for number in range(4):
        sample = read(data, f"clip{number}")
        np.testing.assert_array_equal(second(sample).clips[0], B[number : number + 1])
        assert second(sample).texts == (f"text {number}",)
        assert sample.group == f"y{number // 2}"


def test_experts_are_joined_by_id_and_may_lack_samples(tmp_path):
    np.savez(tmp_path / "one.npz", feat=A[:4], ids=np.array(IDS[:4]))
    np.savez(tmp_path / "two.npz", feat=B[[2, 1, 4]], ids=np.array(["clip2", "clip1", "clip4"]))
    np.savez(tmp_path / "b.npz", feat=B[:5], ids=np.array(IDS[:5]))
    data = open_data(
        ArraysConfig(
            root=str(tmp_path),
            modalities={
                "video": [{"values": "one.npz#feat", "ids": "#ids"}, {"values": "two.npz#feat", "ids": "#ids"}],
                "text": {"values": "b.npz#feat", "ids": "#ids"},
            },
        )
    )
    assert tuple(data.dims.values()) == (7, 4)
    assert list(keys_of(data, "train")) == IDS[:5]
    both = first(read(data, "clip2")).clips[0]
    np.testing.assert_array_equal(both[:, :3], A[2].astype(np.float32))
    np.testing.assert_array_equal(both[:, 3:], np.repeat(B[2:3], 5, axis=0))
    assert not first(read(data, "clip0")).clips[0][:, 3:].any()
    assert data.where(keys=["clip0"]).missing_experts(0) == [tmp_path / "two.npz"]
    only_second = first(read(data, "clip4")).clips[0]
    assert only_second.shape == (1, 7)
    np.testing.assert_array_equal(only_second[0], [0, 0, 0, *B[4]])


def test_splits_by_fraction_keep_groups_together():
    keys = [str(n) for n in range(600)]
    groups = {key: f"g{int(key) // 6}" for key in keys}

    def drawn(members):
        places = draw_splits([groups[key] for key in members], {"train": 3, "val": 1})
        return {split: [members[place] for place in chosen] for split, chosen in places.items()}

    parts = drawn(keys)
    assert sorted(parts["train"] + parts["val"], key=int) == keys
    assert not {groups[key] for key in parts["train"]} & {groups[key] for key in parts["val"]}
    assert 0.65 < len(parts["train"]) / 600 < 0.85
    fewer = drawn(keys[::2])
    assert set(fewer["val"]) <= set(parts["val"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"b": B[:5]}, "array b: 5 rows but array a has 6; match them by id"),
        ({"ids": IDS[:5]}, "array a: 6 rows but 5 ids"),
        ({"ids": ["x"] * 6}, "array a: id 'x' occurs twice"),
        ({"owners": ["0"] * 6}, r"array a: 5 keys are in one modality only \(first: '1', in a\)"),
        ({"owners": ["0", "1", "2", "3", "4", "9"]}, "one modality only"),
        ({"splits": {"train": ["0", "77"]}}, "split 'train' names 1 keys that array a does not have .*'77'"),
        ({"texts": ["x"]}, "there are 1 texts but b has 6 rows"),
        ({"a": np.zeros((6, 2, 3, 4))}, r"array a: shape \(6, 2, 3, 4\)"),
        ({"a": [np.zeros((2, 3)), np.zeros((2, 4))], "b": B[:2]}, r"sequence 1 has shape \(2, 4\); \(rows, 3\)"),
    ],
)
def test_arrays_that_do_not_fit(options, message):
    given = {"a": A, "b": B, **options}
    with pytest.raises(DataError, match=message):
        pair_data(given.pop("a"), given.pop("b"), **given)


def test_nan_names_the_row():
    bad = B.copy()
    bad[3, 1] = np.inf
    data = pair_data(A, bad, ids=IDS)
    read(data, "clip2")
    with pytest.raises(DataError, match=r"array b: entry 'clip3 \(row 3\)' has NaN or infinite values"):
        read(data, "clip3")


def config(tmp_path, **fields):
    modalities = {"video": {"values": "a.npy"}, "text": {"values": "b.npy"}}
    modalities |= {name: fields.pop(name) for name in list(fields) if name in modalities}
    return ArraysConfig(root=str(tmp_path), modalities=modalities, **fields)


@pytest.fixture
def two_files(tmp_path):
    np.save(tmp_path / "a.npy", A)
    np.save(tmp_path / "b.npy", B)
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"video": {"values": "x.npy"}},
            r"cannot find .*x\.npy \(data\.modalities\.video\.values is 'x\.npy'\).*CROSSCLR_DATA",
        ),
        ({"video": {"values": "a.npy", "ids": "ids.json"}}, "6 samples but 2 ids"),
        ({"splits": "bad.json"}, r"bad\.json: cannot be read as JSON"),
        ({"splits": "ids.json"}, "data.splits has 2 values but video has 6 samples"),
        ({"splits": "strange.json"}, "split 'train' names 1 keys"),
        ({"video": {"values": "two.npz"}}, r"two\.npz: has arrays x, y; name one of them as two\.npz#name"),
        ({"video": {"values": "two.npz#z"}}, r"two\.npz: has no array 'z'; it has x, y"),
        ({"video": {"values": "objects.npy"}}, "Python objects, which are never unpickled"),
        ({"video": {"values": "short.npy"}}, "the file ends at byte 200 but its header says"),
        ({"video": {"values": "broken.npz#feat"}}, r"broken\.npz: cannot be read as \.npz"),
        ({"video": {"values": "broken.parquet"}}, r"broken\.parquet: cannot be read as Parquet"),
        ({"video": {"values": "a.npy", "lengths": "zero.npy"}}, "sequence 1 has length 0"),
        ({"video": {"values": "b.npy", "lengths": "ones.npy"}}, "the lengths sum to 3 but there are 6 rows"),
        ({"video": {"values": "ids.json"}}, r"ids\.json: features must be in a file of type"),
        ({"split_fractions": {"train": 1.0}, "splits": "strange.json"}, "exclude each other"),
    ],
)
def test_files_that_cannot_be_used(two_files, fields, message):
    (two_files / "ids.json").write_text('["x", "y"]')
    (two_files / "bad.json").write_text('["x", ')
    (two_files / "strange.json").write_text('{"train": ["0", "stranger"]}')
    np.savez(two_files / "two.npz", x=A, y=B)
    np.save(two_files / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    (two_files / "short.npy").write_bytes((two_files / "a.npy").read_bytes()[:200])
    (two_files / "broken.npz").write_bytes((two_files / "two.npz").read_bytes()[:150])
    (two_files / "broken.parquet").write_bytes(b"PAR1 nothing")
    np.save(two_files / "zero.npy", np.array([1, 0, 1, 1, 1, 1]))
    np.save(two_files / "ones.npy", np.array([1, 1, 1]))
    with pytest.raises(DataError, match=message):
        open_data(config(two_files, **fields))


def test_disk_arrays_equal_numpy(tmp_path):
    for name, values in {"plain": A, "fortran": np.asfortranarray(A), "empty": A[:0], "flat": A.ravel()}.items():
        np.save(tmp_path / f"{name}.npy", values)
        found = open_npy(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(found[:], values)
        if len(values):
            np.testing.assert_array_equal(found[2], values[2])
            np.testing.assert_array_equal(found[-1], values[-1])
            np.testing.assert_array_equal(found[1:5], values[1:5])
    np.savez(tmp_path / "z.npz", x=B, y=A)
    for place in (3, -1, -6):
        np.testing.assert_array_equal(open_npz(tmp_path / "z.npz", "y")[place], A[place])


def test_fractions_in_a_config(two_files):
    data = open_data(config(two_files, split_fractions={"train": 0.5, "val": 0.5}))
    assert sorted([*keys_of(data, "train"), *keys_of(data, "val")]) == list("012345")


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_file_larger_than_memory_is_read_in_constant_memory(tmp_path):
    # A sparse file of 3 GB: what the process itself holds (without pages of the file, which the system can drop) must
    # stay where it was after reading a tenth of it.
    shape = (2000, 400, 1000)  # float32: 1.6 MB a sample
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.truncate(file.tell() + 4 * int(np.prod(shape)))
    np.save(tmp_path / "b.npy", np.ones((2000, 2), np.float32))
    script = f"""
        from pathlib import Path
        from crossclr.data import ArraysConfig, batches, open_data

        def memory(field):
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

        modalities = {{"video": {{"values": "a.npy"}}, "text": {{"values": "b.npy"}}}}
        data = open_data(ArraysConfig(root={str(tmp_path)!r}, modalities=modalities))
        stream = batches(data.where(split="train"), 8, workers=1)
        seen = []
        for number, batch in enumerate(stream):
            seen.append(memory("RssAnon"))
            if number == 40:
                break
        stream.close()
        print(max(seen[20:]) - max(seen[:5]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40_000_000  # 41 batches of 8 x 1.6 MB passed: 525 MB of the file


def test_modalities_with_gaps():
    """Keys that a modality lacks, None in a list and rows of NaN are gaps; a sample needs two modalities."""
    nan = np.full(4, np.nan)
    english = B.copy()
    english[2] = nan
    data = Dataset.from_arrays(
        {"video": A, "english": english, "spanish": B[:3], "sound": [None, *B[1:]]},
        ids={"video": IDS, "english": IDS, "spanish": IDS[:3], "sound": IDS},
        texts={"spanish": ["uno", "dos", "tres"]},
    )
    assert list(keys_of(data, "train")) == IDS
    assert [list(read(data, key).modalities) for key in IDS[:4]] == [
        ["video", "english", "spanish"],
        ["video", "english", "spanish", "sound"],
        ["video", "spanish", "sound"],
        ["video", "english", "sound"],
    ]
    assert read(data, "clip1")["spanish"].texts == ("dos",)
    batch = data.where(split="train").__getitems__(range(6))
    assert batch.present["spanish"].tolist() == [True] * 3 + [False] * 3
    assert batch.inputs["english"].clips.values.shape == (5, 4)
    assert not batch.pooled["sound"][0].any()
    counts = {name: int(mask.sum()) for name, mask in data.where(split="train").present().items()}
    assert counts == {"video": 6, "english": 5, "spanish": 3, "sound": 5}


def test_samples_of_one_modality(tmp_path):
    arrays, ids = {"video": A, "text": B[:4]}, {"video": IDS, "text": IDS[:4]}
    with pytest.raises(DataError, match=r"2 keys are in one modality only .*'clip4', in video"):
        Dataset.from_arrays(arrays, ids=ids)
    assert list(keys_of(Dataset.from_arrays(arrays, ids=ids, unpaired="drop"), "train")) == IDS[:4]
    kept = Dataset.from_arrays(arrays, ids=ids, unpaired="keep")
    assert list(read(kept, "clip5").modalities) == ["video"]
    with pytest.raises(DataError, match="12 keys are in one modality only"):
        Dataset.from_arrays(
            arrays | {"text": B}, ids={"video": IDS, "text": [f"other{n}" for n in range(6)]}, unpaired="drop"
        )
    with pytest.raises(DataError, match="ids names 'sound', but the modalities are video, text"):
        Dataset.from_arrays(arrays, ids={"sound": IDS})
    holes = dict.fromkeys(arrays, np.where(np.arange(6)[:, None] == 2, np.nan, B))
    for unpaired in ("error", "keep"):
        with pytest.raises(DataError, match="sample 'clip2' has no modality; drop it, or set unpaired=drop"):
            Dataset.from_arrays(holes, ids=dict.fromkeys(holes, IDS), unpaired=unpaired)
    assert "clip2" not in keys_of(Dataset.from_arrays(holes, ids=dict.fromkeys(holes, IDS), unpaired="drop"), "train")
    np.save(tmp_path / "v.npy", np.concatenate([B[:2], np.full((1, 4), np.nan, np.float32), B[3:]]))
    np.save(tmp_path / "t.npy", B)
    on_disk = config(tmp_path, video={"values": "v.npy"}, text={"values": "t.npy"})
    assert list(read(open_data(on_disk), "2").modalities) == ["text"]
