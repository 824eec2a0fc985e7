"""The contract of an expert: what it needs, what it returns, and where its rows come from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from crossclr.errors import CrossCLRError
from crossclr.models.zero_shot import SharedTower

FloatRows = npt.NDArray[np.float32]
Kind = Literal["frames", "windows", "boxes", "sound", "tokens"]


class ExpertError(CrossCLRError, ValueError):
    """An expert that cannot be built or used; the message says what is missing and what to do."""


@dataclass(frozen=True)
class Needs:
    """The input of an expert.

    Args:
        kind: ``frames`` (single images), ``windows`` (runs of frames), ``boxes`` (whole images, in which it detects
            objects), ``sound`` (samples of one channel) or ``tokens`` (sentences).
        rate: frames or samples per second.
        window: frames, samples or tokens that the network sees at once.
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
        """Rows for each second of a recording; 0 for sentences."""
        return 0.0 if self.kind == "tokens" else self.rate / self.stride

    @property
    def span(self) -> float:
        """Seconds that one row covers; 0 for single images and sentences."""
        return 0.0 if self.kind in ("tokens", "frames", "boxes") else self.window / self.rate


@dataclass(frozen=True)
class Origin:
    """Where rows come from.

    Args:
        expert: the expert's name, which is also the name of its file.
        model: hub name, package or file of the weights.
        layer: which values of the network the rows hold.
        rate: frames or samples per second of the input.
        version: version of the weights: a package version, a hub revision or a digest of the file.
        dim: channels.
    """

    expert: str
    model: str
    layer: str
    rate: float
    version: str
    dim: int


class Expert(ABC):
    """A network that turns images, sound or sentences into feature rows.

    An expert declares its input (``needs``), the channels of its rows (``dim``) and where they come from
    (``origin()``). Calling it returns rows. Only one thread may use it at a time; ``prepare`` is the exception.
    """

    name: str = ""
    needs: Needs
    dim: int
    model: str = ""
    layer: str = ""
    version: str = ""
    batch_size: int = 16
    space: str = ""  # experts of one space can be compared without a caption, such as images and texts of CLIP
    spec: str = ""  # what `load` built it from; empty for an expert that was built in another way
    options: Mapping[str, Any] = {}

    def origin(self) -> Origin:
        """The description that is stored with its rows."""
        return Origin(self.name, self.model, self.layer, float(self.needs.rate), self.version, self.dim)

    def tower(self) -> SharedTower:
        """How its rows become vectors of its ``space``; unless an expert says more, they are such vectors."""
        return SharedTower(torch.zeros(self.dim))


class FrameExpert(Expert):
    """One row for each image.

    ``prepare`` turns one image into the network's input and may run in any thread; ``encode`` runs the network.
    """

    @abstractmethod
    def prepare(self, image: Any) -> Tensor:
        """The network's input for one image, a (height, width, 3) uint8 array or a PIL image."""

    @abstractmethod
    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim) for prepared images, which may come from different videos."""

    def __call__(self, images: Sequence[Any]) -> FloatRows:
        """(images, dim) rows in the order given."""
        rows = np.empty((len(images), self.dim), dtype=np.float32)
        for start in range(0, len(images), self.batch_size):
            batch = [self.prepare(image) for image in images[start : start + self.batch_size]]
            rows[start : start + len(batch)] = self.encode(batch)
        return rows


class WindowExpert(FrameExpert):
    """One row for each window of frames.

    ``encode`` takes windows, each a tensor (frames, 3, height, width). Calling the expert takes all frames of a video,
    sampled at the rate it needs.
    """

    def __call__(self, images: Sequence[Any]) -> FloatRows:
        """(windows, dim) rows of one video."""
        frames = [self.prepare(image) for image in images]
        spans = window_spans(len(frames), self.needs.window, self.needs.stride)
        rows = np.empty((len(spans), self.dim), dtype=np.float32)
        for start in range(0, len(spans), self.batch_size):
            batch = [torch.stack(frames[first:last]) for first, last in spans[start : start + self.batch_size]]
            rows[start : start + len(batch)] = self.encode(batch)
        return rows


class ImageNetwork(ABC):
    """A network for images: how it prepares one, and its rows for images and for windows of frames.

    `NetworkImages` and `NetworkWindows` make experts of it.
    """

    model: str
    layer: str
    version: str
    hint: str  # what to do if it cannot be used
    space: str = ""  # see `Expert`

    @abstractmethod
    def prepare(self, image: Any) -> Tensor:
        """The network's input for one image; may run in any thread."""

    @abstractmethod
    def images(self, prepared: Sequence[Tensor]) -> Tensor:
        """(images, dim) for prepared images."""

    @abstractmethod
    def windows(self, prepared: Sequence[Tensor], length: int) -> Tensor:
        """(windows, dim) for windows (frames, 3, height, width), of ``length`` frames or fewer."""


class SoundExpert(Expert):
    """Rows at even distances in a sound.

    Row i is centred on the i-th stride, with silence before and after the sound. A long sound is encoded in blocks of
    ``rows_at_once`` rows that join without a seam.
    """

    rows_at_once: int = 375

    @abstractmethod
    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, dim) for ((rows - 1) · stride + window) samples between -1 and 1."""

    def __call__(self, samples: npt.ArrayLike) -> FloatRows:
        """(rows, dim) for a sound of one channel at the rate the expert needs."""
        stream = SoundStream(self)
        parts = [*stream.add(np.asarray(samples, dtype=np.float32)), *stream.end()]
        return np.concatenate(parts)


class SoundStream:
    """The sound of one file on its way through an expert; it holds one block at a time."""

    def __init__(self, expert: SoundExpert) -> None:
        self.expert = expert
        silence = max((expert.needs.window - expert.needs.stride) // 2, 0)
        self._waiting: list[FloatRows] = [np.zeros(silence, np.float32)]
        self._held = silence
        self._samples = 0
        self._silent: FloatRows | None = None  # rows of a whole block of silence, which may come many times
        self.rows = 0

    def add(self, samples: FloatRows) -> list[FloatRows]:
        """Take samples and return the rows of all complete blocks."""
        self._waiting.append(samples)
        self._held += len(samples)
        self._samples += len(samples)
        needs, block = self.expert.needs, self.expert.rows_at_once
        parts = []
        while self._held >= (block - 1) * needs.stride + needs.window:
            parts.append(self._encode(block))
        return parts

    def end(self, samples: int | None = None) -> list[FloatRows]:
        """The remaining rows, at least one. Samples missing up to an expected length are silence."""
        needs = self.expert.needs
        total = max(1, int((self._samples if samples is None else samples) / needs.stride + 0.5))
        parts: list[FloatRows] = []
        while (missing := (total - 1 - self.rows) * needs.stride + needs.window - self._held) > 0:
            parts += self.add(np.zeros(min(missing, self.expert.rows_at_once * needs.stride), np.float32))
        return [*parts, self._encode(total - self.rows)] if total > self.rows else parts

    def _encode(self, rows: int) -> FloatRows:
        needs = self.expert.needs
        joined = np.concatenate(self._waiting)
        rest = joined[rows * needs.stride :]
        self._waiting, self._held = [rest], len(rest)
        self.rows += rows
        block = joined[: (rows - 1) * needs.stride + needs.window]
        if rows != self.expert.rows_at_once or block.any():
            return self.expert.encode(block)
        if self._silent is None:
            self._silent = self.expert.encode(block)
        return self._silent


@dataclass(frozen=True)
class Paragraph:
    """The token rows of a paragraph.

    Args:
        rows: (tokens, dim) of all its sentences, in order.
        counts: the number of rows of each sentence.
    """

    rows: FloatRows
    counts: list[int]


@dataclass(frozen=True)
class LongTexts:
    """How many texts are longer than a network's limit.

    Args:
        count: texts above the limit.
        total: all texts.
        limit: tokens that the network takes at once.
        treatment: what the expert does with them.

    Example:
        >>> print(LongTexts(2, 30, 128, "encoded in overlapping pieces"))
        2 of 30 texts have more than 128 tokens and were encoded in overlapping pieces
    """

    count: int
    total: int
    limit: int
    treatment: str

    def __str__(self) -> str:
        return f"{self.count} of {self.total} texts have more than {self.limit} tokens and were {self.treatment}"


class TokenExpert(Expert):
    """Rows for the tokens of sentences."""

    @abstractmethod
    def __call__(self, texts: Sequence[str]) -> list[FloatRows]:
        """(tokens, dim) for each sentence on its own."""

    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[Paragraph]:
        """Rows of whole paragraphs: each sentence on its own, unless an expert does more."""
        distinct = list(dict.fromkeys(text for texts in paragraphs for text in texts))
        rows = dict(zip(distinct, self(distinct), strict=True))
        parts = [[rows[text] for text in texts] for texts in paragraphs]
        return [Paragraph(np.concatenate(sentences), [len(sentence) for sentence in sentences]) for sentences in parts]

    def long_texts(self, paragraphs: Sequence[Sequence[str]]) -> LongTexts | None:
        """The texts that are longer than the network's limit; None if the network has no limit."""
        return None


def window_spans(frames: int, window: int, stride: int) -> list[tuple[int, int]]:
    """The first frame of each window and the frame after its last one, as COOT's features were cut.

    A window starts at every stride. A window that would pass the end is replaced by the last ``window`` frames. A video
    shorter than a window gives one window: its first ``window // 2`` frames.

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
