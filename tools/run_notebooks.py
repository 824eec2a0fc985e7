"""Run the notebooks of the documentation and store what they print and show.

    python tools/run_notebooks.py [docs/notebooks/loss.ipynb ...]

Code cells run in order in one namespace and a temporary folder. As in Jupyter, a line that starts with ``!`` is a
command of the shell, and the value of the last line is shown: an image of Pillow as PNG, anything else as text.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"
Json = dict[str, Any]


def run(notebook: Json) -> Json:
    """A copy of a notebook with new outputs; an error in a cell is raised."""
    namespace: Json = {"__name__": "__main__"}
    cells, count, before = [], 0, Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    count += 1
                    outputs = run_cell("".join(cell["source"]), namespace)
                    cell = {**cell, "execution_count": count, "outputs": outputs}
                cells.append(cell)
        finally:
            os.chdir(before)
    return {**notebook, "cells": cells}


def run_cell(source: str, namespace: Json) -> list[Json]:
    """Run one cell and return its outputs."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        commands = [line for line in source.splitlines() if line.startswith("!")]
        for command in commands:
            print(shell(command[1:]), end="")
        code = ast.parse("\n".join(line for line in source.splitlines() if not line.startswith("!")))
        value = None
        if code.body and isinstance(code.body[-1], ast.Expr):
            last = ast.Expression(code.body.pop().value)  # type: ignore[attr-defined]
            exec(compile(code, "<cell>", "exec"), namespace)
            value = eval(compile(last, "<cell>", "eval"), namespace)
        else:
            exec(compile(code, "<cell>", "exec"), namespace)
    outputs: list[Json] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": shown(value)})
    return outputs


def shell(command: str) -> str:
    """What a command prints; ``crossclr`` is the one of this interpreter."""
    words = shlex.split(command)
    if words[0] == "crossclr":
        words = [sys.executable, "-m", *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80"})
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr}")
    return done.stdout


def shown(value: Any) -> Json:
    """A value as Jupyter shows it."""
    if hasattr(value, "_repr_png_"):
        return {"image/png": base64.b64encode(value._repr_png_()).decode(), "text/plain": ["<image>"]}
    return {"text/plain": lines(repr(value))}


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    for path in [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        found = run(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{path.name}: {sum(cell['cell_type'] == 'code' for cell in found['cells'])} cells")


if __name__ == "__main__":
    main()
