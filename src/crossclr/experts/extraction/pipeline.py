"""Decoding and networks at the same time: threads decode and prepare, one thread runs the networks.

Recordings are decoded ahead, each into a queue that holds little; the networks take them in order, so a batch is filled
across recordings and does not depend on who was faster.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import (
    Expert,
    FloatRows,
    FrameExpert,
    SoundExpert,
    SoundStream,
    WindowExpert,
    window_spans,
)
from crossclr.experts.extraction.recordings import Recording
from crossclr.experts.media.decoding import End, Frame, MediaError, Sound, decode
from crossclr.extras import MissingExtraError

WAITING = 32  # prepared pictures, and pieces of sound, that wait for the networks for each recording in work


@dataclass
class Finished:
    """A recording that went through.

    Args:
        recording: which.
        rows: for each expert (rows, dim); experts for which it has nothing (no sound track) are left out.
        duration: seconds.
        damaged: packets that were skipped.
        error: why it failed; the rest is empty then.
    """

    recording: Recording
    rows: dict[str, FloatRows] = field(default_factory=dict)
    duration: float = 0.0
    damaged: int = 0
    error: str = ""


@dataclass
class _Work:
    """A recording on its way: what has come back of it, and what is still waiting for its batch."""

    recording: Recording
    experts: Sequence[Expert]
    rows: dict[str, list[FloatRows]] = field(default_factory=dict)
    waiting: int = 0
    end: End | None = None
    error: str = ""


@dataclass
class _Place:
    """Where a row of a batch goes."""

    work: _Work
    rows: list[FloatRows]
    index: int
    repeat: int = 1


class Pipeline:
    """Runs recordings through experts.

    Args:
        workers: recordings decoded at once.
        threads: of each video decoder.
        progress: called with the name of an expert and the rows that were done.
    """

    def __init__(self, workers: int = 1, threads: int = 1, progress: Callable[[str, int], None] | None = None) -> None:
        self.workers, self.threads = workers, threads
        self._progress = progress or (lambda name, rows: None)
        self._stop = threading.Event()

    def run(self, jobs: Iterable[tuple[Recording, Sequence[Expert]]]) -> Iterator[Finished]:
        """Every recording with its rows, soon after its last batch, in no fixed order.

        Args:
            jobs: recordings, each with the experts that shall see it; none of them needs tokens.
        """
        batches: dict[int, _Batch] = {}
        open_works: list[_Work] = []
        self._stop.clear()
        with ThreadPoolExecutor(self.workers, thread_name_prefix="decode") as pool:
            try:
                for work, events in self._ahead(pool, jobs):
                    open_works.append(work)
                    self._consume(work, events, batches)
                    yield from _finished(open_works)
                for batch in batches.values():
                    batch.flush()
                yield from _finished(open_works)
            finally:
                self._stop.set()  # a decoder that waits for room in its queue ends

    def _ahead(
        self, pool: ThreadPoolExecutor, jobs: Iterable[tuple[Recording, Sequence[Expert]]]
    ) -> Iterator[tuple[_Work, queue.Queue[Any]]]:
        """Recordings in order, with as many behind them in the decoders as there are workers."""
        started: list[tuple[_Work, queue.Queue[Any]]] = []
        for recording, experts in jobs:
            events: queue.Queue[Any] = queue.Queue(WAITING)
            pool.submit(self._decode, recording, experts, events)
            started.append((_Work(recording, experts), events))
            if len(started) > self.workers:
                yield started.pop(0)
        yield from started

    def _decode(self, recording: Recording, experts: Sequence[Expert], events: queue.Queue[Any]) -> None:
        """In a thread of the pool: decode, prepare, hand over."""
        frames = [expert for expert in experts if isinstance(expert, FrameExpert)]
        sounds = [expert for expert in experts if isinstance(expert, SoundExpert)]
        rates = sorted({expert.needs.rate for expert in frames})
        sound_rates = sorted({int(expert.needs.rate) for expert in sounds})
        try:
            last: dict[str, tuple[Any, Tensor]] = {}
            for event in decode(recording.path, rates, sound_rates, self.threads):
                if self._stop.is_set():
                    return
                if isinstance(event, Frame):
                    for expert in frames:
                        if expert.needs.rate == rates[event.grid]:
                            before = last.get(expert.name)
                            if before is None or before[0] is not event.picture:
                                last[expert.name] = (event.picture, expert.prepare(event.picture))
                            self._put(events, (expert, last[expert.name][1]))
                elif isinstance(event, Sound):
                    for sound in sounds:
                        if int(sound.needs.rate) == sound_rates[event.grid]:
                            self._put(events, (sound, event.samples))
                else:
                    self._put(events, event)
        except Exception as error:  # told in the summary, whatever it is; the rest goes on
            known = isinstance(error, MediaError | MissingExtraError)
            self._put(events, error if known else _unexpected(error))

    def _put(self, events: queue.Queue[Any], event: Any) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Full):
                events.put(event, timeout=0.1)
                return

    def _consume(self, work: _Work, events: queue.Queue[Any], batches: dict[int, _Batch]) -> None:
        """In the thread of the networks: everything of one recording."""
        windows: dict[str, _Windows] = {}
        streams: dict[str, SoundStream] = {}
        while True:
            event = events.get()
            if isinstance(event, MediaError):
                work.error = str(event)
                break
            if isinstance(event, MissingExtraError):
                raise event
            if isinstance(event, End):
                work.end = event
                break
            expert, content = event
            if isinstance(expert, SoundExpert):
                stream = streams.setdefault(expert.name, SoundStream(expert))
                self._sound(work, expert, stream.add(content))
                continue
            batch = batches.setdefault(id(expert), _Batch(expert, self._progress))
            if isinstance(expert, WindowExpert):
                for window in windows.setdefault(expert.name, _Windows(expert)).add(content):
                    batch.add(work, window)
            else:
                batch.add(work, content)
        if work.end is None:
            return
        for expert in work.experts:
            if expert.name in windows:
                tail, repeat = windows[expert.name].end()
                if repeat:
                    batches[id(expert)].add(work, tail, repeat)
            if isinstance(expert, SoundExpert) and expert.name in streams:
                length = round(work.end.duration * expert.needs.rate)
                self._sound(work, expert, streams[expert.name].end(length))
                wanted = max(1, int(length / expert.needs.stride + 0.5))
                joined = np.concatenate(work.rows[expert.name])
                work.rows[expert.name] = [joined[:wanted]]

    def _sound(self, work: _Work, expert: SoundExpert, parts: list[FloatRows]) -> None:
        work.rows.setdefault(expert.name, []).extend(parts)
        for part in parts:
            self._progress(expert.name, len(part))


class _Batch:
    """Inputs of one expert from any recordings, until there are enough of them."""

    def __init__(self, expert: FrameExpert, progress: Callable[[str, int], None]) -> None:
        self.expert, self._progress = expert, progress
        self._inputs: list[Tensor] = []
        self._places: list[_Place] = []

    def add(self, work: _Work, content: Tensor, repeat: int = 1) -> None:
        """One input; its row comes ``repeat`` times."""
        rows = work.rows.setdefault(self.expert.name, [])
        rows.append(np.empty((0, self.expert.dim), np.float32))  # its place, so that rows stay in order
        self._inputs.append(content)
        self._places.append(_Place(work, rows, len(rows) - 1, repeat))
        work.waiting += 1
        if len(self._inputs) >= self.expert.batch_size:
            self.flush()

    def flush(self) -> None:
        """Run the network on what there is."""
        if not self._inputs:
            return
        encoded = self.expert.encode(self._inputs)
        for place, row in zip(self._places, encoded, strict=True):
            place.rows[place.index] = np.repeat(row[None], place.repeat, axis=0)
            place.work.waiting -= 1
            self._progress(self.expert.name, place.repeat)
        self._inputs, self._places = [], []


class _Windows:
    """The last frames of a recording, of which windows are cut."""

    def __init__(self, expert: WindowExpert) -> None:
        self.window, self.stride = expert.needs.window, expert.needs.stride
        self._frames: list[Tensor] = []
        self._count = self._given = 0

    def add(self, frame: Tensor) -> Iterator[Tensor]:
        """Take a frame; gives the window that it completes."""
        self._frames.append(frame)
        self._count += 1
        del self._frames[: -self.window]
        if self._count >= self.window and (self._count - self.window) % self.stride == 0:
            self._given += 1
            yield torch.stack(self._frames)

    def end(self) -> tuple[Tensor, int]:
        """The window that stands for all that would run over the end, and for how many."""
        spans = window_spans(self._count, self.window, self.stride)
        first, last = spans[-1]
        frames = self._frames[: last - first] if self._count < self.window else self._frames
        return torch.stack(frames), len(spans) - self._given


def _finished(works: list[_Work]) -> Iterator[Finished]:
    """Take the works out of the list that wait for nothing more."""
    for work in [work for work in works if work.error or (work.end is not None and not work.waiting)]:
        works.remove(work)
        if work.error or work.end is None:
            yield Finished(work.recording, error=work.error)
        else:
            rows = {name: np.concatenate(parts) for name, parts in work.rows.items() if parts}
            yield Finished(work.recording, rows, work.end.duration, work.end.damaged)


def _unexpected(error: Exception) -> MediaError:
    return MediaError(f"{type(error).__name__}: {error}")
