"""Real data sets, which are too large for the repository: a test that needs one is skipped without it."""

import os
from pathlib import Path

import pytest

ROOT = Path(os.environ.get("CROSSCLR_DATA") or Path(__file__).parents[3] / "shared" / "data")


def real_data(name: str) -> Path:
    """The folder of a data set below ``CROSSCLR_DATA``; skips the test where it is absent."""
    folder = ROOT / name
    if not folder.is_dir():
        pytest.skip(f"the data set {name} is not in {ROOT}; name its parent folder in CROSSCLR_DATA")
    return folder
