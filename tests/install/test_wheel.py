"""The built wheel in a fresh environment outside the project: core only, and with the extra `all`."""

import json
import re
import signal
import subprocess
import urllib.request

import pytest

from crossclr.cli import COMMANDS
from crossclr.doctor import WITHOUT_DEPENDENCIES
from tests.support.fresh_environment import FreshEnvironment, build_wheel, pip

LARGEST_WHEEL = 12.5e6  # bytes; docs/quick-start.md says why it is not smaller
QUICK = ["--set", "training.epochs=2"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def test_the_wheel_is_small_and_holds_the_package_only(wheel):
    import zipfile

    assert wheel.stat().st_size < LARGEST_WHEEL
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"crossclr"}


def answered(done):
    """The command worked, or said in one line what is wrong."""
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1]
        assert done.returncode in (1, 2), done.stderr
        assert last.startswith("error: "), done.stderr
        return last
    return ""


NAMES_AN_EXTRA = {  # commands that need an extra, and the arguments that show it
    "start": ["images", "--captions", "captions.json", "--no-serve"],
    "extract": ["images", "--captions", "captions.json"],
    "index": ["run"],
    "search": ["run", "red fruit"],
    "serve": ["run", "--port", "0"],
    "export": ["run"],
    "push": ["run", "me/run"],
    "pull": ["me/run"],
}
WORKS = {  # commands of the core
    "evaluate": ["run"],
    "embed": ["run", "--out", "embeddings.npz"],
    "check": ["emoji", "--limit", "20"],
    "config": ["list"],
    "doctor": [],
}
SAYS_WHAT_IS_WRONG = {  # commands of the core whose data is not here
    "study": ["run", "losses", "--study", "absent.yaml", "--out", "study"],
    "caption": ["train", "absent"],
    "import-coot": ["absent.pth", "--out", "coot"],
    "import-ce": ["absent", "--out", "ce"],
}


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    """An environment without extras, and a folder with a trained run."""
    environment = FreshEnvironment(tmp_path_factory.mktemp("core") / "venv", wheel)
    folder = tmp_path_factory.mktemp("core-work")
    write_media(folder)
    done = environment.run("train", "emoji", "--out", "run", *QUICK, folder=folder)
    assert done.returncode == 0, done.stderr
    return environment, folder


def write_media(folder, count=12):
    """Images of plain colours with captions."""
    image = pytest.importorskip("PIL.Image")
    (folder / "images").mkdir()
    captions = {}
    for number in range(count):
        image.new("RGB", (64, 64), (number * 20, 90, 255 - number * 20)).save(folder / "images" / f"{number}.png")
        captions[str(number)] = {"captions": [f"a square of colour number {number}"]}
    (folder / "captions.json").write_text(json.dumps(captions))


def test_the_lists_of_commands_are_complete():
    assert {*NAMES_AN_EXTRA, *WORKS, *SAYS_WHAT_IS_WRONG, "train", "demo"} == set(COMMANDS)


def test_the_core_environment_is_consistent_and_has_no_extra(core):
    pip("--python", core[0].python, "check")
    for module in ("transformers", "h5py", "lightning_fabric", "tensorboard", "faiss", "onnxruntime", "optuna"):
        assert not (core[0].packages / module).exists()


@pytest.mark.parametrize("command", sorted(NAMES_AN_EXTRA))
def test_core_only_a_command_names_the_extra_it_needs(core, command):
    environment, folder = core
    problem = answered(environment.run(command, *NAMES_AN_EXTRA[command], folder=folder))
    assert re.search(r"pip install 'crossclr\[\w+\]'", problem), problem


@pytest.mark.parametrize("command", sorted(WORKS))
def test_core_only_a_command_of_the_core_works(core, command):
    environment, folder = core
    assert answered(environment.run(command, *WORKS[command], folder=folder)) == ""


def test_core_only_the_demo_shows_numbers_and_searches(core):
    environment, folder = core
    done = environment.run("demo", "--set", "training.epochs=2", folder=folder)
    assert done.returncode == 0, done.stderr
    for words in ("linear CCA", "default", "sad cat:", "pip install 'crossclr[all]'"):
        assert words in done.stdout


@pytest.mark.parametrize("command", sorted(SAYS_WHAT_IS_WRONG))
def test_core_only_absent_data_is_one_line(core, command):
    environment, folder = core
    assert "absent" in answered(environment.run(command, *SAYS_WHAT_IS_WRONG[command], folder=folder))


def test_with_all_extras_from_images_to_a_service(wheel, tmp_path):
    environment = FreshEnvironment(tmp_path / "venv", wheel, ["all"], [*WITHOUT_DEPENDENCIES, "scikit-video"])
    folder = tmp_path / "work"
    folder.mkdir()
    write_media(folder)

    def run(*words):
        done = environment.run(*words, folder=folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "core      ok" in run("doctor")
    run("extract", "images", "--captions", "captions.json", "--out", "features")
    (config,) = folder.glob("features/*.yaml")
    run("train", config, "--out", "run", *QUICK)
    run("index", "run")
    assert len(json.loads(run("search", "run", "a square", "--json", "--top", "3"))) == 3
    assert json.loads(run("export", "run"))["search"]["largest_score_difference"] < 1e-3
    command = [str(environment.python.parent / "crossclr"), "serve", "run", "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as service:
        try:
            address = re.search(r"http://\S+", service.stdout.readline())[0]
            with urllib.request.urlopen(f"{address}api/search?q=a+square&top=3") as answer:
                assert len(json.load(answer)["results"]) == 3
        finally:
            service.send_signal(signal.SIGINT)
            service.wait(60)
