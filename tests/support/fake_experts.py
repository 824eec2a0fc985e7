"""Experts without networks, whose rows can be told by looking."""

import numpy as np
import torch

from crossclr.experts.contract import FrameExpert, Needs, SoundExpert, TokenExpert, WindowExpert


class Colour(FrameExpert):
    """Mean colour of a picture."""

    name, model, layer, version, dim, batch_size = "colour", "none", "mean", "1", 3, 4

    def __init__(self, rate=2.0):
        self.needs = Needs("frames", rate)
        self.batches = []

    def prepare(self, picture):
        return torch.from_numpy(np.asarray(picture).reshape(-1, 3).mean(0).astype(np.float32))

    def encode(self, prepared):
        self.batches.append(len(prepared))
        return torch.stack(list(prepared)).numpy()


class Motion(WindowExpert):
    """Mean colour of a window."""

    name, model, layer, version, dim, batch_size = "motion", "none", "mean", "1", 3, 2

    def __init__(self, rate=10.0, window=8, stride=4):
        self.needs = Needs("windows", rate, window, stride)

    prepare = Colour.prepare

    def encode(self, prepared):
        return np.stack([window.numpy().mean(0) for window in prepared])


class Loudness(SoundExpert):
    """Root mean square of each tenth of a second."""

    name, model, layer, version, dim = "loudness", "none", "rms", "1", 1
    rows_at_once = 7

    def __init__(self):
        self.needs = Needs("sound", 16000, 1600, 1600)

    def encode(self, samples):
        return np.sqrt((samples.reshape(-1, 1600) ** 2).mean(1, keepdims=True))


class Letters(TokenExpert):
    """The number of letters of each word."""

    name, model, layer, version, dim = "letters", "none", "count", "1", 2
    needs = Needs("tokens")

    def __init__(self):
        self.read = []

    def __call__(self, texts):
        return [np.array([[len(word), 1] for word in text.split()], np.float32) for text in texts]

    def paragraphs(self, paragraphs):
        self.read += [text for texts in paragraphs for text in texts]
        return super().paragraphs(paragraphs)
