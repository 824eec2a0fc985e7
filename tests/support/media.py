"""Videos and sound made on the spot."""

import wave
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

Colour = tuple[int, int, int]
RATE = 16000


def write_video(
    path: Path,
    colours: Sequence[Colour],
    rate: int = 10,
    size: tuple[int, int] = (64, 48),
    sound: NDArray[Any] | None = None,
    rotation: int = 0,
    times: Sequence[float] | None = None,
    codec: str = "mpeg4",
    picture: Callable[[int, NDArray[Any]], NDArray[Any]] | None = None,
    start: float = 0.0,
    sound_start: float = 0.0,
) -> Path:
    """A video whose frame i has colour i; with ``times`` frame i is shown from that second on."""
    av = pytest.importorskip("av", reason="needs crossclr[experts]")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.bit_rate = 4_000_000
        if rotation:
            stream.set_display_rotation(rotation)
        track = None
        if sound is not None:
            track = container.add_stream("aac", rate=RATE)
            track.layout = "mono"
        for number, colour in enumerate(colours):
            pixels = np.empty((size[1], size[0], 3), np.uint8)
            pixels[:] = colour
            if picture is not None:
                pixels = picture(number, pixels)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            seconds = number / rate if times is None else times[number]
            frame.pts, frame.time_base = round((seconds + start) * 1000), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None and sound is not None:
            for start_sample in range(0, len(sound), 1024):
                part = np.asarray(sound[start_sample : start_sample + 1024], np.float32)
                block = av.AudioFrame.from_ndarray(part[None], format="fltp", layout="mono")
                block.sample_rate, block.time_base = RATE, Fraction(1, RATE)
                block.pts = start_sample + round(sound_start * RATE)
                container.mux(track.encode(block))
            container.mux(track.encode(None))
    return path


def write_wav(path: Path, samples: NDArray[Any], rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def tone(seconds: float, hertz: float = 440.0, rate: int = RATE) -> NDArray[Any]:
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 200, 30), (30, 30, 220), (240, 240, 240)


def dominant(picture: Any) -> int:
    return int(np.asarray(picture).reshape(-1, 3).mean(0).argmax())
