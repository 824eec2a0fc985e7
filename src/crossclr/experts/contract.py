"""What an expert is: what it needs, what it gives, and what its rows say of where they come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatRows = npt.NDArray[np.float32]
Kind = Literal["frames", "windows", "boxes", "sound", "tokens"]


class ExpertError(ValueError):
    """An expert that cannot be built or used; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Needs:
    """What an expert wants to be given.

    Args:
        kind: ``frames`` (single pictures), ``windows`` (runs of frames), ``boxes`` (whole pictures in which it finds
            boxes), ``sound`` (samples of one channel) or ``tokens`` (sentences).
        rate: frames or samples a second.
        window: frames or samples that one row sees.
        stride: frames or samples from one row to the next.

    Example:
        >>> needs = Needs("windows", rate=10, window=32, stride=16)
        >>> needs.rows_per_second, needs.span
        (0.625, 3.2)
    """

    kind: Kind
    rate: float = 1.0
    window: int = 1
    stride: int = 1

    def __post_init__(self) -> None:
        if self.kind != "tokens" and (self.rate <= 0 or self.window < 1 or self.stride < 1):
            raise ExpertError(f"rate, window and stride must be above 0, got {self.rate}, {self.window}, {self.stride}")
        if self.kind == "sound" and self.window < self.stride:
            raise ExpertError(f"a window of sound ({self.window}) must not be shorter than its stride ({self.stride})")

    @property
    def rows_per_second(self) -> float:
        """How many rows a second of the recording gives; 0 for sentences."""
        return 0.0 if self.kind == "tokens" else self.rate / self.stride

    @property
    def span(self) -> float:
        """Seconds that one row sees; 0 for single pictures and sentences."""
        return 0.0 if self.kind in ("tokens", "frames", "boxes") else self.window / self.rate


@dataclass(frozen=True)
class Origin:
    """Who made a row.

    Args:
        expert: the expert's name, which also names its file.
        model: hub name, package or file of the weights.
        layer: which values of the network the row holds.
        rate: frames or samples a second that went in.
        version: of the weights: a package's version, a hub revision or a digest of the file.
        dim: channels.
    """

    expert: str
    model: str
    layer: str
    rate: float
    version: str
    dim: int


class Expert(ABC):
    """A network that turns raw material into feature rows.

    An expert says what it ``needs``, how many channels (``dim``) its rows have, and where they come from
    (``origin()``); calling it gives the rows. It is used by one thread at a time, except ``prepare``.
    """

    name: str = ""
    needs: Needs
    dim: int
    model: str = ""
    layer: str = ""
    version: str = ""
    batch_size: int = 16
    licence: ClassVar[str] = ""

    def origin(self) -> Origin:
        """What is written beside its rows."""
        return Origin(self.name, self.model, self.layer, float(self.needs.rate), self.version, self.dim)


class FrameExpert(Expert):
    """One row for each picture.

    ``prepare`` makes a network's input of one picture and may run in any thread; ``encode`` runs the network.
    """

    @abstractmethod
    def prepare(self, picture: Any) -> Tensor:
        """The input of one picture, an (height, width, 3) uint8 array or a PIL picture."""

    @abstractmethod
    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(pictures, dim) of prepared pictures, which may come from different videos."""

    def __call__(self, pictures: Sequence[Any]) -> FloatRows:
        """(pictures, dim) rows in the order given."""
        rows = np.empty((len(pictures), self.dim), dtype=np.float32)
        for start in range(0, len(pictures), self.batch_size):
            part = [self.prepare(picture) for picture in pictures[start : start + self.batch_size]]
            rows[start : start + len(part)] = self.encode(part)
        return rows


class WindowExpert(FrameExpert):
    """One row for each window of frames.

    ``encode`` takes windows, each a tensor (frames, 3, height, width); calling the expert takes all frames of a video
    at the rate that it needs.
    """

    def __call__(self, pictures: Sequence[Any]) -> FloatRows:
        """(windows, dim) rows of one video."""
        frames = [self.prepare(picture) for picture in pictures]
        spans = window_spans(len(frames), self.needs.window, self.needs.stride)
        rows = np.empty((len(spans), self.dim), dtype=np.float32)
        for start in range(0, len(spans), self.batch_size):
            part = [torch.stack(frames[first:last]) for first, last in spans[start : start + self.batch_size]]
            rows[start : start + len(part)] = self.encode(part)
        return rows


class SoundExpert(Expert):
    """Rows at even distances of a sound.

    Row i is centred on the i-th stride; silence stands before and behind the sound. A long sound is encoded block by
    block, and the blocks join without a seam.
    """

    rows_at_once: int = 375

    @abstractmethod
    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, dim) of ((rows - 1) · stride + window) samples between -1 and 1."""

    def __call__(self, samples: npt.ArrayLike) -> FloatRows:
        """(rows, dim) of a sound of one channel at the rate that the expert needs."""
        stream = SoundStream(self)
        parts = [*stream.add(np.asarray(samples, dtype=np.float32)), *stream.end()]
        return np.concatenate(parts)


class SoundStream:
    """The sound of one file on its way through an expert, of which only a block is held.

    Args:
        expert: what encodes it.
    """

    def __init__(self, expert: SoundExpert) -> None:
        self.expert = expert
        needs = expert.needs
        self._before = (needs.window - needs.stride) // 2
        self._waiting: list[FloatRows] = [np.zeros(max(self._before, 0), np.float32)]
        self._held = max(self._before, 0)
        self._samples = 0
        self.rows = 0

    def add(self, samples: FloatRows) -> list[FloatRows]:
        """Take samples; gives the rows of the blocks that are full."""
        self._waiting.append(samples)
        self._held += len(samples)
        self._samples += len(samples)
        return self._encode_full()

    def end(self, samples: int | None = None) -> list[FloatRows]:
        """The rows that remain; at least one in all.

        Args:
            samples: how long the sound should have been: what is missing is silence, what is over gives no rows.
        """
        needs = self.expert.needs
        wanted = max(1, int((self._samples if samples is None else samples) / needs.stride + 0.5))
        missing = (wanted - 1 - self.rows) * needs.stride + needs.window - self._held
        parts = []
        if missing > 0:
            silence = np.zeros(missing, np.float32)
            parts = self.add(silence)
        parts += self._encode_rows(wanted - self.rows) if wanted > self.rows else []
        return parts

    def _encode_full(self) -> list[FloatRows]:
        needs, block = self.expert.needs, self.expert.rows_at_once
        parts = []
        while self._held >= (block - 1) * needs.stride + needs.window:
            parts += self._encode_rows(block)
        return parts

    def _encode_rows(self, rows: int) -> list[FloatRows]:
        needs = self.expert.needs
        joined = np.concatenate(self._waiting)
        encoded = self.expert.encode(joined[: (rows - 1) * needs.stride + needs.window])
        rest = joined[rows * needs.stride :]
        self._waiting, self._held = [rest], len(rest)
        self.rows += rows
        return [encoded]


class TokenExpert(Expert):
    """Rows for the tokens of sentences."""

    @abstractmethod
    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """(tokens, dim) of each sentence on its own."""

    @abstractmethod
    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[tuple[FloatRows, list[int]]]:
        """Rows of each paragraph's tokens, in order, and how many of them belong to each of its sentences."""


def window_spans(frames: int, window: int, stride: int) -> list[tuple[int, int]]:
    """First frame and the frame behind the last one of each window, as COOT's features were cut.

    A window starts at every stride. One that would run over the end is the last ``window`` frames. A video shorter than
    a window is one window of its first half.

    Example:
        >>> window_spans(40, 32, 16)
        [(0, 32), (8, 40), (8, 40)]
        >>> window_spans(20, 32, 16), window_spans(32, 32, 16)
        ([(0, 16)], [(0, 32)])
    """
    if frames < window:
        return [(0, min(frames, max(window // 2, 1)))]
    if frames == window:
        return [(0, window)]
    return [(min(start, frames - window), min(start + window, frames)) for start in range(0, frames, stride)]
