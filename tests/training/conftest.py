from pathlib import Path

import pytest
import yaml

from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture(scope="session")
def coot_folder(tmp_path_factory) -> Path:
    return write_coot(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture
def tiny(coot_folder) -> dict:
    return tiny_values(coot_folder)


@pytest.fixture
def tiny_file(tiny, tmp_path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    return path
