"""Decode a file that nobody vouches for, in a process of its own that can neither grow nor open anything.

The parent (`bounded_decoding`) hands over the opened file as standard input and reads events from standard output.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import sys
import warnings
from collections.abc import Iterator
from typing import Any, BinaryIO

import av
import numpy as np
import PIL.Image
import PIL.ImageOps

from crossclr.experts.media import MediaError
from crossclr.experts.media.conversion import convert
from crossclr.experts.media.decoding import End, decode
from crossclr.experts.media.grids import Frame, Sound


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


def main() -> None:
    """Answer one request."""
    request = json.loads(sys.argv[1])
    file, out = os.fdopen(0, "rb", closefd=False), os.fdopen(1, "wb", closefd=False)
    PIL.Image.init()
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
                about = {"kind": "frame", "grid": event.grid, "number": event.number, "shape": event.image.shape[:2]}
                send(about, np.ascontiguousarray(event.image).tobytes())
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
