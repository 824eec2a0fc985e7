"""Every table of the commands is readable in a terminal of 80 columns: nothing is cut off, whatever it holds."""

import io
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from crossclr.cli import check, extract
from crossclr.data.report import DataReport, InfluenceSummary, Lengths, SplitSummary
from crossclr.extract import plan as planning
from crossclr.search import quick_search
from crossclr.search.items import Item
from crossclr.search.results import Hit
from tests.support.commands import run

LONG = "a-name-without-any-space-that-is-longer-than-half-of-the-terminal"


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=80)


def readable(text, *wanted):
    """Nothing is cut off; ``wanted`` are shown whole, or broken over lines between the borders of their column."""
    lines = text.splitlines()
    assert "…" not in text, text
    assert max(map(len, lines)) <= 80, text
    rows = [re.split(r"[│┃]", line)[1:-1] for line in lines if re.search(r"[│┃].*[│┃]", line)]
    width = max(map(len, rows))
    shown = ["".join(row[place].strip() for row in rows if place < len(row)) for place in range(width)]
    for part in wanted:
        assert any(part in column for column in shown), (part, text)


def test_results_of_a_search(monkeypatch, capsys):
    item = Item(0, f"a/{LONG}", "a", "x", f"{LONG} and more words", "validation", "", "", "video", f"/data/{LONG}.mp4")
    item = Item(**{**vars(item), "start": 12345.6, "stop": 12347.8})
    monkeypatch.setattr(quick_search, "ask_running_service", lambda *_, **__: [Hit(item, 0.98765)])
    monkeypatch.setenv("COLUMNS", "80")
    assert run(monkeypatch, "search", "run", "red fruit") == 0
    lines = capsys.readouterr().out.splitlines()  # the terminal wraps them, so that a path is copied in one piece
    assert lines[0] == f"  1. /data/{LONG}.mp4  12345.6–12347.8 s"
    assert lines[1:] == [f"     0.988 · a/{LONG} · validation", f"     {LONG} and more words"]
    assert run(monkeypatch, "search", "run", "red fruit", "--paths") == 0
    assert capsys.readouterr().out == f"/data/{LONG}.mp4\n"


def test_the_plan_of_an_extraction(monkeypatch, console):
    shares = [planning.Share("appearance-paper", False, 123_456_789, 987_654_321_000, 123456.0)]
    monkeypatch.setattr(planning, "plan_extraction", lambda job: planning.Plan(1000, 0, 99.0, shares, 9999.0))
    expert = SimpleNamespace(model=f"{LONG}/{LONG}", dim=2048)
    extract.show_plan(SimpleNamespace(experts=[expert], out=Path("features")), console)
    readable(console.file.getvalue(), "appearance-paper", f"{LONG}/{LONG}", "123,456,789", "2,048")


def test_the_report_of_a_data_check(console):
    lengths = {"paragraph": Lengths(1_000_000, 1, 1234.5, 1234.5, 123_456, 999_999)}
    present = {"video": 12_345_678, "text": 1_234_567, "video + text": 987_654}
    split = SplitSummary(samples=1_234_567, clips=12_345_678, present=present, lengths=lengths)
    shares = {0.1: 0.123, 0.95: 0.999}
    about = InfluenceSummary(1_234_567, {0.0: -0.123, 0.5: 0.5, 1.0: 1.0}, 0.5, shares, shares, shares)
    report = DataReport({"video": 4096, "text": 768}, True, {LONG[:30]: split}, [], "train", {"paragraph": about})
    check.show_report(report, console)
    readable(console.file.getvalue(), "1,234,567", "12,345,678", "987,654", "1234.5", "123456", "100.0%", "99.9%")
