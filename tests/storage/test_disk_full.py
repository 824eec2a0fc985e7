"""A full disk is reported with its path and the next step."""

import pickle
import resource
import signal
import sqlite3

import numpy as np
import pytest

from crossclr.storage import DiskFullError, naming_full_disk, new_folder, write_file


@pytest.fixture
def small_files():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_file_that_does_not_fit_names_its_path_and_keeps_the_old_one(tmp_path, small_files):
    write_file(tmp_path / "a", "old")
    with pytest.raises(DiskFullError, match=r"while writing .*a; free some space") as raised:
        write_file(tmp_path / "a", b"x" * 10_000)
    assert raised.value.errno
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_the_outer_block_decides_the_next_step(tmp_path, small_files):
    with (
        pytest.raises(DiskFullError, match="then resume") as raised,
        naming_full_disk(tmp_path, "free some space, then resume"),
        new_folder(tmp_path / "a") as folder,
    ):
        (folder / "big").write_bytes(b"x" * 10_000)
    assert "run the command again" not in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_other_errors_pass_unchanged(tmp_path):
    with pytest.raises(FileNotFoundError), naming_full_disk(tmp_path):
        (tmp_path / "absent").read_bytes()


def fill_a_database(path):
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("CREATE TABLE t (x BLOB)")
    base.execute("INSERT INTO t VALUES (zeroblob(20000))")


def save_with_faiss(path):
    faiss = pytest.importorskip("faiss")
    index = faiss.IndexFlatIP(64)
    index.add(np.ones((200, 64), dtype=np.float32))
    faiss.write_index(index, str(path))


@pytest.mark.parametrize(
    "write",
    [fill_a_database, save_with_faiss, lambda path: np.save(path, np.zeros(5000))],
    ids=["sqlite", "faiss", "numpy"],
)
def test_libraries_that_hide_the_code_of_the_system(tmp_path, small_files, write):
    with pytest.raises(DiskFullError, match=r"No space left on device|File too large"), naming_full_disk(tmp_path):
        write(tmp_path / "file.npy")


def test_a_damaged_database_is_no_full_disk(tmp_path):
    (tmp_path / "a.sqlite").write_bytes(b"no database" * 100)
    with pytest.raises(sqlite3.DatabaseError), naming_full_disk(tmp_path):
        sqlite3.connect(tmp_path / "a.sqlite").execute("SELECT * FROM sqlite_master")
