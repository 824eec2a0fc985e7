"""Decode a recording and prepare the inputs of its experts, in one pass over the file.

Decode and encode at the same time: threads decode and prepare, one thread runs the networks.

Recordings are decoded ahead into small queues. The networks take recordings in order, so batches are filled across
recordings and do not depend on which decoder is faster.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from crossclr.extract.contract import (
    Expert,
    FloatRows,
    FrameExpert,
    SoundExpert,
    SoundStream,
    WindowExpert,
    window_spans,
)
from crossclr.extract.decoding import End, decode
from crossclr.extract.media import Frame, MediaError, Sound
from crossclr.extract.recordings import Recording
from crossclr.extras import MissingExtraError

Decoder = Callable[[Path, Sequence[float], Sequence[int], int], Iterator[Frame | Sound | End]]


@dataclass(frozen=True)
class Input:
    """An input of one expert."""

    expert: Expert  # who encodes it
    content: Any  # a prepared image, or samples of sound
    time: float  # seconds of the recording up to here


def prepared_inputs(
    path: Path, experts: Sequence[Expert], threads: int = 1, decoder: Decoder = decode
) -> Iterator[Input | End]:
    """The inputs of all experts as the file is decoded, then the end of the file."""
    frames = [expert for expert in experts if isinstance(expert, FrameExpert)]
    sounds = [expert for expert in experts if isinstance(expert, SoundExpert)]
    rates = sorted({expert.needs.rate for expert in frames})
    sound_rates = sorted({int(expert.needs.rate) for expert in sounds})
    heard = [0] * len(sound_rates)  # samples so far
    last: dict[str, tuple[Any, Tensor]] = {}  # the latest image of each expert, raw and prepared
    for event in decoder(path, rates, sound_rates, threads):
        if isinstance(event, End):
            yield event
        elif isinstance(event, Frame):
            for expert in frames:
                if expert.needs.rate == rates[event.grid]:
                    if expert.name not in last or last[expert.name][0] is not event.image:
                        last[expert.name] = (event.image, expert.prepare(event.image))
                    yield Input(expert, last[expert.name][1], (event.number + 1) / rates[event.grid])
        else:
            heard[event.grid] += len(event.samples)
            for sound in sounds:
                if int(sound.needs.rate) == sound_rates[event.grid]:
                    yield Input(sound, event.samples, heard[event.grid] / sound_rates[event.grid])


QUEUE_SIZE = 32  # inputs of a recording that wait for the networks
Progress = Callable[[str, int], None]
_Collector: TypeAlias = "_Sound | _Frames | _Windows"  # takes the inputs of one recording for one expert


@dataclass
class EncodedRecording:
    """A recording that was encoded, or the reason why not."""

    recording: Recording
    rows: dict[str, FloatRows] = field(default_factory=dict)  # (rows, dim) of each expert that had input
    duration: float = 0.0  # seconds
    damaged: int = 0  # packets that were skipped
    error: str = ""  # why it failed; the other fields are then empty


@dataclass
class _Work:
    """A recording in progress: its rows so far, and how many inputs still wait for their batch."""

    recording: Recording
    rows: dict[str, list[FloatRows]] = field(default_factory=dict)
    waiting: int = 0
    end: End | None = None
    error: str = ""


class Pipeline:
    """Runs recordings through experts."""

    def __init__(
        self, workers: int = 1, threads: int = 1, progress: Progress | None = None, decoder: Decoder = decode
    ) -> None:
        self.workers, self.threads, self._decoder = workers, threads, decoder
        self._progress = progress or (lambda name, rows: None)
        self._stop = threading.Event()

    def run(self, jobs: Iterable[tuple[Recording, Sequence[Expert]]]) -> Iterator[EncodedRecording]:
        """Yield every recording with its rows, soon after its last batch, in no fixed order."""
        batches: dict[int, _Batch] = {}
        open_works: list[_Work] = []
        self._stop.clear()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decode") as pool:
            try:
                for work, events in self._decode_ahead(pool, jobs):
                    open_works.append(work)
                    self._encode(work, events, batches)
                    yield from _take_finished(open_works)
                for batch in batches.values():
                    batch.flush()
                yield from _take_finished(open_works)
            finally:
                self._stop.set()  # ends decoders that wait for room in their queue

    def _decode_ahead(
        self, pool: ThreadPoolExecutor, jobs: Iterable[tuple[Recording, Sequence[Expert]]]
    ) -> Iterator[tuple[_Work, queue.Queue[Any]]]:
        """Recordings in order, while the decoders are up to ``workers`` recordings ahead."""
        started: list[tuple[_Work, queue.Queue[Any]]] = []
        for recording, experts in jobs:
            events: queue.Queue[Any] = queue.Queue(QUEUE_SIZE)
            pool.submit(self._decode, recording, experts, events)
            started.append((_Work(recording), events))
            if len(started) > self.workers:
                yield started.pop(0)
        yield from started

    def _decode(self, recording: Recording, experts: Sequence[Expert], events: queue.Queue[Any]) -> None:
        """Runs in a thread of the pool."""
        try:
            for event in prepared_inputs(recording.path, experts, self.threads, self._decoder):
                if self._stop.is_set():
                    return
                self._put(events, event)
        except (MediaError, MissingExtraError) as error:
            self._put(events, error)
        except Exception as error:  # reported in the summary; the other recordings continue
            self._put(events, MediaError(f"{type(error).__name__}: {error}"))

    def _put(self, events: queue.Queue[Any], event: Any) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                events.put(event, timeout=0.1)
                return

    def _encode(self, work: _Work, events: queue.Queue[Any], batches: dict[int, _Batch]) -> None:
        """Runs in the thread of the networks: everything of one recording."""
        collectors: dict[str, _Collector] = {}
        while True:
            event = events.get()
            if isinstance(event, MissingExtraError):
                raise event
            if isinstance(event, MediaError):
                work.error = str(event)
                return
            if isinstance(event, End):
                break
            if event.expert.name not in collectors:
                collectors[event.expert.name] = self._collector(work, event.expert, batches)
            collectors[event.expert.name].add(event.content)
        for collector in collectors.values():
            collector.end(event.duration)
        work.end = event

    def _collector(self, work: _Work, expert: Expert, batches: dict[int, _Batch]) -> _Collector:
        if isinstance(expert, SoundExpert):
            return _Sound(work, expert, self._progress)
        if not isinstance(expert, FrameExpert):
            raise TypeError(f"the pipeline takes experts for images and sound, got {type(expert).__name__}")
        batch = batches.setdefault(id(expert), _Batch(expert, self._progress))
        return _Windows(work, expert, batch) if isinstance(expert, WindowExpert) else _Frames(work, batch)


class _Sound:
    """Encodes the sound of a recording block by block."""

    def __init__(self, work: _Work, expert: SoundExpert, progress: Progress) -> None:
        self._rows = work.rows.setdefault(expert.name, [])
        self._expert, self._progress = expert, progress
        self._stream = SoundStream(expert)

    def add(self, content: FloatRows) -> None:
        self._keep(self._stream.add(content))

    def end(self, duration: float) -> None:
        samples = round(duration * self._expert.needs.rate)
        self._keep(self._stream.end(samples))
        total = max(1, int(samples / self._expert.needs.stride + 0.5))
        self._rows[:] = [np.concatenate(self._rows)[:total]]  # sound may be longer than the images

    def _keep(self, parts: list[FloatRows]) -> None:
        self._rows += parts
        for block in parts:
            self._progress(self._expert.name, len(block))


class _Frames:
    """Passes single images on to a batch; an image that is shown for several rows is encoded once."""

    def __init__(self, work: _Work, batch: _Batch) -> None:
        self._work, self._batch = work, batch
        self._last: Tensor | None = None
        self._repeat = 0

    def add(self, content: Tensor) -> None:
        if content is not self._last:
            self.end(0.0)
            self._last, self._repeat = content, 0
        self._repeat += 1

    def end(self, duration: float) -> None:
        if self._last is not None:
            self._batch.add(self._work, self._last, self._repeat)


class _Windows:
    """Cuts windows out of the last frames of a recording; a window that repeats the last one is encoded once."""

    def __init__(self, work: _Work, expert: WindowExpert, batch: _Batch) -> None:
        self._work, self._batch = work, batch
        self.window, self.stride = expert.needs.window, expert.needs.stride
        self._frames: list[Tensor] = []
        self._last: list[Tensor] = []
        self._count = self._cut = self._repeat = 0

    def add(self, content: Tensor) -> None:
        self._frames.append(content)
        self._count += 1
        del self._frames[: -self.window]
        if self._count >= self.window and (self._count - self.window) % self.stride == 0:
            self._cut += 1
            self._keep(self._frames, 1)

    def end(self, duration: float) -> None:
        """All windows that would pass the end are the same window."""
        spans = window_spans(self._count, self.window, self.stride)
        first, last = spans[-1]
        if len(spans) > self._cut:
            self._keep(self._frames[: last - first], len(spans) - self._cut)
        self._flush()

    def _keep(self, frames: list[Tensor], repeat: int) -> None:
        if len(frames) != len(self._last) or any(a is not b for a, b in zip(frames, self._last, strict=True)):
            self._flush()
            self._last, self._repeat = list(frames), 0
        self._repeat += repeat

    def _flush(self) -> None:
        if self._last:
            self._batch.add(self._work, torch.stack(self._last), self._repeat)


@dataclass
class _Place:
    """Where the row of an input goes, and how often."""

    work: _Work
    rows: list[FloatRows]
    index: int
    repeat: int


class _Batch:
    """Inputs of one expert from any recordings, encoded when the batch is full."""

    def __init__(self, expert: FrameExpert, progress: Progress) -> None:
        self.expert, self._progress = expert, progress
        self._inputs: list[Tensor] = []
        self._places: list[_Place] = []

    def add(self, work: _Work, content: Tensor, repeat: int = 1) -> None:
        rows = work.rows.setdefault(self.expert.name, [])
        rows.append(np.empty((0, self.expert.dim), np.float32))  # reserves its place, so that rows stay in order
        self._inputs.append(content)
        self._places.append(_Place(work, rows, len(rows) - 1, repeat))
        work.waiting += 1
        if len(self._inputs) >= self.expert.batch_size:
            self.flush()

    def flush(self) -> None:
        """Run the network on the inputs so far."""
        if not self._inputs:
            return
        encoded = self.expert.encode(self._inputs)
        for target, row in zip(self._places, encoded, strict=True):
            target.rows[target.index] = np.repeat(row[None], target.repeat, axis=0)
            target.work.waiting -= 1
            self._progress(self.expert.name, target.repeat)
        self._inputs, self._places = [], []


def _take_finished(works: list[_Work]) -> Iterator[EncodedRecording]:
    """Remove and yield the works that wait for nothing more."""
    for work in [work for work in works if work.error or (work.end is not None and not work.waiting)]:
        works.remove(work)
        if work.end is None:
            yield EncodedRecording(work.recording, error=work.error)
        else:
            rows = {name: np.concatenate(parts) for name, parts in work.rows.items() if parts}
            yield EncodedRecording(work.recording, rows, work.end.duration, work.end.damaged)
