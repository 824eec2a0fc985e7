"""Images to features with a transformers image model: CLIP, SigLIP, DINO, ViT, ConvNeXt, ResNet.

Sound to features with a transformers audio model: wav2vec 2, HuBERT, WavLM, Whisper, AST.

Windows of frames to action features with a transformers video model: VideoMAE, TimeSformer, ViViT.

Images to object features with a transformers detector of the DETR family.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.extract.contract import ExpertError, FloatRows, FrameExpert, Needs, SoundExpert, WindowExpert
from crossclr.extract.hub import (
    count_channels,
    image_processor,
    load_network,
    load_pretrained,
    pooler_output,
    run_layer,
    version_of,
)
from crossclr.extract.media import as_rgb


class HubFrames(FrameExpert):
    """What experts with a transformers vision model share: loading, preparing and encoding."""

    def _load(self, model: str, layer: str, revision: str | None, device: torch.device | str) -> None:
        self._prepare = image_processor(model, revision)
        self._network = load_network(model, revision, device)
        self.device = torch.device(device)
        self.model, self.layer, self.version = model, str(layer), version_of(self._network, model)

    def prepare(self, image: Any) -> Tensor:
        """The model's own preparation."""
        return self._prepare(as_rgb(image))

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images or windows, dim)."""
        rows: FloatRows = self._rows(prepared).float().cpu().numpy()
        return rows

    def _blank(self) -> Tensor:
        return self.prepare(np.zeros((64, 64, 3), np.uint8))

    @abstractmethod
    def _rows(self, prepared: Sequence[Tensor]) -> Tensor: ...


class HubImages(HubFrames):
    """One row for each image from a transformers image model.

    Args:
        model: hub name or local folder.
        layer: ``mean`` (of the last hidden state over its positions), ``first`` (its first token, for models with a
            class token), ``pooled`` (the model's own pooler), or the number of a hidden state, such as ``-2``, which is
            averaged. For ``mean``, a model that embeds images and texts (CLIP, SigLIP) returns its image embedding.
        rate: frames per second.
        batch_size: images encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "appearance"

    def __init__(
        self,
        model: str,
        layer: str = "mean",
        rate: float = 1.0,
        batch_size: int = 16,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self._load(model, layer, revision, device)
        self.needs, self.batch_size = Needs("frames", rate), batch_size
        self.dim = count_channels(lambda: self._rows([self._blank()]), model, "use a CLIP, SigLIP, DINO, ViT or ResNet")

    def _rows(self, prepared: Sequence[Tensor]) -> Tensor:
        pixels = torch.stack(list(prepared)).to(self.device)
        if self.layer == "mean" and hasattr(self._network, "get_image_features"):
            with torch.inference_mode():
                return pooler_output(self._network.get_image_features(pixel_values=pixels), self.model)
        return run_layer(self._network, self.layer, self.model, pixel_values=pixels)


class HubSound(SoundExpert):
    """One row for each window of sound from a transformers audio model.

    Args:
        model: hub name or local folder.
        layer: ``mean``, ``first``, ``pooled`` or the number of a hidden state.
        window: seconds that one row covers.
        stride: seconds from one row to the next.
        batch_size: windows encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "audio"
    rows_at_once = 30

    def __init__(
        self,
        model: str,
        layer: str = "mean",
        window: float = 2.0,
        stride: float = 1.0,
        batch_size: int = 8,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self._extractor: Any = load_pretrained("AutoFeatureExtractor", model, revision)
        self._network = load_network(model, revision, device)
        if self._network.config.is_encoder_decoder:
            self._network = self._network.get_encoder()  # Whisper
        self.device = torch.device(device)
        rate = int(getattr(self._extractor, "sampling_rate", 16000))
        self.needs = Needs("sound", rate, round(window * rate), round(stride * rate))
        self.model, self.layer, self.batch_size = model, str(layer), batch_size
        self.version = version_of(self._network, model)
        self.dim = int(self.encode(np.zeros(self.needs.window, np.float32)).shape[1])

    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, dim)."""
        needs = self.needs
        windows = np.lib.stride_tricks.sliding_window_view(samples, needs.window)[:: needs.stride]  # (rows, window)
        parts = []
        for start in range(0, len(windows), self.batch_size):
            block = [np.array(window) for window in windows[start : start + self.batch_size]]
            inputs = self._extractor(block, sampling_rate=int(needs.rate), return_tensors="pt").to(self.device)
            parts.append(run_layer(self._network, self.layer, self.model, **inputs).float().cpu().numpy())
        return np.concatenate(parts)


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


class Detector(FrameExpert):
    """One row for each image: the mean of the features of its boxes, weighted by the probability of their class.

    Only boxes above the threshold count (0.7 in the paper). An image without such boxes has a row of zeros.

    Args:
        model: hub name or local folder of a detector.
        threshold: the lowest score of a box that counts.
        rate: frames per second.
        batch_size: images encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "object"

    def __init__(
        self,
        model: str,
        threshold: float = 0.7,
        rate: float = 1.0,
        batch_size: int = 4,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        if not 0 <= threshold < 1:
            raise ExpertError(f"threshold must lie in [0, 1), got {threshold}")
        self._prepare = image_processor(model, revision)
        self._network = load_network(model, revision, device, "AutoModelForObjectDetection")
        self.device = torch.device(device)
        self.needs = Needs("boxes", rate)
        self.model, self.threshold, self.batch_size = model, threshold, batch_size
        self.layer = f"last decoder state, weighted by class probability, boxes above {threshold:g}"
        self.version = version_of(self._network, model)
        self.dim = int(self._detect([self.prepare(np.zeros((64, 64, 3), np.uint8))])[1].shape[2])

    def prepare(self, image: Any) -> Tensor:
        """The detector's own preparation of the whole, uncropped image."""
        return self._prepare(as_rgb(image))

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim); only images of equal size share a batch, so none is padded."""
        by_shape: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(prepared):
            by_shape.setdefault(image.shape, []).append(index)
        rows = np.zeros((len(prepared), self.dim), dtype=np.float32)
        for chosen in by_shape.values():
            probabilities, states = self._detect([prepared[index] for index in chosen])
            rows[chosen] = class_weighted(probabilities.amax(2), states, self.threshold).cpu().numpy()
        return rows

    def _detect(self, images: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """(images, queries, classes) probabilities and (images, queries, dim) states."""
        with torch.inference_mode():
            outputs = self._network(pixel_values=torch.stack(list(images)).to(self.device))
        logits = outputs.logits.float()
        # DETR has one more class for "no object"; later models of its family score each class separately.
        has_empty_class = logits.shape[2] == self._network.config.num_labels + 1
        probabilities = logits.softmax(2)[..., :-1] if has_empty_class else logits.sigmoid()
        return probabilities, outputs.last_hidden_state.float()


def class_weighted(scores: Tensor, states: Tensor, threshold: float) -> Tensor:
    """(images, dim): the mean of the states of boxes above the threshold, weighted by score; zeros without boxes.

    Example:
        >>> class_weighted(torch.tensor([[0.9, 0.8, 0.1]]), torch.tensor([[[1.0], [3.0], [9.0]]]), 0.7).item()
        1.9411765336990356
    """
    weights = torch.where(scores > threshold, scores, 0.0)  # (images, queries)
    total = weights.sum(1, keepdim=True)
    return (weights.unsqueeze(2) * states).sum(1) / torch.where(total > 0, total, 1.0)
