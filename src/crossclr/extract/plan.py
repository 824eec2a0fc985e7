"""The settings of an extraction, the plan of what it would do, and the report of what it did."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from crossclr.errors import CrossCLRError
from crossclr.extract.contract import Expert, FrameExpert, LongTexts, SoundExpert, TokenExpert, WindowExpert
from crossclr.extract.decoding import probe
from crossclr.extract.media import MediaError
from crossclr.extract.pipeline import Input, prepared_inputs
from crossclr.extract.recordings import Omission
from crossclr.extract.segments import Cutting
from crossclr.extract.training_set import FRACTIONS

if TYPE_CHECKING:
    from crossclr.extract.extraction import Extraction

STORED = ("float16", "float32")


class StrictError(CrossCLRError, ValueError):
    """With ``strict``, the first file or segment that would be omitted."""


@dataclass(frozen=True)
class Settings:
    """How to extract.

    Args:
        strict: stop at the first file or segment that would be omitted.
        stored: number type of the rows, ``float16`` or ``float32``.
        fractions: share of each split, for recordings whose captions name none.
        workers: recordings decoded at once; default: chosen by the number of cores.
        threads: CPU threads of the networks; default: torch's own number, since decoders need little.
        segments: how to cut recordings without sentences (see `Cutting.parse`); default: each is one clip.
        modalities: names of experts by modality; the others form ``video``, ``audio`` and ``text``.
        keep_all: every file that can be read becomes a clip, with or without sentences, and all are for training.
    """

    strict: bool = False
    stored: str = "float16"
    fractions: Mapping[str, float] = field(default_factory=lambda: dict(FRACTIONS))
    workers: int | None = None
    threads: int | None = None
    segments: str | None = None
    modalities: Mapping[str, Sequence[str]] = field(default_factory=dict)
    keep_all: bool = False

    def __post_init__(self) -> None:
        if self.segments is not None:
            Cutting.parse(self.segments)
        if self.stored not in STORED:
            raise ValueError(f"rows are stored as {' or '.join(STORED)}, got {self.stored!r}")
        if not self.fractions or min(self.fractions.values()) < 0 or sum(self.fractions.values()) <= 0:
            raise ValueError(f"shares of splits must be positive, got {dict(self.fractions)}")


@dataclass
class Report:
    """What an extraction did.

    Args:
        out: the output folder.
        rows: rows of each expert in the folder.
        done: recordings that this run encoded.
        kept: recordings that an earlier run had finished.
        problems: everything that was omitted.
        unused: files that the captions do not name.
        long_texts: for each text expert, the texts that are longer than its limit, if there are any.
        config: the config to train with; None if there are not two modalities.
        datapoints: entries of the meta file.
        clips: segments of the meta file.
    """

    out: Path
    rows: dict[str, int] = field(default_factory=dict)
    done: int = 0
    kept: int = 0
    problems: list[Omission] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    long_texts: dict[str, LongTexts] = field(default_factory=dict)
    config: Path | None = None
    datapoints: int = 0
    clips: int = 0


MEASURED = 1.5  # seconds of decoding that are measured
TOKENS_PER_WORD = 1.3


@dataclass
class Share:
    """The work of one expert."""

    expert: str  # its name
    reads_text: bool  # whether it encodes sentences; such experts run after all others
    rows: int  # rows it will make
    bytes: int  # their size
    seconds: float  # time of its network, from one measured batch


@dataclass
class Plan:
    """What an extraction would do."""

    recordings: int  # recordings that are not finished
    finished: int  # recordings that an earlier run finished
    hours: float = 0.0  # their duration
    shares: list[Share] = field(default_factory=list)  # the work of each expert
    decoding: float = 0.0  # seconds of decoding, estimated from the first recording
    problems: list[Omission] = field(default_factory=list)  # files that cannot be opened

    @property
    def seconds(self) -> float:
        """The whole time: decoders and networks work at the same time, texts come afterwards."""
        texts = sum(share.seconds for share in self.shares if share.reads_text)
        media = sum(share.seconds for share in self.shares if not share.reads_text)
        return max(self.decoding, media) + texts

    @property
    def bytes(self) -> int:
        """The size of all feature files."""
        return sum(share.bytes for share in self.shares)


def plan_extraction(job: Extraction, measure: bool = True) -> Plan:
    """Read the headers of everything that is missing; ``measure`` also runs each network and decodes for a moment."""
    todo = job.missing()
    plan = Plan(len(todo), len(job.listing.recordings) - len(todo), problems=list(job.listing.problems))
    rows = {expert.name: _token_rows(job) if isinstance(expert, TokenExpert) else 0 for expert in job.experts}
    readable: list[tuple[Path, list[Expert]]] = []
    seconds = 0.0
    for recording, experts in todo:
        try:
            header = probe(recording.path)
        except MediaError as error:
            plan.problems.append(Omission(recording.path.name, str(error)))
            continue
        readable.append((recording.path, experts))
        seconds += header.duration
        for expert in experts:
            if header.sound if isinstance(expert, SoundExpert) else header.images:
                rows[expert.name] += max(1, round(header.duration * expert.needs.rows_per_second))
    plan.hours = seconds / 3600
    size = np.dtype(job.settings.stored).itemsize
    for expert in job.experts:
        count = rows[expert.name]
        taken = _seconds_per_row(expert) * count if measure else 0.0
        plan.shares.append(Share(expert.name, isinstance(expert, TokenExpert), count, count * expert.dim * size, taken))
    if measure and readable:
        plan.decoding = _decoding_speed(*readable[0]) * seconds
    return plan


def _token_rows(job: Extraction) -> int:
    texts = [segment.text for point in job.listing.datapoints for segment in point.segments]
    return round(sum(len(text.split()) for text in texts) * TOKENS_PER_WORD) + 2 * len(texts)


def _seconds_per_row(expert: Expert) -> float:
    """Measured on the second of two batches."""
    rows, call = _one_batch(expert)
    call()
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) / rows


def _one_batch(expert: Expert) -> tuple[int, Callable[[], object]]:
    """A batch of noise: the number of its rows, and a function that encodes it."""
    noise = np.random.default_rng(0)
    if isinstance(expert, TokenExpert):
        paragraph = ["a person cuts an onion into small pieces"] * 16
        return 160, partial(expert.paragraphs, [paragraph])
    if isinstance(expert, SoundExpert):
        samples = noise.normal(0, 0.1, expert.needs.window + 15 * expert.needs.stride).astype(np.float32)
        return 16, partial(expert.encode, samples)
    if not isinstance(expert, FrameExpert):
        return 1, lambda: None
    image = expert.prepare(noise.integers(0, 255, (240, 320, 3), dtype=np.uint8))
    rows = min(expert.batch_size, 8)
    content = image.expand(expert.needs.window, *image.shape) if isinstance(expert, WindowExpert) else image
    return rows, partial(expert.encode, [content] * rows)


def _decoding_speed(path: Path, experts: Sequence[Expert]) -> float:
    """Seconds of decoding and preparing for each second of a recording."""
    start = time.perf_counter()
    reached = 0.0
    try:
        for event in prepared_inputs(path, experts):
            reached = max(reached, event.time) if isinstance(event, Input) else event.duration
            if time.perf_counter() - start > MEASURED and reached:
                break
    except MediaError:
        return 0.0
    return (time.perf_counter() - start) / max(reached, 1e-3)
