"""Turn an image into a network's input: scaled, centre-cropped, normalised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.media.images import as_rgb

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
