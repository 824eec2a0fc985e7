"""One writer at a time."""

import subprocess
import sys

import pytest

from crossclr.notices import CrossCLRWarning
from crossclr.storage import FolderLock, LockedError

HOLD = """
import sys
from pathlib import Path
from crossclr.storage import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_writer_learns_who_holds_the_lock_and_a_dead_one_holds_nothing(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=rf"another process \({other.pid} on .* s\) is writing to"):
            FolderLock(tmp_path).__enter__()
        holder = FolderLock(tmp_path).holder()
        assert holder.owner.pid == other.pid
        assert 0 <= holder.age < 60
        other.kill()
        other.wait()
    assert FolderLock(tmp_path).holder() is None
    with FolderLock(tmp_path):
        pass


def test_an_error_inside_releases_the_lock(tmp_path):
    with pytest.raises(RuntimeError), FolderLock(tmp_path):
        raise RuntimeError
    with FolderLock(tmp_path):
        assert FolderLock(tmp_path).holder() is not None


def test_a_folder_that_does_not_exist_can_be_locked_and_nothing_is_left(tmp_path):
    with FolderLock(tmp_path / "runs" / "deep" / "run"):
        assert (tmp_path / "runs" / "deep" / ".run.lock").is_file()
        with pytest.raises(LockedError):
            FolderLock(tmp_path / "runs" / "deep" / "run").__enter__()
    assert list(tmp_path.iterdir()) == []
    with FolderLock(tmp_path / "runs" / "run"):
        (tmp_path / "runs" / "run").mkdir()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["run"]


TAKE_TURNS = """
import sys
from pathlib import Path
from crossclr.storage import FolderLock, LockedError
folder, inside = Path(sys.argv[1]), Path(sys.argv[1] + ".inside")
for _ in range(300):
    try:
        with FolderLock(folder):
            inside.touch(exist_ok=False)  # fails if another process is inside
            inside.unlink()
    except LockedError:
        pass
"""


def test_two_processes_are_never_inside_together(tmp_path):
    others = [subprocess.Popen([sys.executable, "-c", TAKE_TURNS, str(tmp_path / "x")]) for _ in range(3)]
    assert [other.wait() for other in others] == [0, 0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_locks_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)  # its import fails, as on Windows
    with pytest.warns(CrossCLRWarning, match=f"no locks for files.*{tmp_path.name}"), FolderLock(tmp_path / "run"):
        pass
