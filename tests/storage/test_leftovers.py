"""Only leftovers of dead processes are swept."""

import subprocess
import sys

import pytest

from crossclr.storage import sweep
from crossclr.storage.files import Owner, temporary_path

LEAVE = """
import sys
from pathlib import Path
from crossclr.storage.files import temporary_path
path = temporary_path(Path(sys.argv[1]))
path.mkdir()
(path / "half").touch()
temporary_path(Path(sys.argv[1])).touch()
"""


def leave(target):
    subprocess.run([sys.executable, "-c", LEAVE, target], check=True)


def test_leftovers_of_dead_processes_go_and_those_of_living_ones_stay(tmp_path):
    leave(tmp_path / "run.v2")
    mine = temporary_path(tmp_path / "run.v2")
    mine.touch()
    (tmp_path / ".mine.partial").touch()  # not one of our names
    assert len(sweep(tmp_path)) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([mine.name, ".mine.partial"])


def test_the_sweep_can_go_into_folders(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b", "deep/c"):
        leave(tmp_path / name)
    assert len(sweep(tmp_path)) == 2
    assert len(sweep(tmp_path, recursive=True)) == 2


def test_names_are_unique(tmp_path):
    assert len({temporary_path(tmp_path / "a") for _ in range(100)}) == 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="start times are read from /proc")
def test_a_later_process_with_the_same_id_is_another_owner():
    owner = Owner.current()
    assert owner.alive()
    assert not Owner(owner.host, owner.pid, owner.started - 1).alive()


def test_a_process_on_another_host_counts_as_alive():
    assert Owner("another-host", 1, 1).alive()
