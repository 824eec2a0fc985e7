"""kill -9 at random moments of the long commands: the same command again ends with the same bytes, and nothing is left.

The normal suite kills each command once, `make fuzz` thirty times, and CROSSCLR_KILLS=n as often as it says.
"""

import os
import random
import re
import shutil
import time

import pytest
import yaml

from tests.fuzz.forked import finish, start
from tests.fuzz.verdicts import ALL
from tests.studies.conftest import write_study
from tests.support.media import BLUE, GREEN, RED, write_video
from tests.support.tiny_runs import tiny_values, write_coot

KILLS = int(os.environ.get("CROSSCLR_KILLS", "30" if ALL else "1"))
QUICK = [f"--set={text}" for text in ("model.dim=16", "model.heads=2", "model.word_dim=8", "vocabulary.min_count=0")]
QUICK.append("--set=training.epochs=2")
VOLATILE = ("environment.json", "checksums.json", "README.md")  # they hold times, commands, or checksums of such files


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data, a config, a finished run with and without an index, videos, and a finished study."""
    folder = tmp_path_factory.mktemp("kills")
    log = folder / "log.txt"
    values = tiny_values(write_coot(folder / "data"))
    values["training"].update(epochs=3, checkpoint_every=2)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(values))
    finish(["train", folder / "tiny.yaml", "--no-baseline", "--out", folder / "run"], log)
    shutil.copytree(folder / "run", folder / "indexed")
    finish(["index", folder / "indexed", "--splits", "val"], log)
    (folder / "videos").mkdir()
    for number, colour in enumerate((RED, GREEN, BLUE) * 2):
        write_video(folder / "videos" / f"{number}.mp4", [colour] * 10)
    write_study(folder / "study", methods=["crossclr", "clip"], seeds=[0], few_seeds=1, trials=0)
    return folder


def train(place, out):
    run = out / "run"
    resume = ["--resume", run] if run.exists() else [place / "tiny.yaml", "--out", run]
    return ["train", *resume, "--no-baseline"]


def embed(place, out):
    return ["embed", place / "run", "--split", "val", "--out", out / "vectors.npz", "--force"]


def index(place, out):
    if not (out / "run").exists():
        shutil.copytree(place / "run", out / "run")
    return ["index", out / "run", "--splits", "val"]


def update(place, out):
    if not (out / "run").exists():
        shutil.copytree(place / "indexed", out / "run")
    return ["index", out / "run", "--update", "--splits", "train"]


def caption(place, out):
    folder = out / "captions"
    resume = ["--resume", folder] if folder.exists() else [place / "run", "--out", folder, *QUICK]
    return ["caption", "train", *resume, "--no-meteor"]


def extract(place, out):
    return ["extract", place / "videos", "--experts", "appearance", "--out", out / "features"]


def experiment(place, out):
    return ["study", "run", "losses", "--study", place / "study" / "study.yaml", "--out", out / "study", "--jobs", "1"]


def report(place, out):
    words = ["study", "report", "--study", place / "study" / "study.yaml", "--jobs", "1", "--out"]
    if not (place / "trained").exists():  # its trainings are those of `experiment`
        finish([*words, place / "trained"], place / "log.txt")
        (place / "trained" / "report.html").unlink()
    if not (out / "study").exists():
        shutil.copytree(place / "trained", out / "study")
    return [*words, out / "study"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("command", [train, embed, index, update, caption, extract, experiment, report])
def test_a_killed_command_can_be_repeated(place, tmp_path, command):
    rng, log = random.Random(command.__name__), tmp_path / "log.txt"
    (tmp_path / "whole").mkdir()
    words = command(place, tmp_path / "whole")
    started = time.monotonic()
    finish(words, log)
    duration = time.monotonic() - started
    expected = content(tmp_path / "whole")
    for number in range(KILLS):
        out = tmp_path / str(number)
        out.mkdir()
        process = start(command(place, out), log)
        process.join(rng.uniform(0.0, 1.0) * duration)
        process.kill()
        process.join()
        finish(command(place, out), log)
        found = content(out)
        assert found.keys() == expected.keys(), f"kill {number}"
        assert [name for name in found if found[name] != expected[name]] == [], f"kill {number}: other bytes"
        assert leftovers(out) == [], f"kill {number}"
        shutil.rmtree(out)


def content(folder):
    """The bytes of all files without times and the folder itself; of an index, those of its current generation."""
    current = [path.parent / path.read_text().strip() for path in folder.rglob("CURRENT")]
    found = {}
    for path in sorted(folder.rglob("*")):
        old = "index" in path.parts and not any(path.is_relative_to(one) for one in current)
        if path.is_file() and "tensorboard" not in path.parts and not old:
            name = re.sub("generation-[0-9]+", "generation", str(path.relative_to(folder)))
            text = b"" if path.name in VOLATILE else path.read_bytes()
            found[name] = re.sub(rb'"seconds": [0-9.]+', b"", text).replace(bytes(folder), b"")
    return found


def leftovers(folder):
    return [path for path in folder.rglob(".*") if path.name.endswith((".partial", ".lock"))]
