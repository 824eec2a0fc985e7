"""Windows of frames to action features with any transformers video model: VideoMAE, TimeSformer, ViViT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import FloatRows, Needs, WindowExpert
from crossclr.experts.media.images import as_picture
from crossclr.experts.networks.hub import load_pretrained, picture_processor, version_of
from crossclr.experts.networks.hub_images import pooled_rows
from crossclr.experts.networks.network_file import fill_up


class HubWindows(WindowExpert):
    """One row for each window of frames from a transformers video model.

    The model takes a fixed number of frames (16 for VideoMAE): so many are picked evenly out of each window.

    Args:
        model: hub name or local folder.
        layer: ``mean``, ``first``, ``pooled`` or the number of a hidden state.
        rate: frames a second; 10 is the paper's.
        window: frames of a window.
        stride: frames from one window to the next.
        batch_size: windows encoded at once.
        device: where the network runs.
        revision: of the hub.
    """

    name = "action"

    def __init__(
        self,
        model: str,
        layer: str = "mean",
        rate: float = 10.0,
        window: int = 32,
        stride: int = 16,
        batch_size: int = 4,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self._prepare = picture_processor(model, revision)
        self._model = load_pretrained("AutoModel", model, revision).float().eval().to(device)
        self.device = torch.device(device)
        self.needs = Needs("windows", rate, window, stride)
        self.model, self.layer, self.batch_size = model, str(layer), batch_size
        self.version = version_of(self._model, model)
        self.frames = int(getattr(self._model.config, "num_frames", window))
        blank = self.prepare(np.zeros((64, 64, 3), np.uint8))
        self.dim = int(self._rows(blank.expand(1, self.frames, *blank.shape)).shape[1])

    def prepare(self, picture: Any) -> Tensor:
        """The model's own preparation of one frame."""
        ready: Tensor = self._prepare(as_picture(picture))
        return ready

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(windows, dim)."""
        picked = torch.stack([pick_frames(window, self.frames) for window in prepared])
        rows: FloatRows = self._rows(picked).float().cpu().numpy()
        return rows

    def _rows(self, frames: Tensor) -> Tensor:
        numbered = self.layer.lstrip("-").isdigit()
        with torch.inference_mode():
            outputs = self._model(pixel_values=frames.to(self.device), output_hidden_states=numbered)
            return pooled_rows(outputs, self.layer, self.model)


def pick_frames(window: Tensor, frames: int) -> Tensor:
    """So many frames at even distances, the centres of equal parts; of a shorter window all, the last one repeated.

    Example:
        >>> pick_frames(torch.arange(32), 4).tolist(), pick_frames(torch.arange(2), 4).tolist()
        ([4, 12, 20, 28], [0, 1, 1, 1])
    """
    if len(window) <= frames:
        return fill_up(window, frames)
    centres = (2 * torch.arange(frames) + 1) * len(window) // (2 * frames)
    return window[centres]
