"""Imports go one way: a stage knows only itself and the stages before it."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "crossclr"
BEFORE: dict[str, set[str]] = {}
for name in ("storage", "extract", "features", "models", "losses", "training", "evaluation"):
    BEFORE[name] = set(BEFORE) | {name}
for name in ("search", "captions", "studies"):  # side by side: none knows another
    BEFORE[name] = BEFORE["evaluation"] | {name}
BOTTOM = {
    "allocator",
    "extras",
    "lazy_exports",
    "notices",
    "progress_bar",
    "suggestions",
}  # below all stages: every module may import these
FREE = {"cli", "api", "doctor", "estimator", "protocol", "__init__", "__main__", "demo"}  # these join stages


def imports_of(path: Path) -> set[str]:
    """The stages that a file imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            if node.module == "crossclr":
                found |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("crossclr."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("crossclr.")}
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "import_module"
            and node.args
            and isinstance(node.args[0], ast.Constant)
            and str(node.args[0].value).startswith("crossclr.")
        ):
            found.add(str(node.args[0].value).split(".")[1])
    return found - {"__version__"}


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_stage_imports_only_what_comes_before_it(path):
    stage = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if stage in FREE:
        return
    if stage in BOTTOM:
        assert not imports_of(path) - {stage}, f"{path.relative_to(ROOT)} lies below all stages and may import none"
        return
    assert stage in BEFORE, f"{stage} is no stage: put it in its place in the order"
    late = imports_of(path) - BEFORE[stage] - BOTTOM
    assert not late, f"{path.relative_to(ROOT)} imports {sorted(late)}, which come after {stage}"


def test_the_check_can_fail(tmp_path):
    (tmp_path / "bad.py").write_text(
        "def f():\n    from crossclr.training.run import Run\n    import crossclr.search\n"
    )
    assert imports_of(tmp_path / "bad.py") == {"training", "search"}


def test_there_are_no_drawers():
    assert not [path for path in files() if path.stem in ("utils", "helpers", "misc", "common")]
