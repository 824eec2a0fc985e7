"""Timing in turns, and peak memory in a separate process."""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def side_by_side(
    functions: Mapping[str, Callable[[], object]], rounds: int, warm_up: int = 2, calls: int = 1
) -> dict[str, float]:
    """Median seconds of each function.

    The functions take turns, so that other load on the machine affects all of them. A turn is one call that does not
    count (the previous function has filled the caches with its own data) and ``calls`` calls that do.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(rounds + 1):
        for name, function in functions.items():
            for call in range((warm_up if turn == 0 else 1) + calls):
                start = time.perf_counter()
                function()
                if turn and call:
                    seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def peak_megabytes() -> float:
    """The peak memory of this process so far."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike ru_maxrss, it does not include the memory of the parent process
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def start_peak() -> float:
    """Reset the peak, if the system allows it.

    Returns:
        Megabytes in use now.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return peak_megabytes()


def in_own_process(module: str, *arguments: str) -> dict[str, float]:
    """Run ``python -m module arguments`` and read the JSON object that it prints last."""
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return result
