"""Moments: films joined from clips of the built-in set, and whether a sentence finds the right second.

Run: python -m benchmarks.moments RUN, where RUN is a trained run on the built-in set that has an index
"""

from __future__ import annotations

import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crossclr.data.emoji_set import VENDORS, Emoji, emoji_image, load_emoji
from crossclr.search import Searcher
from crossclr.search.folders import add_folder
from crossclr.search.results import group_hits

CLIPS, FILMS, RATE, SIZE = 80, 4, 4, 144
CUTS = ("scenes", "windows=10s/5s", "windows=4s/2s")


def frames(emoji: Emoji, vendor: str, seconds: int) -> list[Image.Image]:
    """A drawing that grows on a pale background."""
    drawing = Image.open(io.BytesIO(emoji_image(emoji.key, vendor))).convert("RGBA")
    colour = (*np.random.default_rng(ord(emoji.name[0])).integers(225, 256, 3).tolist(), 255)
    found = []
    for number in range(seconds * RATE):
        side = 96 + 32 * number // (seconds * RATE)
        canvas = Image.new("RGBA", (SIZE, SIZE), colour)
        canvas.alpha_composite(drawing.resize((side, side)), ((SIZE - side) // 2, (SIZE - side) // 2))
        found.append(canvas.convert("RGB"))
    return found


def write(path: Path, pictures: list[Image.Image]) -> None:
    """The pictures as a video."""
    import av

    as_frame: Any = av.VideoFrame.from_image
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("h264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = SIZE, SIZE, "yuv420p"
        for picture in pictures:
            container.mux(stream.encode(as_frame(picture)))
        container.mux(stream.encode(None))


def measure(run: Path) -> dict[str, Any]:
    """Shares of the sentences that find their clip which also find its place in a film."""
    rng = np.random.default_rng(0)
    chosen = [load_emoji()[place] for place in rng.permutation(len(load_emoji()))[:CLIPS]]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / "clips").mkdir()
        (base / "films").mkdir()
        films: dict[str, list[Image.Image]] = {}
        middles = {}
        for number, emoji in enumerate(chosen):
            film, seconds = f"film{number % FILMS}", int(rng.integers(4, 13))
            pictures = frames(emoji, VENDORS[number % len(VENDORS)], seconds)
            write(base / "clips" / f"{emoji.key}.mp4", pictures)
            middles[emoji.key] = film, len(films.setdefault(film, [])) / RATE + seconds / 2
            films[film] += pictures
        for film, pictures in films.items():
            write(base / "films" / f"{film}.mp4", pictures)
        shutil.copytree(run, base / "run")
        add_folder(base / "run", base / "clips")
        for cut in CUTS:  # the films are decoded once
            add_folder(base / "run", base / "films", segments=cut)
            found[cut] = _shares(base / "run", chosen, middles)
    return found


def _shares(run: Path, chosen: list[Emoji], middles: dict[str, tuple[str, float]]) -> dict[str, Any]:
    searcher, known, right, spans = Searcher.open(run), 0, 0, []
    for emoji in chosen:
        hits = searcher.search(text=emoji.text, find="image", splits=["added"], top=1000)
        clips, films = ([hit for hit in hits if hit.item.key.startswith(one)] for one in ("clips/", "films/"))
        if clips[0].item.key == f"clips/{emoji.key}":
            first = group_hits(films, 1)[0].best.item
            film, middle = middles[emoji.key]
            known += 1
            right += Path(first.file).stem == film and (first.start or 0.0) <= middle <= (first.stop or 0.0)
            spans.append((first.stop or 0.0) - (first.start or 0.0))
    searcher.close()
    share = round(right / known, 3)
    return {"find their clip": known, "of": len(chosen), "right place": share, "median span": float(np.median(spans))}


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1])), indent=2))
