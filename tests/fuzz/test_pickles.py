"""Malicious and damaged pickles of features: nothing runs, nothing hangs, one clear line each."""

import collections
import os
import pickle
import pickletools
import random
import struct
import sys

import h5py
import numpy as np
import pytest

from crossclr.data import load_data_config, open_data
from crossclr.data.ce_files import import_ce, pickled_rows, read_captions_pickle
from crossclr.errors import DataError
from tests.fuzz.verdicts import broken_bytes, judge

ROWS = {"v1": np.arange(6.0).reshape(2, 3), "v2": np.ones(3, np.float16), "v3": np.float64("nan"), "v4": float("nan")}
RAN, WATCHED = [], []


class Call:
    """Calls a function with arguments when it is unpickled."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def calls():
    """Pickles that would run something, allocate much or never end."""
    objects = [
        Call(os.system, "true"),
        Call(exec, "import os"),
        Call(eval, "1"),
        Call(open, "/etc/passwd"),
        Call(getattr, dict, "fromkeys"),
        Call(np.zeros, 10**12),
        Call(np.ndarray, (10**12,)),
        Call(bytearray, 10**14),
        Call(range, 10**12),
        Call(list, (1, 2)),
        Call(__import__, "os"),
        Call(np.load, "x.npy"),
        Call(np.fromfile, "/etc/passwd"),
        Call(collections.OrderedDict, [("x", 1)]),
        Call(collections.defaultdict, list),
        Call(np.dtype, "O"),
        Call(np.dtype, [("a", "f4")]),
        {1, 2},
        frozenset([1]),
        complex(1, 2),
        np.array([{"a": 1}], dtype=object),
        np.array(["x"]),
        np.ones((2, 2, 2)),
        np.ones((0, 3)),
        np.array([1, 2]).astype("datetime64[s]"),
        {"a": 1},
        "text",
        [1, 2],
        None,
        10**5000,
        -1,
    ]
    for value in objects:
        for protocol in (0, 2, 4, 5):
            try:
                yield f"{value!r:.40} protocol {protocol}", pickle.dumps({"v1": value}, protocol)
            except (TypeError, ValueError, pickle.PicklingError):
                continue
    yield "no dict", pickle.dumps([1, 2])
    yield "an empty dict", pickle.dumps({})
    yield "different widths", pickle.dumps({"a": np.ones(3), "b": np.ones(4)})
    yield "one array a thousand times", pickle.dumps(dict.fromkeys(map(str, range(1000)), np.ones((1, 1000))))
    yield "a huge place in the memo", b"\x80\x04}r\xff\xff\xff\xff."
    yield "huge bytes", b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x."
    yield "a huge byte array", b"\x80\x05\x96" + struct.pack("<Q", 1 << 34) + b"x."
    yield "a huge frame", b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"}."
    yield "a long number", b"I" + b"9" * 100_000 + b"\n."
    yield "deep lists", b"(l" * 20_000 + b"."
    yield "a deep key", b"\x80\x02}" + b")" + b"\x85" * 50_000 + b"K\x01s."
    yield "laughs", b"\x80\x02]" + b"2(" * 0 + b"".join(b"q%c](h%ch%ce" % (n, n, n) for n in range(60)) + b"."
    yield "an object of a class", b"(i__builtin__\nobject\n."
    yield "an extension", b"\x80\x02\x82\x01."
    yield "a persistent id", b"Pid\n."
    yield "build of a function", b"c_codecs\nencode\n}U\x08__code__K\x01sb."
    yield "call of an argument", b"\x80\x02U\x01x)R."
    yield "a name with dots", b"\x80\x04\x8c\x05numpy\x8c\x0dlib.os.system\x93\x8c\x04true\x85R."


@pytest.fixture(autouse=True)
def nothing_runs():
    """What the interpreter reports as a program or as code that was started."""
    RAN.clear()
    yield
    assert not RAN


def listen(event, arguments):
    """Note everything that a harmless reader of files never does; an import executes code of a file."""
    started = event in ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect")
    if WATCHED and (started or (event == "exec" and arguments[0].co_filename == "<string>")):
        RAN.append(event)


sys.addaudithook(listen)


def watched(call):
    """Call a function while everything that is started is noted."""
    WATCHED.append(1)
    try:
        return call()
    finally:
        WATCHED.clear()


@pytest.mark.slow
def test_malicious_pickles_are_refused(tmp_path):
    cases = list(calls())
    path = tmp_path / "i3d.pickle"
    for name, content in cases:
        path.write_bytes(content)

        def read():
            if watched(lambda: pickled_rows(path)) is None:
                raise DataError("no features of videos")

        judge(read, name, must_refuse=True)
        judge(lambda: watched(lambda: read_captions_pickle(path)), name)
    assert len(cases) >= 100


@pytest.mark.parametrize("protocol", range(6))
def test_damaged_pickles(tmp_path, protocol):
    rng, path = random.Random(protocol), tmp_path / "i3d.pickle"
    content = pickle.dumps(ROWS, protocol)
    for _ in range(20):
        name, broken = broken_bytes(content, rng)
        path.write_bytes(broken)
        judge(lambda: watched(lambda: pickled_rows(path)), f"{name}, protocol {protocol}")


@pytest.mark.parametrize("protocol", range(6))
def test_good_pickles_are_read(tmp_path, protocol):
    path = tmp_path / "i3d.pickle"
    path.write_bytes(pickle.dumps(collections.OrderedDict(ROWS | {"v5": np.asfortranarray(ROWS["v1"] + 1)}), protocol))
    found = pickled_rows(path)
    assert list(found) == ["v1", "v2", "v5"]
    np.testing.assert_array_equal(found["v1"], ROWS["v1"])
    np.testing.assert_array_equal(found["v5"], ROWS["v1"] + 1)
    assert found["v2"].shape == (1, 3)
    assert found["v2"].dtype == np.float32


def test_pickles_of_python_2_are_read(tmp_path):
    """Its strings are bytes, and arrays hold them as such."""
    raw = np.arange(3, dtype="<f4").tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR(K\x01(K\x03t"
        b"cnumpy\ndtype\n(U\x02f4K\x00K\x01tR(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x0c"
        + raw
        + b"tb"
    )
    path = tmp_path / "x.pickle"
    path.write_bytes(b"\x80\x02}U\x02v1" + array + b"s.")
    assert [opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())][-1] == "STOP"
    assert pickled_rows(path)["v1"].tolist() == [[0.0, 1.0, 2.0]]


def dump(path, value):
    path.write_bytes(pickle.dumps(value))


def test_a_folder_of_collaborative_experts_becomes_data(tmp_path):
    source, out = tmp_path / "ce", tmp_path / "out"
    source.mkdir()
    keys = [f"video{n}" for n in range(4)]
    dump(
        source / "Audio_MSRVTT_new.pickle",
        {key: np.full((n + 1, 2), n) for n, key in enumerate(keys)} | {"video2": np.nan},
    )
    dump(source / "senet154-imagenet-raw-nocrop.pickle", {key: np.full(3, n + 0.5) for n, key in enumerate(keys[:3])})
    dump(source / "raw-captions.pkl", {key: [["a", "dog"], ["it", "runs"]] for key in [*keys, "video9"]})
    dump(source / "w2v_MSRVTT.pickle", {key: [np.ones((2, 5))] for key in keys})
    (source / "train_list_full.txt").write_text("video0\nvideo1\n")
    (source / "test_list_full.txt").write_text("video2\nvideo3\n")
    assert import_ce(source, out) == {"audio": 2, "rgb": 3}
    (out / "text").mkdir()
    np.save(out / "text" / "values.npy", np.ones((8, 5), np.float32))
    np.save(out / "text" / "lengths.npy", np.ones(8, np.int64))
    (out / "text" / "owners.json").write_text(str([key for key in keys for _ in range(2)]).replace("'", '"'))
    (out / "text" / "texts.json").write_text(str(["a dog", "it runs"] * 4).replace("'", '"'))
    config = load_data_config(out / "data.yaml").model_copy(update={"root": str(out)})
    data = open_data(config)
    assert data.splits == ("train", "test")
    assert data.dims == {"video": 5, "text": 5}
    rows = data.where(keys=["video2"])[0]["video"].clips[0]
    assert np.isnan(rows[:, :2]).all()
    assert rows[0, 2:].tolist() == [2.5, 2.5, 2.5]
    rows = data.where(keys=["video3"])[0]["video"].clips[0]
    assert rows[:, :2].tolist() == [[3, 3]] * 4
    assert np.isnan(rows[:, 2:]).all()


def test_files_of_mmt_become_data(tmp_path):
    source, out = tmp_path / "mmt", tmp_path / "out"
    (source / "v" / "i").mkdir(parents=True)
    for number in range(2):
        with h5py.File(source / "v" / "i" / f"vi{number}.h5", "w") as file:
            file["features.s3d"] = np.full((3, 4), number, np.float32)
            file["features.face"] = np.full((1, 2), np.nan if number else 1.0)
            file["raw_captions.0"] = np.array(["a", "dog"], dtype=h5py.string_dtype())
    assert import_ce(source, out) == {"face": 2, "s3d": 4}
    assert np.load(out / "s3d_lengths.npy").tolist() == [3, 3]
    assert np.load(out / "face.npy").shape == (1, 2)


def test_a_folder_without_features_is_refused(tmp_path):
    with pytest.raises(DataError, match="0 experts"):
        import_ce(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
