"""The command line in this process and in a child."""

import os
import sys

import pytest

from crossclr.cli import main

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """Run ``crossclr ARGUMENTS`` as the shell does, in this process; returns the exit code."""
    monkeypatch.setattr(sys, "argv", ["crossclr", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)
