"""How much of the package one command runs through, for a person who follows it in the source.

    python -m tests.support.walk loss                   one call of CrossCLR with a queue, forward and backward
    python -m tests.support.walk train emoji ...        a command of crossclr

The last line of the output is the count as JSON. Run it in a process of its own: a module that is already loaded, or a
cache that is already filled, hides steps.
"""

from __future__ import annotations

import ast
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from inspect import CO_OPTIMIZED
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = Path(__file__).parents[2] / "src" / "crossclr"
Step = tuple[str, str]  # file below the package, qualified name


@dataclass(frozen=True)
class Walk:
    """The functions that ran, each counted once, in the order of their first calls."""

    functions: int
    files: int
    lines: int  # of these files
    pass_throughs: int  # functions whose body is a single call
    folder_changes: int  # a function in another top folder than the one before

    @classmethod
    def of(cls, run: Callable[[], object]) -> Walk:
        """Call ``run`` and count what it runs through."""
        codes: dict[CodeType, None] = {}

        def note(frame: FrameType, event: str, _argument: Any) -> None:
            if event == "call" and frame.f_code.co_flags & CO_OPTIMIZED:  # not the bodies of modules and classes
                codes.setdefault(frame.f_code)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            run()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        steps = dict.fromkeys(step for code in codes if (step := _step(code)) is not None)
        return cls.of_steps(list(steps))

    @classmethod
    def of_steps(cls, steps: Sequence[Step]) -> Walk:
        """Count steps that are already known."""
        files = list(dict.fromkeys(file for file, _ in steps))
        folders = [file.partition("/")[0] for file, _ in steps]
        return cls(
            functions=len(steps),
            files=len(files),
            lines=sum(len((PACKAGE / file).read_text(encoding="utf-8").splitlines()) for file in files),
            pass_throughs=sum(_functions(file)[name] for file, name in steps),
            folder_changes=sum(left != right for left, right in pairwise(folders)),
        )


def _step(code: CodeType) -> Step | None:
    """The file and name of a function of the package; None for other code, lambdas and comprehensions."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE):
        return None
    file = str(path.relative_to(PACKAGE))
    return (file, code.co_qualname) if code.co_qualname in _functions(file) else None


@cache
def _functions(file: str) -> dict[str, bool]:
    """The functions of a file by their qualified names, and whether their body is a single call."""
    found: dict[str, bool] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found[prefix + child.name] = _is_pass_through(child)
                visit(child, f"{prefix}{child.name}.<locals>.")
            else:
                visit(child, f"{prefix}{child.name}." if isinstance(child, ast.ClassDef) else prefix)

    visit(ast.parse((PACKAGE / file).read_text(encoding="utf-8")), "")
    return found


def _is_pass_through(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return len(body) == 1 and isinstance(body[0], ast.Return | ast.Expr) and isinstance(body[0].value, ast.Call)


def walk_of_loss() -> Walk:
    """One call of CrossCLR with a queue, forward and backward."""
    import torch

    from crossclr.losses import CrossCLR

    torch.manual_seed(1)  # of features that pruning leaves enough negatives of
    loss = CrossCLR(queue_size=64)
    embeddings = [torch.randn(16, 8, requires_grad=True) for _ in range(2)]
    features = [torch.randn(16, 12) + 1 for _ in range(2)]
    return Walk.of(lambda: loss(*embeddings, *features, ids=torch.arange(16)).backward())


def walk_of_command(words: Sequence[str]) -> Walk:
    """A command of crossclr, which must succeed."""
    from crossclr.cli import main

    def run() -> None:
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"the command ended with {end.code}") from end

    sys.argv = ["crossclr", *words]
    return Walk.of(run)


if __name__ == "__main__":
    counted = walk_of_loss() if sys.argv[1:] == ["loss"] else walk_of_command(sys.argv[1:])
    print(json.dumps(asdict(counted)))
