"""The shape of the package: imports go one way, names have one meaning, and its size only falls.

The numbers and lists at the top are those of today. Lower a number or remove an entry when a change allows it; never
raise one.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1] / "src" / "crossclr"
LIMITS = {
    "files": 207,  # 200 when the redesign is done
    "lines": 40055,  # 34,000
    "folder levels": 2,  # 2
    "files above 400 lines": 0,
}
LONGEST_BODY = 40  # lines of a function without its docstring
LONG_FUNCTIONS = {  # at most ten, of at most 60 lines when the redesign is done
    "_count": 42,
}

# A module imports only from its own stage and from those before it.
BOTTOM = ("errors", "devices", "extras", "notices", "suggestions", "lazy_exports", "allocator", "progress_bar")
STAGES = ("storage", "data", "models", "losses", "training", "evaluation", "extract")
USES = ("search", "captions", "studies")  # side by side: none knows another
TOP = (
    "cli",
    "api",
    "doctor",
    "estimator",
    "protocol",
    "__init__",
    "__main__",
    "demo",
    "integrations",
)  # may import everything
LATE_IMPORTS: dict[tuple[str, str], int] = {}  # (stage, later stage that it imports): number of files


@dataclass(frozen=True)
class Source:
    """One file of Python and what the checks read in it."""

    path: str  # below the package
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def stage(self) -> str:
        return self.path.partition("/")[0].removesuffix(".py")

    @property
    def imports(self) -> set[str]:
        """The stages that the file imports, at any depth."""
        names: set[str] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{self.path}: imports are written in full"
                if node.module == "crossclr":
                    names |= {f"crossclr.{alias.name}" for alias in node.names}
                names.add(node.module or "")
            elif isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
                names |= {str(part.value) for part in node.args[:1] if isinstance(part, ast.Constant)}
        return {name.split(".")[1] for name in names if name.startswith("crossclr.")} - {"__version__"}

    @property
    def late_imports(self) -> set[str]:
        """The stages that it must not import."""
        order = (*BOTTOM, *STAGES)
        if self.stage in TOP:
            return set()
        assert self.stage in (*order, *USES), f"{self.path}: {self.stage} has no place in the order of imports"
        earlier = order if self.stage in USES else order[: order.index(self.stage)]
        return self.imports - {*earlier, self.stage}

    @property
    def long_functions(self) -> Iterator[tuple[str, int]]:
        """The functions with a long body, and its lines."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > LONGEST_BODY:
                    yield node.name, lines

    @property
    def classes(self) -> set[str]:
        return {node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef)}

    @property
    def public_functions(self) -> set[str]:
        functions = (node.name for node in self.tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        return {name for name in functions if not name.startswith("_")}


SOURCES = [
    Source(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in sorted(ROOT.rglob("*.py"))
]


def test_a_stage_imports_only_what_comes_before_it():
    late = defaultdict(list)
    for source in SOURCES:
        for stage in source.late_imports:
            late[source.stage, stage].append(source.path)
    wrong = {pair: paths for pair, paths in late.items() if len(paths) > LATE_IMPORTS.get(pair, 0)}
    assert not wrong, f"these import a stage that comes after their own: {wrong}"


def test_the_package_does_not_grow():
    sizes = {
        "files": len(SOURCES),
        "lines": sum(len(source.text.splitlines()) for source in SOURCES),
        "folder levels": max(source.path.count("/") for source in SOURCES),
        "files above 400 lines": sum(len(source.text.splitlines()) > 400 for source in SOURCES),
    }
    assert not {what: size for what, size in sizes.items() if size > LIMITS[what]}, f"{sizes}; allowed: {LIMITS}"


def test_functions_are_short():
    long = [(source.path, name, lines) for source in SOURCES for name, lines in source.long_functions]
    wrong = [one for one in long if one[2] > LONG_FUNCTIONS.get(one[1], LONGEST_BODY)]
    assert not wrong, f"split these functions: {wrong}"
    assert len(long) <= 10


def test_a_class_name_has_one_meaning():
    counts = Counter(name for source in SOURCES for name in source.classes)
    assert not {name for name, count in counts.items() if count > 1}


def test_a_public_function_name_has_one_meaning():
    # a command is a function with the name of the function that it calls
    sources = [source for source in SOURCES if source.stage != "cli"]
    counts = Counter(name for source in sources for name in source.public_functions)
    assert not {name for name, count in counts.items() if count > 1}


def test_the_checks_can_fail():
    text = "def f():\n    from crossclr.training.run import Run\n    import crossclr.search\n" + "    a = 1\n" * 40
    bad = Source("models/bad.py", text + "class A: pass\nasync def g(): pass\n")
    assert bad.imports == bad.late_imports == {"training", "search"}
    assert Source("search/bad.py", text).late_imports == set()
    assert Source("studies/bad.py", text).late_imports == {"search"}
    assert list(bad.long_functions) == [("f", 42)]
    assert bad.classes == {"A"}
    assert bad.public_functions == {"f", "g"}


def test_every_error_has_one_base():
    bases = {
        node.name: [ast.unparse(base) for base in node.bases]
        for source in SOURCES
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
    }
    assert {"CrossCLRError", "DataError", "ConfigError", "QueryError"} <= bases.keys()
    known = {"CrossCLRError"}
    while found := {name for name, parents in bases.items() if known & set(parents)} - known:
        known |= found
    assert known == set(bases)


def test_there_are_no_drawers():
    drawers = {"utils", "helpers", "misc", "common"}
    assert not [source.path for source in SOURCES if Path(source.path).stem in drawers]
