"""Run benchmarks, print their results and keep them in benchmarks/results.json; `make bench` runs the usual ones.

python -m benchmarks                          # the usual ones, half an hour on an idle machine
python -m benchmarks startup loss_step        # only these; the stored results of the others stay
python -m benchmarks --help                   # the list
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
USUAL = (
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


def available() -> dict[str, tuple[str, bool]]:
    """Each program of this folder: what it measures, and whether ``python -m benchmarks NAME`` runs it."""
    programs = {}
    for path in sorted(FOLDER.glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        functions = {node.name for node in module.body if isinstance(node, ast.FunctionDef)}
        is_program = any(isinstance(node, ast.If) and "__main__" in ast.unparse(node.test) for node in module.body)
        if is_program and not path.stem.startswith("_"):
            title = (ast.get_docstring(module) or "").partition("\n")[0]
            programs[path.stem] = (title, "run" in functions)
    return programs


def overview() -> str:
    """The list for ``--help``."""
    programs = available()
    width = max(map(len, programs))
    here = [f"  {name:{width}} {'*' if name in USUAL else ' '} {programs[name][0]}" for name in _runnable(programs)]
    others = [f"  {name:{width}}   {title}" for name, (title, runs) in programs.items() if not runs]
    lines = ["benchmarks (* runs when no name is given):", *here, ""]
    lines += ["programs with arguments of their own, started as python -m benchmarks.NAME:", *others]
    return "\n".join(lines)


def parse(words: Sequence[str]) -> list[str]:
    """The benchmarks that a command line names; an unknown name is an error."""
    usage = "python -m benchmarks [NAME ...]"
    about = "Run benchmarks, print their results and keep them in benchmarks/results.json."
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(usage=usage, description=about, epilog=overview(), formatter_class=form)
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks to run; default: those marked with *")
    names: list[str] = parser.parse_args(words).names
    programs = available()
    for name in names:
        if name in programs and not programs[name][1]:
            parser.error(f"{name} has arguments of its own; run: python -m benchmarks.{name}")
        if name not in programs:
            parser.error(f"there is no benchmark {name!r}; there are: {', '.join(_runnable(programs))}")
    return names or list(USUAL)


def main(names: Sequence[str]) -> None:
    """Run benchmarks; the stored results of the others stay."""
    import torch

    path = FOLDER / "results.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        print(f"==> {name}", flush=True)
        start = time.perf_counter()
        measured = importlib.import_module(f"benchmarks.{name}").run()
        for key, value in measured.items():
            print(f"    {key:40s}{value:12.3f}" if isinstance(value, int | float) else f"    {key:40s}{value}")
        results[name] = {
            "results": measured,
            "seconds": round(time.perf_counter() - start, 1),
            "machine": f"{torch.get_num_threads()} threads, {platform.machine()}",
            "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"),
        }
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(results, indent=2) + "\n")
        temporary.replace(path)
    print(f"==> written to {path}")


def _runnable(programs: dict[str, tuple[str, bool]]) -> list[str]:
    return [name for name, (_, runs) in programs.items() if runs]


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
