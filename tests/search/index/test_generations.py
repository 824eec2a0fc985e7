import os
import signal
import subprocess
import sys

import pytest

from crossclr.search.index import current_generation, new_generation

CHILD = """
import sys, time
from pathlib import Path
from crossclr.search.index import new_generation
with new_generation(Path(sys.argv[1])) as folder:
    (folder / "data").write_text("half")
    print("writing", flush=True)
    time.sleep(60)
"""


def write(root, text):
    with new_generation(root) as folder:
        (folder / "data").write_text(text)


def test_a_change_is_a_new_folder_and_the_last_two_are_kept(tmp_path):
    assert current_generation(tmp_path) is None
    for text in ("1", "2", "3"):
        write(tmp_path, text)
        assert (current_generation(tmp_path) / "data").read_text() == text
    assert sorted(path.name for path in tmp_path.glob("generation-*")) == ["generation-000002", "generation-000003"]


def test_an_error_leaves_the_old_state(tmp_path):
    write(tmp_path, "good")
    with pytest.raises(FileNotFoundError), new_generation(tmp_path) as folder:
        (folder / "absent" / "data").write_text("bad")
    assert (current_generation(tmp_path) / "data").read_text() == "good"
    assert len(list(tmp_path.glob("generation-*"))) == 1


def test_a_killed_writer_leaves_the_old_state_and_no_lock(tmp_path):
    write(tmp_path, "good")
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline().strip() == "writing"
        with pytest.raises(ValueError, match="another process"), new_generation(tmp_path):
            pass
        os.kill(child.pid, signal.SIGKILL)
        child.wait(10)
    finally:
        child.kill()
        child.stdout.close()
    assert list(tmp_path.glob(".generation-*"))  # the half one is there, and nothing points to it
    assert (current_generation(tmp_path) / "data").read_text() == "good"
    write(tmp_path, "better")
    assert (current_generation(tmp_path) / "data").read_text() == "better"
    assert sorted(path.name for path in tmp_path.glob("*generation-*")) == ["generation-000001", "generation-000002"]


def test_a_pointer_to_nothing_is_an_error_that_says_so(tmp_path):
    (tmp_path / "CURRENT").write_text("../../etc")
    with pytest.raises(ValueError, match="rebuild the index"):
        current_generation(tmp_path)
