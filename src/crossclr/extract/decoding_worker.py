"""Turn a clip into a small MP4 file that every browser plays.

Decode a file that nobody vouches for, in a process of its own that can neither grow nor open anything.

The parent (`bounded_decoding`) hands over the opened file as standard input and reads events from standard output.
"""

import contextlib
import importlib
import io
import json
import math
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, BinaryIO

import av
import numpy as np
import PIL.Image
import PIL.ImageOps

from crossclr.extract.decoding import End, decode, open_media, pick_streams
from crossclr.extract.media import Frame, MediaError, Pixels, Sound, as_rgb, image_formats

HEIGHT = 480  # pixels, at most
FRAME_RATE = 30  # at most
SOUND_RATE = 44100
MAX_PIXELS = 8_000_000  # of an image that is handed over; networks use fewer


def convert(file: BinaryIO, start: float, stop: float) -> bytes:
    """The seconds ``start`` to ``stop`` of a video or sound as H.264 and AAC.

    Raises:
        MediaError: the file cannot be decoded, or has nothing in this span.
    """
    import av

    content = io.BytesIO()
    try:
        with open_media(file) as source, av.open(content, "w", format="mp4") as target:
            streams = [stream for stream in pick_streams(source) if stream is not None]
            tracks = {stream.index: _Picture if stream.type == "video" else _Tone for stream in streams}
            opened = {stream.index: tracks[stream.index](target, stream) for stream in streams}
            zero = max(source.start_time or 0, 0) / 1_000_000
            if start > 0:
                source.seek(int((start + zero) * 1_000_000), backward=True)
            ended: set[int] = set()
            for packet in source.demux(streams):
                for frame in _frames(packet):
                    time = (frame.time or 0.0) - zero - start
                    if time >= stop - start:
                        ended.add(packet.stream.index)
                    elif time >= 0:
                        opened[packet.stream.index].take(frame, time)
                if len(ended) == len(streams):
                    break
            for track in opened.values():
                track.finish()
    except MediaError:
        raise
    except (av.FFmpegError, ValueError) as error:
        raise MediaError(f"it cannot be converted ({error})") from error
    if not any(track.count for track in opened.values()):
        raise MediaError("it has neither images nor sound in this span")
    return content.getvalue()


def _frames(packet: Any) -> list[Any]:
    import av

    try:
        return list(packet.decode())
    except av.FFmpegError:  # a damaged packet; the rest may be fine
        return []


class _Picture:
    """The images, not higher than `HEIGHT` and at most `FRAME_RATE` of them a second."""

    def __init__(self, target: Any, stream: Any) -> None:
        self.target, self.count, self._last = target, 0, -1.0
        width, height = stream.codec_context.width, stream.codec_context.height
        self.scale = min(1.0, HEIGHT / max(height, 1))
        self.track = target.add_stream("h264", rate=FRAME_RATE, options={"preset": "veryfast", "crf": "26"})
        self.track.width, self.track.height, self.track.pix_fmt = *self._even(width, height), "yuv420p"
        self.track.time_base = self.track.codec_context.time_base = Fraction(1, 1000)

    def take(self, frame: Any, time: float) -> None:
        import av

        if time < self._last + 0.9 / FRAME_RATE:
            return
        turns = round(frame.rotation / 90) % 4
        small = frame.reformat(*self._even(frame.width, frame.height), "rgb24" if turns else "yuv420p")
        if turns:
            pixels = np.ascontiguousarray(np.rot90(small.to_ndarray(), turns))
            small = av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format="yuv420p")
        if not self.count:
            self.track.width, self.track.height = small.width, small.height
        small.pts, small.time_base = round(1000 * time), Fraction(1, 1000)
        self.target.mux(self.track.encode(small))
        self._last, self.count = time, self.count + 1

    def finish(self) -> None:
        if self.count:
            self.target.mux(self.track.encode(None))

    def _even(self, width: int, height: int) -> tuple[int, int]:
        return max(2, round(width * self.scale) // 2 * 2), max(2, round(height * self.scale) // 2 * 2)


class _Tone:
    """The sound, without gaps; it is written last, because the first image decides the size of the video."""

    def __init__(self, target: Any, stream: Any) -> None:
        from av import AudioResampler

        self.target, self.count = target, 0
        self._held: list[Any] = []
        self.track = target.add_stream("aac", rate=SOUND_RATE, layout="stereo")
        self.resampler = AudioResampler(format="fltp", layout="stereo", rate=SOUND_RATE)

    def take(self, frame: Any, time: float) -> None:
        if not self.count:
            self.count = round(time * SOUND_RATE)
        frame.pts = None
        self._keep(frame)

    def finish(self) -> None:
        if self._held:
            self._keep(None)
            for block in [*self._held, None]:
                self.target.mux(self.track.encode(block))

    def _keep(self, frame: Any) -> None:
        for block in self.resampler.resample(frame):
            block.pts, block.time_base = self.count, Fraction(1, SOUND_RATE)
            self.count += block.samples
            self._held.append(block)


def limit_process(memory: int, seconds: int) -> None:
    """Bound memory and processor time, and forbid new files and connections, where the system can."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def bounded_events(file: BinaryIO, request: dict[str, Any]) -> Iterator[Frame | Sound | End]:
    """The events of a file up to the requested second."""
    rates, sound_rates, seconds = request["rates"], request["sound_rates"], request["seconds"]
    heard = [0] * len(sound_rates)
    for event in decode(file, rates, sound_rates):
        if isinstance(event, Frame) and (event.number + 0.5) / rates[event.grid] > seconds:
            yield End(seconds)
            return
        if isinstance(event, Sound):
            heard[event.grid] += len(event.samples)
            if not rates and heard[event.grid] > seconds * sound_rates[event.grid]:
                yield End(seconds)
                return
        yield event


def reduced(image: Pixels) -> Pixels:
    """The middle of a long image, and every large image made smaller by a whole factor: at most `MAX_PIXELS`.

    Example:
        >>> reduced(np.zeros((4000, 6000, 3), np.uint8)).shape, reduced(np.zeros((1, 900, 3), np.uint8)).shape
        ((2000, 3000, 3), (1, 32, 3))
    """
    shown = as_rgb(image)
    factor = math.ceil(math.sqrt(shown.width * shown.height / MAX_PIXELS))
    return np.asarray(shown.reduce(factor) if factor > 1 else shown)


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.argv[1])
    file, out = os.fdopen(0, "rb", closefd=False), os.fdopen(1, "wb", closefd=False)
    PIL.Image.init()
    image_formats()  # loads a plugin, which is too late without access to files
    for module in pkgutil.walk_packages(av.__path__, "av."):  # it imports some only when needed, which is then too late
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    PIL.Image.MAX_IMAGE_PIXELS = request["pixels"]
    warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
    av.logging.set_level(None)
    limit_process(request["memory"], request["processor_seconds"])

    def send(about: dict[str, Any], content: bytes = b"") -> None:
        out.write(json.dumps(about | {"bytes": len(content)}).encode() + b"\n" + content)

    try:
        if request["clip"]:
            send({"kind": "file"}, convert(file, *request["clip"]))
        for event in [] if request["clip"] else bounded_events(file, request):
            if isinstance(event, Frame):
                if event.image.shape[0] * event.image.shape[1] > request["pixels"]:
                    raise MediaError("its images are too large")
                image = reduced(event.image)  # here, because a stranger's file must not fill the service
                about = {"kind": "frame", "grid": event.grid, "number": event.number, "shape": image.shape[:2]}
                send(about, np.ascontiguousarray(image).tobytes())
            elif isinstance(event, Sound):
                send({"kind": "sound", "grid": event.grid}, event.samples.astype(np.float32).tobytes())
            else:
                send({"kind": "end", "duration": event.duration, "damaged": event.damaged})
    except MediaError as error:
        send({"kind": "error", "text": str(error)})
    except MemoryError:
        send({"kind": "error", "text": "decoding it needs too much memory"})
    out.flush()


if __name__ == "__main__":
    main()
