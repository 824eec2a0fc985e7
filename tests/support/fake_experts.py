"""Experts without networks: their rows can be predicted by looking at the input."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crossclr.extract.contract import FrameExpert, Needs, Paragraph, SoundExpert, TokenExpert, WindowExpert

Rows = NDArray[np.float32]


class Colour(FrameExpert):
    """The mean colour of an image."""

    name, model, layer, version, dim, batch_size = "colour", "none", "mean", "1", 3, 4

    def __init__(self, rate: float = 2.0) -> None:
        self.needs = Needs("frames", rate)
        self.batches: list[int] = []

    def prepare(self, picture: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture).reshape(-1, 3).mean(0).astype(np.float32))

    def encode(self, prepared: Any) -> Rows:
        self.batches.append(len(prepared))
        return torch.stack(list(prepared)).numpy()


class Motion(WindowExpert):
    """The mean colour of a window."""

    name, model, layer, version, dim, batch_size = "motion", "none", "mean", "1", 3, 2

    def __init__(self, rate: float = 10.0, window: int = 8, stride: int = 4) -> None:
        self.needs = Needs("windows", rate, window, stride)

    def prepare(self, picture: Any) -> torch.Tensor:
        return torch.from_numpy(np.asarray(picture).reshape(-1, 3).mean(0).astype(np.float32))

    def encode(self, prepared: Any) -> Rows:
        return np.stack([window.numpy().mean(0) for window in prepared])


class Loudness(SoundExpert):
    """Root mean square of each tenth of a second."""

    name, model, layer, version, dim = "loudness", "none", "rms", "1", 1
    rows_at_once = 7

    def __init__(self) -> None:
        self.needs = Needs("sound", 16000, 1600, 1600)

    def encode(self, samples: Rows) -> Rows:
        loudness: Rows = np.sqrt((samples.reshape(-1, 1600) ** 2).mean(1, keepdims=True))
        return loudness


class Letters(TokenExpert):
    """The number of letters of each word."""

    name, model, layer, version, dim = "letters", "none", "count", "1", 2
    needs = Needs("tokens")

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[Rows]:
        return [np.array([[len(word), 1] for word in text.split()], np.float32) for text in texts]

    def paragraphs(self, paragraphs: Sequence[Sequence[str]]) -> list[Paragraph]:
        self.read += [text for texts in paragraphs for text in texts]
        return super().paragraphs(paragraphs)
