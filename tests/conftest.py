"""What all tests share: property tests that always give the same cases, and which tests `make check` omits."""

from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("crossclr", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("crossclr")

TESTS = Path(__file__).parent
SLOW = (  # places that train, start processes or drive a browser; single tests elsewhere have the mark `slow`
    "studies",
    "captions",
    "cli",
    "evaluation/export",
    "evaluation/runs",
    "extract/test_end_to_end.py",
    "extract/test_extract.py",
    "fuzz",
    "install",
    "losses/test_distributed.py",
    "search",
    "test_api.py",
    "test_docs.py",
    "test_doctor.py",
    "test_estimator.py",
    "test_extras.py",
    "test_notebooks.py",
    "test_protocol.py",
    "training",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS) and item.path.relative_to(TESTS).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)
