"""Windows of frames to action features with a transformers video model: VideoMAE, TimeSformer, ViViT."""

from collections.abc import Sequence

import torch
from torch import Tensor

from crossclr.experts.contract import Needs, WindowExpert
from crossclr.experts.networks.hub import count_channels, run_layer
from crossclr.experts.networks.hub_images import HubFrames


class HubWindows(HubFrames, WindowExpert):
    """One row for each window of frames from a transformers video model.

    The model takes a fixed number of frames (16 for VideoMAE), which are picked evenly from each window.

    Args:
        model: hub name or local folder.
        layer: ``mean``, ``first``, ``pooled`` or the number of a hidden state.
        rate: frames per second; the paper uses 10.
        window: frames of a window.
        stride: frames from one window to the next.
        batch_size: windows encoded at once.
        device: where the network runs.
        revision: revision of the hub.
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
        self._load(model, layer, revision, device)
        self.needs, self.batch_size = Needs("windows", rate, window, stride), batch_size
        self.frames = int(getattr(self._network.config, "num_frames", window))
        hint = "use a VideoMAE, TimeSformer or ViViT"
        self.dim = count_channels(lambda: self._rows([self._blank()[None]]), model, hint)

    def _rows(self, prepared: Sequence[Tensor]) -> Tensor:
        picked = torch.stack([pick_frames(window, self.frames) for window in prepared])
        return run_layer(self._network, self.layer, self.model, pixel_values=picked.to(self.device))


def pick_frames(window: Tensor, frames: int) -> Tensor:
    """Pick frames at even distances, the centres of equal parts; a shorter window repeats its last frame.

    Example:
        >>> pick_frames(torch.arange(32), 4).tolist(), pick_frames(torch.arange(2), 4).tolist()
        ([4, 12, 20, 28], [0, 1, 1, 1])
    """
    if len(window) <= frames:
        return repeat_last(window, frames)
    centres = (2 * torch.arange(frames) + 1) * len(window) // (2 * frames)
    return window[centres]


def repeat_last(window: Tensor, frames: int) -> Tensor:
    """A window of at least ``frames`` frames, in which the last frame is repeated.

    Example:
        >>> repeat_last(torch.arange(3), 5).tolist()
        [0, 1, 2, 2, 2]
    """
    missing = frames - len(window)
    return window if missing <= 0 else torch.cat([window, window[-1:].expand(missing, *window.shape[1:])])
