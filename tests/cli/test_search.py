"""The commands of search, as the shell runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from crossclr.cli.options import find_run
from tests.search.conftest import indexed, one_thread, run_copy, small_map, trained  # noqa: F401
from tests.support.commands import ENVIRONMENT, run


def test_index_search_and_delete(monkeypatch, capsys, trained, tmp_path):  # noqa: F811
    path = tmp_path / "run"
    shutil.copytree(trained.path, path)
    assert run(monkeypatch, "index", path, "--splits", "val") == 0
    shown = capsys.readouterr().out
    assert "453 images (exact), 151 texts (exact)" in " ".join(shown.split())
    assert run(monkeypatch, "search", path, "red fruit", "--top", "3", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 3
    assert found[0]["score"] >= found[1]["score"]
    assert {"id", "text", "split", "media"} <= set(found[0])
    name = found[0]["id"]
    assert run(monkeypatch, "search", path, "--like", name, "--find", "image", "--top", "2") == 0
    assert "  1. " in capsys.readouterr().out
    assert run(monkeypatch, "index", path, "--delete", name, "--splits", "val") == 2
    assert "--delete takes no --splits" in capsys.readouterr().err
    assert run(monkeypatch, "index", path, "--delete", name) == 0
    assert "1 deleted" in capsys.readouterr().out
    assert run(monkeypatch, "search", path, "--like", name) == 2
    assert "names look like 'image/" in capsys.readouterr().err
    assert run(monkeypatch, "index", path, "--update", "--splits", "val") == 0
    assert "1 added" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "RUN"], "give a sentence"),
        (["search", "RUN", "a", "--like", "b"], "has no item"),
        (["search", "RUN", "--file", __file__], "cannot be used"),
        (["search", "RUN", "--file", "absent.png"], "absent.png"),
        (["search", "RUN", "a", "--split", "none"], "no split 'none'"),
        (["search", "RUN", "a", "--weight", "colour=2"], "'colour=2' is not one of text, file, more, less"),
        (["search", "RUN", "a", "--weight", "text"], "'text' is not one of text, file, more, less with a number"),
        (["search", "RUN", "a", "--weight", "text=-1"], "the weight of text must be between 0 and 100"),
        (["search", "RUN", "a", "--text-modality", "image"], "'image' cannot encode a sentence; the text modalities"),
        (["search", "RUN", "films/photo.jpg"], "looks like a file"),
        (["search", "RUN", __file__], "looks like a file"),
        (["search", "RUN", "a " * 600], "the limit is 1,000"),
        (["search", "nowhere", "a"], "not a run folder"),
        (["index", "RUN", "--splits", "none"], "none"),
        (["index", "RUN", "--modalities", "c"], "no modality 'c'"),
        (["index", "RUN", "--update"], "--splits"),
        (["index", "RUN", "--backend", "milvus"], "--uri"),
        (["index", "RUN", "--media", "nowhere"], "does not exist"),
    ],
)
def test_errors_are_one_line(monkeypatch, capsys, run_copy, arguments, message):  # noqa: F811
    assert run(monkeypatch, *(run_copy.path if part == "RUN" else part for part in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_the_folder_that_start_made_names_its_run(tmp_path):
    assert find_run(tmp_path) == tmp_path
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    assert find_run(tmp_path) == tmp_path / "run"
    (tmp_path / "config.yaml").touch()
    assert find_run(tmp_path) == tmp_path


def test_serve_answers_and_ends_by_ctrl_c(indexed):  # noqa: F811
    code = "import sys; from crossclr.cli import main; sys.argv = ['crossclr', *sys.argv[1:]]; main()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, "serve", str(indexed.path), "--port", "0"],
        env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        line = child.stdout.readline()
        assert "http://127.0.0.1:" in line
        address = line.split()[1]
        with urllib.request.urlopen(address + "api/search?q=house&top=2", timeout=20) as answer:
            assert len(json.load(answer)["results"]) == 2
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGINT)
        assert child.wait(20) in (0, 130)
        assert "Traceback" not in child.stdout.read()
    finally:
        child.kill()
        child.stdout.close()
