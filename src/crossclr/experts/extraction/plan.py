"""What an extraction would do: rows, bytes and time, from headers and a short measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from crossclr.experts.contract import Expert, FrameExpert, SoundExpert, TokenExpert, WindowExpert
from crossclr.experts.extraction.extract import Extraction
from crossclr.experts.extraction.recordings import Problem
from crossclr.experts.media.decoding import Frame, Media, MediaError, Sound, decode, probe

MEASURED = 1.5  # seconds for which decoding is measured
PER_WORD = 1.3  # tokens


@dataclass
class Share:
    """What one expert has to do.

    Args:
        expert: its name.
        rows: that it will make.
        bytes: that they take.
        seconds: that its network takes, as measured on one batch.
    """

    expert: str
    rows: int
    bytes: int
    seconds: float


@dataclass
class Plan:
    """What an extraction would do.

    Args:
        recordings: that are not finished.
        finished: that an earlier run has done.
        hours: of recording.
        shares: for each expert.
        decoding: seconds of decoding, as measured on the first recording.
        problems: files that cannot be opened.
        text: names of the experts that read sentences, which come after all others.
    """

    recordings: int
    finished: int
    hours: float
    shares: list[Share] = field(default_factory=list)
    decoding: float = 0.0
    problems: list[Problem] = field(default_factory=list)
    text: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Of the whole: the networks and the decoders work at the same time."""
        tokens = sum(share.seconds for share in self.shares if share.expert in self.text)
        return max(self.decoding, sum(share.seconds for share in self.shares) - tokens) + tokens

    @property
    def bytes(self) -> int:
        """Of all feature files."""
        return sum(share.bytes for share in self.shares)


def plan_extraction(job: Extraction, measure: bool = True, progress: Callable[[int, int], None] | None = None) -> Plan:
    """Look at the headers of everything that is missing.

    Args:
        job: the extraction; nothing of it is run.
        measure: also run each network once and decode for a moment, to say how long it will take.
        progress: called with the headers read and their number.
    """
    todo = job.missing()
    plan = Plan(len(todo), len(job.listing.recordings) - len(todo), 0.0, problems=list(job.listing.problems))
    plan.text = tuple(expert.name for expert in job.reading)
    rows = {expert.name: 0 for expert in job.experts}
    first: tuple[Media, int] | None = None
    seconds = 0.0
    for number, (recording, experts) in enumerate(todo):
        try:
            media = probe(recording.path)
        except MediaError as error:
            plan.problems.append(Problem(recording.path.name, str(error)))
            continue
        first = first or (media, number)
        seconds += media.duration
        for expert in experts:
            if media.sound if isinstance(expert, SoundExpert) else media.picture:
                rows[expert.name] += max(1, round(media.duration * expert.needs.rows_per_second))
        if progress is not None:
            progress(number + 1, len(todo))
    plan.hours = seconds / 3600
    words = sum(len(segment.text.split()) for point in job.listing.datapoints for segment in point.segments)
    for reading in job.reading:
        sentences = sum(len(point.segments) for point in job.listing.datapoints)
        rows[reading.name] = round(words * PER_WORD) + 2 * sentences
    size = np.dtype(job.settings.stored).itemsize
    for expert in job.experts:
        taken = _seconds_per_row(expert) * rows[expert.name] if measure else 0.0
        plan.shares.append(Share(expert.name, rows[expert.name], rows[expert.name] * expert.dim * size, taken))
    if measure and first is not None:
        recording, experts = todo[first[1]]
        plan.decoding = _seconds_per_second(recording.path, experts) * seconds
    return plan


def _seconds_per_row(expert: Expert) -> float:
    """One batch, the second time."""
    rows, call = _one_batch(expert)
    call()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) / rows


def _one_batch(expert: Expert) -> tuple[int, Callable[[], object]]:
    """A batch of noise: how many rows it gives, and the function that makes them."""
    noise = np.random.default_rng(0)
    if isinstance(expert, TokenExpert):
        paragraph = ["a person cuts an onion into small pieces"] * 16
        return 160, partial(expert.paragraphs, [paragraph])
    if isinstance(expert, SoundExpert):
        samples = noise.normal(0, 0.1, expert.needs.window + 15 * expert.needs.stride).astype(np.float32)
        return 16, partial(expert.encode, samples)
    if not isinstance(expert, FrameExpert):
        return 1, lambda: None
    picture = expert.prepare(noise.integers(0, 255, (240, 320, 3), dtype=np.uint8))
    rows = min(expert.batch_size, 8)
    one = picture.expand(expert.needs.window, *picture.shape) if isinstance(expert, WindowExpert) else picture
    return rows, partial(expert.encode, [one] * rows)


def _seconds_per_second(path: Path, experts: Sequence[Expert]) -> float:
    """Seconds of work for a second of recording, decoding and preparing."""
    frames = [expert for expert in experts if isinstance(expert, FrameExpert)]
    sounds = [expert for expert in experts if isinstance(expert, SoundExpert)]
    rates = sorted({expert.needs.rate for expert in frames})
    start = time.perf_counter()
    reached = heard = 0.0
    try:
        for event in decode(path, rates, sorted({int(expert.needs.rate) for expert in sounds})):
            if isinstance(event, Frame):
                for expert in frames:
                    if expert.needs.rate == rates[event.grid]:
                        expert.prepare(event.picture)
                reached = max(reached, (event.number + 1) / rates[event.grid])
            elif isinstance(event, Sound):
                heard += len(event.samples) / sounds[0].needs.rate
                reached = reached if rates else heard
            else:
                reached = event.duration
            if time.perf_counter() - start > MEASURED and reached:
                break
    except MediaError:
        return 0.0
    return (time.perf_counter() - start) / max(reached, 1e-3)
