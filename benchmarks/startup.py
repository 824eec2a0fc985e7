"""Time until a command or an import is ready, as a ratio to `import torch` in the same rounds.

Each line runs in a fresh process; the lines take turns, and the median of five rounds counts. The time is that of the
processor (user and system), which other programs on the machine affect less than the time on the clock. Whole tasks are
measured on the clock. Commands that need a run get one that is trained for two epochs on the built-in set.
"""

from __future__ import annotations

import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

IMPORTS = {
    "import_torch": "import torch",
    "import_crossclr": "import crossclr; crossclr.__version__",
    "import_losses": "import crossclr.losses; crossclr.losses.CrossCLR",
    "import_estimator": "from crossclr import JointEmbedding",
}
COMMANDS = {
    "version": ["--version"],
    "help": ["--help"],
    "config_list": ["config", "list"],
    "config_show": ["config", "show", "emoji"],
    "config_error": ["config", "show", "emoji", "--set", "training.epoch=1"],
    "search_cold": ["search", "run", "something to drink"],
}
WHOLE = {  # whole tasks, once a round; reported in seconds on the clock
    "train_emoji": ["train", "emoji", "--recipe", "paper", "--out", "run-{round}"],
    "index_emoji": ["index", "run-{round}"],
}


def processor_seconds(words: Sequence[str], folder: Path) -> float:
    """Processor time of Python with these words, in a process of its own."""
    used = _finished(words, folder)
    return used.ru_utime + used.ru_stime


def clock_seconds(words: Sequence[str], folder: Path) -> float:
    """Time on the clock of Python with these words, in a process of its own."""
    start = time.perf_counter()
    _finished(words, folder)
    return time.perf_counter() - start


def _finished(words: Sequence[str], folder: Path) -> resource.struct_rusage:
    with subprocess.Popen([sys.executable, *words], cwd=folder, stdout=-3, stderr=-3) as process:
        _, _, used = os.wait4(process.pid, 0)
        process.returncode = 0
    return used


def run(rounds: int = 5) -> dict[str, float]:
    """Median seconds of each line, and its ratio to ``import torch``."""
    crossclr = ["-m", "crossclr"]
    lines = {name: ["-c", code] for name, code in IMPORTS.items()}
    lines |= {name: [*crossclr, *words] for name, words in COMMANDS.items()}
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for words in (
            ["train", "emoji", "--recipe", "paper", "--set", "training.epochs=2", "--out", "run"],
            ["index", "run"],
        ):
            processor_seconds([*crossclr, *words], folder)
        for turn in range(rounds + 1):  # the first round fills the caches of the disk
            measured = {name: processor_seconds(words, folder) for name, words in lines.items()}
            with service(folder):
                measured["search_service"] = processor_seconds(lines["search_cold"], folder)
            for name, words in WHOLE.items():
                measured[name] = clock_seconds([*crossclr, *(w.format(round=turn) for w in words)], folder)
            for name, value in measured.items() if turn else ():
                found.setdefault(name, []).append(value)
    seconds = {name: statistics.median(values) for name, values in found.items()}
    ratios = {f"{name}_ratio": value / seconds["import_torch"] for name, value in seconds.items() if name not in WHOLE}
    return {**{f"{name}_seconds": value for name, value in seconds.items()}, **ratios}


class service:  # noqa: N801
    """`crossclr serve run` while the block runs."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "crossclr", "serve", "run", "--port", "0"]
        self.process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)

    def __enter__(self) -> None:
        assert self.process.stdout is not None
        assert re.search("http://", self.process.stdout.readline())

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


if __name__ == "__main__":
    for key, value in run().items():
        print(f"{key:30s}{value:8.3f}")
