"""The demo on tiny models: what it prints, what it leaves, and that a second call repeats nothing."""

import sys
from pathlib import Path

import pytest

from crossclr.cli import main
from crossclr.data.emoji_set import QUERIES
from crossclr.training import Run

TINY = ("--set", "training.epochs=1", "--set", "model.dim=16")


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["crossclr", "demo", *words])
        monkeypatch.setenv("COLUMNS", "80")
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


def test_it_compares_searches_and_does_nothing_twice(call, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    code, text, _ = call("--out", str(out), *TINY)
    assert code == 0
    shown = {line.split("  ")[0]: line for line in text.splitlines()}
    for name in ("default", "CrossCLR", "CLIP", "linear CCA"):
        assert len(shown[name].split("  ")) > 4, text
    for query in QUERIES:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{query}: ")]
        assert len(line.split(", ")) >= 2
    assert f"serve {out / 'default'}" in text
    test = (Run.open(out / "crossclr").results or {})["test"]
    assert f"{sum(found['R@1'] for found in test.values()) / len(test):.1f}" in shown["CrossCLR"]
    written = {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")}
    code, again, _ = call("--out", str(out), *TINY)
    assert (code, again.count("already in")) == (0, 3)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*.safetensors")} == written
    code, _, error = call("--out", str(out), "--set", "training.epochs=2")
    assert code == 2
    assert "other settings" in error
