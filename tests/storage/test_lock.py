"""One writer at a time."""

import subprocess
import sys

import pytest

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
