"""Freed memory stays with the process, and only where it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys, torch
from pathlib import Path
from crossclr.allocator import keep_freed_memory, return_freed_memory

def held():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024

done = keep_freed_memory() if sys.argv[1] != "leave" else False
block = torch.ones(25 * 2**20)  # 100 MB, more than glibc keeps by itself
before = held()
del block
if sys.argv[1] == "return":
    return_freed_memory(above=2**30)
    few = round(before - held())
    assert few < 10, few  # less than the limit: kept
    return_freed_memory()
print(done, round(before - held()))
"""


def given_back(choice: str, **variables: str) -> tuple[str, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | variables
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, choice], env=environment, capture_output=True, text=True, check=True
    )
    answer, megabytes = done.stdout.split()
    return answer, int(megabytes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is what is set")
def test_freed_memory_is_kept() -> None:
    answer, megabytes = given_back("keep")
    assert answer == "True"
    assert megabytes < 10
    answer, megabytes = given_back("leave")
    assert answer == "False"
    assert megabytes > 90


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is what is set")
def test_a_users_own_settings_stay() -> None:
    answer, megabytes = given_back("keep", MALLOC_MMAP_THRESHOLD_="1000000")
    assert answer == "False"
    assert megabytes > 90


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator is what is set")
def test_too_much_freed_memory_is_returned() -> None:
    answer, megabytes = given_back("return")
    assert answer == "True"
    assert megabytes > 90
