"""`make bench`: run all benchmarks, print them and write benchmarks/results.json."""

from __future__ import annotations

import importlib
import json
import platform
import sys
import time
from pathlib import Path

import torch

BENCHMARKS = (
    "startup",
    "loss_step",
    "loss_modalities",
    "loss_memory",
    "training_step",
    "tiny_numbers",
    "ranks",
    "loading",
    "extract",
    "search",
    "captions",
)


def main(names: list[str]) -> None:
    """Run the named benchmarks, or all; keep the stored results of the others."""
    path = Path(__file__).with_name("results.json")
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names or BENCHMARKS:
        print(f"==> {name}", flush=True)
        start = time.perf_counter()
        found = importlib.import_module(f"benchmarks.{name}").run()
        for key, value in found.items():
            print(f"    {key:40s}{value:12.3f}" if isinstance(value, int | float) else f"    {key:40s}{value}")
        results[name] = {
            "results": found,
            "seconds": round(time.perf_counter() - start, 1),
            "machine": f"{torch.get_num_threads()} threads, {platform.machine()}",
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=2) + "\n")
        temporary.replace(path)
    print(f"==> written to {path}")


if __name__ == "__main__":
    main(sys.argv[1:])
