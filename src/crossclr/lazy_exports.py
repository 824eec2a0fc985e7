"""Names of a package that are imported when they are used. This module lies below all others and imports none of them.

A package lists its public names as imports in a stub, ``__init__.pyi``, which type checkers and editors read too. So
importing a package costs nothing, and reading a config never loads a deep-learning library.
"""

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package, whose stub lies next to ``file``.

    ``dir`` also lists the subpackages that the stub imports, and its ``__version__``.
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    places = {alias.name: str(node.module) for node in imports for alias in node.names}
    variables = [ast.unparse(node.target) for node in stub.body if isinstance(node, ast.AnnAssign)]

    def find(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if places[name] == package:  # importing it makes it an attribute
            return importlib.import_module(f"{package}.{name}")
        found = getattr(importlib.import_module(places[name]), name)
        setattr(sys.modules[package], name, found)  # the next use is a plain attribute
        return found

    names = sorted(name for name, place in places.items() if place != package)
    return find, lambda: sorted([*places, *variables]), names
