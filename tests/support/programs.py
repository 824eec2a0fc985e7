"""System programs that some tests need."""

import os
import shutil

import pytest


def program(*names: str) -> str:
    """The path of the first program that exists. Without any, the test fails in CI and is skipped elsewhere."""
    for name in names:
        if found := shutil.which(name):
            return found
    return absent(f"needs the program {' or '.join(names)}")


def absent(reason: str) -> str:
    """Fail in CI, where every program is installed; skip elsewhere."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)
