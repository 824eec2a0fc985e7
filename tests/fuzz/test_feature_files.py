"""Broken feature files of every format: no traceback, no hang, no rows that are not finite."""

import json
import os
import random
import shutil
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crossclr.data import check_data, open_data
from crossclr.data.check import check_splits
from crossclr.data.kinds import parse_data_config
from tests.fuzz.verdicts import broken_bytes, judge, share
from tests.support.pairs import keys_of, read
from tests.support.tiny_runs import write_coot

KINDS = ("npy", "npz", "packed", "parquet", "shards", "h5 shards", "coot", "folder")
BATCHES, CASES = share(640, 10)
A = np.random.default_rng(0).normal(size=(12, 3, 4)).astype(np.float32)
B = np.random.default_rng(1).normal(size=(12, 5)).astype(np.float32)
NAMES = [f"k{row}" for row in range(12)]


def write(kind, folder, a=A, b=B, ids=NAMES):
    """Good files of one kind and their config."""
    folder.mkdir()
    if kind in ("coot", "folder"):
        write_coot(folder)
        if kind == "folder":
            with h5py.File(folder / "video.h5") as file:
                (folder / "video").mkdir()
                for key in file:
                    np.savez(folder / "video" / f"{key}.npz", frame_scores=file[key][()])
            (folder / "video.h5").unlink()  # nothing reads it, so damage to it would not be noticed
        return {"kind": "coot", "root": str(folder), "video": "video" if kind == "folder" else "video.h5",
                "text": "text.h5"}  # fmt: skip
    if kind in ("shards", "h5 shards"):
        for name, part in (("train", slice(0, 8)), ("val", slice(8, 12))):
            if kind == "shards":
                columns = {"id": ids[part], "video": a[part].tolist(), "text_features": b[part].tolist()}
                pq.write_table(pa.table(columns), folder / f"{name}.parquet")
            else:
                with h5py.File(folder / f"{name}.h5", "w") as file:
                    file["id"], file["video"], file["text_features"] = ids[part], a[part], b[part]
        return {"kind": "shards", "root": str(folder), "shards": {"train": "train.*", "val": "val.*"}}
    (folder / "ids.json").write_text(json.dumps(ids))
    (folder / "splits.json").write_text(json.dumps({"train": ids[:8], "val": ids[8:]}))
    places = {}
    for name, values in (("video", a), ("text", b)):
        if kind == "npy":
            np.save(folder / f"{name}.npy", values)
        elif kind == "parquet":
            pq.write_table(pa.table({"x": values.tolist()}), folder / f"{name}.parquet")
        else:
            (np.savez if kind == "npz" else np.savez_compressed)(folder / f"{name}.npz", x=values)
        ending = {"npy": ".npy", "parquet": ".parquet#x"}.get(kind, ".npz#x")
        places[name] = {"values": name + ending, "ids": "ids.json"}
    return {"kind": "arrays", "root": str(folder), "splits": "splits.json", "modalities": places}


def read_all(values):
    """Everything that training and evaluation check and read."""
    source = open_data(parse_data_config(values))
    check_splits(source, "train", ["val"])
    report = check_data(source)
    rows = {}
    for split in source.splits:
        for key in keys_of(source, split):
            sample = read(source, key)
            parts = [part for content in sample.modalities.values() for part in content.clips]
            for part in parts:
                assert part.dtype == np.float32
                assert np.isfinite(part).all()
            rows[key] = [part.tobytes() for part in parts]
    if report.faults:
        raise ValueError(report.faults[0].message)
    return rows


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Each kind of data once, with what it reads as."""
    root = tmp_path_factory.mktemp("good")
    found = {}
    for kind in KINDS:
        values = write(kind, root / kind)
        found[kind] = values, read_all(values)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", BATCHES)
def test_damaged_files(good, tmp_path, kind, seed):
    rng = random.Random(f"{kind}{seed}")
    values, rows = good[kind]
    for number in range(-(-CASES // len(KINDS))):
        folder = tmp_path / str(number)
        shutil.copytree(values["root"], folder)
        path = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        case, content = broken_bytes(path.read_bytes(), rng)
        path.write_bytes(content)
        must = None
        if case.startswith("empty") or (case.startswith("truncated") and path.suffix in (".npy", ".npz", ".parquet")):
            must = True
        verdict = judge(
            lambda folder=folder: read_all({**values, "root": str(folder)}), f"{kind}, {path.name}: {case}", must
        )
        if not verdict.refused and path.suffix == ".npz":  # its checksum covers every value
            assert verdict.result == rows, f"{path.name}: {case}: other values, and no error"
        shutil.rmtree(folder)


def _nan(values):
    changed = values.copy()
    changed.flat[7] = np.nan
    return changed


WRONG = {
    "NaN": {"a": _nan(A)},
    "infinite": {"b": np.where(B > 1, np.inf, B)},
    "text": {"b": B.astype(str)},
    "complex": {"a": A.astype(complex)},
    "no samples": {"a": A[:0], "b": B[:0], "ids": []},
    "no channels": {"b": B[:, :0]},
    "fewer rows": {"a": A[:-1]},
    "repeated id": {"ids": [*NAMES[:-1], "k0"]},
    "id in two splits": {"ids": [*NAMES[:8], "k0", *NAMES[9:]]},
}


@pytest.mark.parametrize("kind", ["npy", "npz", "packed", "parquet", "shards", "h5 shards"])
@pytest.mark.parametrize("what", WRONG)
def test_wrong_values_are_refused(tmp_path, kind, what):
    try:
        values = write(kind, tmp_path / "data", **WRONG[what])
    except (TypeError, ValueError, pa.ArrowException):
        pytest.skip("this format cannot hold it")
    judge(lambda: read_all(values), f"{kind}: {what}", must_refuse=True)


@pytest.mark.parametrize("kind", KINDS)
def test_pipes_and_folders_in_place_of_files(good, tmp_path, kind):
    values, _ = good[kind]
    for number, name in enumerate(sorted(path.name for path in Path(values["root"]).iterdir() if path.is_file())):
        for make in (os.mkfifo, os.mkdir):
            folder = tmp_path / f"{number}{make.__name__}"
            shutil.copytree(values["root"], folder)
            (folder / name).unlink()
            make(folder / name)
            used = name != "video.h5" or kind != "folder"
            judge(
                lambda folder=folder: read_all({**values, "root": str(folder)}), f"{kind}: {make.__name__} {name}", used
            )
