"""What the tests of captions share."""

import json
import os
import shutil
from pathlib import Path

import pytest

from crossclr.captions.meteor import Meteor

ROOT = Path(__file__).parents[2]


def shared(variable: str, folder: str) -> Path:
    return Path(os.environ.get(variable, ROOT.parent / "shared" / folder))


@pytest.fixture(scope="session")
def metric_cases():
    path = shared("CROSSCLR_FIXTURES", "fixtures") / "caption_metrics.json"
    if not path.is_file():
        pytest.skip(f"there is no fixture {path}; name its folder with CROSSCLR_FIXTURES")
    return json.loads(path.read_text())["cases"]


@pytest.fixture(scope="session")
def youcook2():
    folder = shared("CROSSCLR_DATA", "data") / "youcook2"
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder}; name its parent with CROSSCLR_DATA")
    return folder


@pytest.fixture(scope="session")
def java():
    found = shutil.which("java")
    if found is None:
        message = "METEOR needs Java, which is not installed"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(message)
        pytest.skip(message)
    return found


@pytest.fixture(scope="session")
def running_meteor(java):
    """One program for all tests: it takes seconds to start."""
    with Meteor(java) as running:
        yield running
