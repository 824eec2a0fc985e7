"""Time until a command or an import is ready, as a ratio to `import torch` in the same rounds.

Each line runs in a fresh process; the lines take turns, and the median of five rounds counts.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

from benchmarks.measure import side_by_side

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
}


def started(*words: str) -> Callable[[], object]:
    """A function that runs Python with these words and waits for its end."""
    return lambda: subprocess.run([sys.executable, *words], capture_output=True, check=False)


def run(rounds: int = 5) -> dict[str, float]:
    """Median seconds of each line, and its ratio to ``import torch``."""
    lines = {name: started("-c", code) for name, code in IMPORTS.items()}
    lines |= {name: started("-m", "crossclr", *words) for name, words in COMMANDS.items()}
    seconds = side_by_side(lines, rounds, warm_up=1)
    ratios = {f"{name}_ratio": value / seconds["import_torch"] for name, value in seconds.items()}
    return {**{f"{name}_seconds": value for name, value in seconds.items()}, **ratios}


if __name__ == "__main__":
    for key, value in run().items():
        print(f"{key:30s}{value:8.3f}")
