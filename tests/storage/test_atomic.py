"""Files and folders appear complete or not at all."""

import os
import signal
import subprocess
import sys

import pytest

from crossclr.storage import complete_folder, new_file, new_folder, restore_folder, write_file, write_json


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fill(path, text, **options):
    with new_folder(path, **options) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "text").write_text(text)


def fail_in_a_file(path):
    with new_file(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError


def fail_in_a_folder(path):
    with new_folder(path) as folder:
        (folder / "text").write_text("half")
        assert not path.exists()
        raise RuntimeError


def test_a_file_is_replaced_as_a_whole(tmp_path):
    write_file(tmp_path / "a", "old")
    with pytest.raises(RuntimeError):
        fail_in_a_file(tmp_path / "a")
    assert (tmp_path / "a").read_text() == "old"
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_text() == "new"
    assert names(tmp_path) == ["a"]


def test_json_keeps_every_character(tmp_path):
    write_json(tmp_path / "a.json", {"text": "Crème brûlée"})
    assert "Crème brûlée" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_a_folder_appears_complete_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError):
        fail_in_a_folder(tmp_path / "deep" / "run")
    assert names(tmp_path / "deep") == []
    fill(tmp_path / "deep" / "run", "whole")
    assert (tmp_path / "deep" / "run" / "inner" / "text").read_text() == "whole"


def test_an_existing_folder_is_only_replaced_on_request(tmp_path):
    fill(tmp_path / "run", "old")
    with pytest.raises(FileExistsError, match="already exists"):
        fill(tmp_path / "run", "new")
    fill(tmp_path / "run", "new", replace=True)
    assert (tmp_path / "run" / "inner" / "text").read_text() == "new"
    assert names(tmp_path) == ["run"]


def test_a_crash_between_two_renames_loses_nothing(tmp_path):
    fill(tmp_path / "run.previous", "old")
    assert complete_folder(tmp_path / "run") == tmp_path / "run.previous"
    restore_folder(tmp_path / "run")
    assert names(tmp_path) == ["run"]
    fill(tmp_path / "run.previous", "older")
    assert complete_folder(tmp_path / "run") == tmp_path / "run"
    restore_folder(tmp_path / "run")
    assert (tmp_path / "run" / "inner" / "text").read_text() == "old"
    assert names(tmp_path) == ["run"]


WRITER = """
import sys
from pathlib import Path
from crossclr.storage import new_folder
number = 0
while True:
    number += 1
    with new_folder(Path(sys.argv[1]), replace=True) as folder:
        for name in "ab":
            (folder / name).write_text(str(number) * 1000)
    print(number, flush=True)
"""


def test_a_killed_writer_leaves_a_complete_folder(tmp_path):
    for round_ in range(3):
        with subprocess.Popen([sys.executable, "-c", WRITER, tmp_path / "x"], stdout=subprocess.PIPE) as writer:
            for _ in range(5 + round_):
                writer.stdout.readline()
            os.kill(writer.pid, signal.SIGKILL)
        found = complete_folder(tmp_path / "x")
        assert (found / "a").read_text() == (found / "b").read_text()
        restore_folder(tmp_path / "x")
        assert names(tmp_path) == ["x"]
