"""kill -9 at random moments of the long commands: the same command again ends with the same bytes, and nothing is left.

The normal suite kills each command once, `make fuzz` thirty times.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.fuzz.verdicts import ALL
from tests.support.tiny_runs import tiny_values, write_coot

KILLS = 30 if ALL else 1
QUICK = [f"--set={text}" for text in ("model.dim=16", "model.heads=2", "model.word_dim=8", "vocabulary.min_count=0")]
QUICK.append("--set=training.epochs=2")
VOLATILE = ("environment.json", "checksums.json")  # they hold times, commands, or checksums of such files


def crossclr(*arguments):
    """Start a command."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    return subprocess.Popen(
        [sys.executable, "-m", "crossclr", *map(str, arguments)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


def finish(*arguments):
    process = crossclr(*arguments)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output


def content(folder):
    """The bytes of all files that do not hold times."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in VOLATILE and "tensorboard" not in path.parts
    }


def leftovers(folder):
    return [path for path in folder.rglob(".*") if path.name.endswith((".partial", ".lock"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, a config and a finished run."""
    folder = tmp_path_factory.mktemp("kills")
    values = tiny_values(write_coot(folder / "data"))
    values["training"].update(epochs=3, checkpoint_every=2)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    finish("train", folder / "tiny.yaml", "--no-baseline", "--out", folder / "run")
    return folder


def train(place, out):
    run = out / "run"
    resume = ["--resume", run] if run.exists() else [place / "tiny.yaml", "--out", run]
    return ["train", *resume, "--no-baseline"]


def embed(place, out):
    return ["embed", place / "run", "--split", "val", "--out", out / "vectors.npz"]


def index(place, out):
    if not (out / "run").exists():
        shutil.copytree(place / "run", out / "run")
    return ["index", out / "run", "--splits", "val"]


def update(place, out):
    if not (place / "indexed").exists():
        shutil.copytree(place / "run", place / "indexed")
        finish("index", place / "indexed", "--splits", "val")
    if not (out / "run").exists():
        shutil.copytree(place / "indexed", out / "run")
    return ["index", out / "run", "--update", "--splits", "train"]


def caption(place, out):
    folder = out / "captions"
    resume = ["--resume", folder] if folder.exists() else [place / "run", "--out", folder, *QUICK]
    return ["caption", "train", *resume, "--no-meteor"]


@pytest.mark.slow
@pytest.mark.parametrize("command", [train, embed, index, update, caption])
def test_a_killed_command_can_be_repeated(place, tmp_path, command):
    rng = random.Random(command.__name__)
    (tmp_path / "whole").mkdir()
    started = time.monotonic()
    finish(*command(place, tmp_path / "whole"))
    duration = time.monotonic() - started
    expected = _compared(tmp_path / "whole", command)
    for number in range(KILLS):
        out = tmp_path / str(number)
        out.mkdir()
        process = crossclr(*command(place, out))
        try:
            process.wait(rng.uniform(0.2, 1.0) * duration)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.communicate()
        finish(*command(place, out))
        assert _compared(out, command) == expected, f"kill {number}: other bytes"
        assert leftovers(out) == [], f"kill {number}"
        shutil.rmtree(out)


def _compared(out, command):
    found = content(out)
    if command in (
        index,
        update,
    ):  # a second build is another generation
        return sorted(name.split("/", 3)[-1] for name in found if "generation" in name and name.endswith(".npy"))
    return {name: data for name, data in found.items() if not name.endswith("README.md")}
