"""How much code a reader of one command has to follow. The limits only fall: lower them when a change allows it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.walk import Walk

ROOT = Path(__file__).parents[1]
# Aims: the loss 28 functions, 5 files, 950 lines; train 280, 50, 20, 50; index 200, 45, 12, 40; search 80, 22, 6, 12.
LIMITS = {
    "loss": {"functions": 32, "files": 6, "lines": 1213},
    "train": {"functions": 486, "files": 66, "pass_throughs": 59, "folder_changes": 128},
    "index": {"functions": 348, "files": 62, "pass_throughs": 38, "folder_changes": 81},
    "search": {"functions": 107, "files": 24, "pass_throughs": 10, "folder_changes": 25},
}


def check(name: str, *words: str) -> None:
    """Compare the walk of some words with its limits."""
    command = [sys.executable, "-m", "tests.support.walk", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    walk = json.loads(done.stdout.splitlines()[-1])
    longer = {what: f"{walk[what]}, at most {most}" for what, most in LIMITS[name].items() if walk[what] > most}
    assert not longer, f"{name} runs through more of the package than before: {longer}"


@pytest.mark.slow
def test_one_call_of_the_loss():
    check("loss", "loss")


@pytest.mark.slow
def test_training_indexing_and_searching(tmp_path):
    run = str(tmp_path / "run")
    check("train", "train", "emoji", "--recipe", "paper", "--set", "training.epochs=1", "--out", run)
    check("index", "index", run)
    check("search", "search", run, "something to drink")


def test_the_count_of_a_known_walk():
    from crossclr.suggestions import suggest

    suggest("temperature", ["temperature"])  # the module is loaded now
    walk = Walk.of(lambda: suggest("temp", ["temperature"]))
    lines = len((ROOT / "src/crossclr/suggestions.py").read_text().splitlines())
    assert walk == Walk(functions=1, files=1, lines=lines, pass_throughs=0, folder_changes=0)
