"""Facts that stand in several files agree."""

import re
import tomllib
from pathlib import Path

import crossclr

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_version_has_one_source():
    assert "version" in PROJECT["dynamic"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (\S+)$", citation, re.MULTILINE)[1] == crossclr.__version__
    assert f"## {crossclr.__version__} " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_python_version_is_the_same_everywhere():
    wanted = PROJECT["requires-python"].removeprefix(">=")
    for name in ("README.md", "CONTRIBUTING.md", "Makefile"):
        assert f"Python {wanted} or newer" in (ROOT / name).read_text(encoding="utf-8"), name
    assert f"Programming Language :: Python :: {wanted}" in PROJECT["classifiers"]


def test_the_extra_all_has_every_extra_of_users():
    extras = set(PROJECT["optional-dependencies"]) - {"all", "docs", "dev"}
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(re.fullmatch(r"crossclr\[([\w,-]+)\]", everything)[1].split(",")) == extras


def test_doctor_knows_every_extra_of_users():
    from crossclr.doctor import EXTRAS

    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - {"all", "docs", "dev"}


def test_every_package_of_an_extra_has_its_module_in_the_error_message():
    from crossclr.extras import PROVIDES

    modules = {"pillow": "PIL", "faiss-cpu": "faiss"}
    listed = PROJECT["optional-dependencies"]
    for extra, provided in PROVIDES.items():
        names = [re.match(r"[\w-]+", line)[0] for line in listed[extra]]
        wanted = {modules.get(name, name.replace("-", "_")) for name in names}
        shared = {module for other, known in PROVIDES.items() if other != extra for module in known}
        assert wanted - shared <= set(provided) <= wanted, extra
    assert set(PROVIDES) == set(listed) - {"all", "docs", "dev"}


def test_pins_cover_what_is_required():
    pins = {
        re.split(r"[=@ ]", line)[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    }
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    names = {re.match(r"[\w-]+", line)[0].lower().replace("_", "-") for group in groups for line in group}
    assert names - pins == {"crossclr"}


def test_the_slow_places_exist():
    from tests.conftest import SLOW

    assert [place for place in SLOW if not (ROOT / "tests" / place).exists()] == []
