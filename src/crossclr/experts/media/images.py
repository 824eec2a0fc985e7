"""How a picture becomes a network's input: laid on white, scaled, cut to its centre, normalised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from crossclr.extras import requires_extra

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Preparation:
    """Scaling, cutting and normalising of pictures.

    Args:
        shorter: pixels of the shorter side after scaling.
        crop: pixels of the square that is cut out of the centre.
        mean: of each channel, in the scale of 0 to 255.
        deviation: of each channel, likewise.
        filter: Pillow's filter of scaling, ``bicubic`` or ``bilinear``.

    Example:
        >>> import numpy as np
        >>> ready = Preparation(8, 8, (0, 0, 0), (255, 255, 255))(np.full((20, 30, 3), 255, np.uint8))
        >>> ready.dtype, ready.shape
        (torch.uint8, torch.Size([3, 8, 8]))
    """

    shorter: int
    crop: int
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    filter: str = "bicubic"

    def __call__(self, picture: Any) -> Tensor:
        """(3, crop, crop) uint8: four times smaller on its way through a queue than what the network takes."""
        with requires_extra("experts", "Preparing images"):
            import PIL.Image

        flat = as_picture(picture)
        width, height = flat.size
        scale = self.shorter / min(width, height)
        scaled = (max(self.shorter, round(width * scale)), max(self.shorter, round(height * scale)))
        resized = flat.resize(scaled, PIL.Image.Resampling[self.filter.upper()])
        left, top = (scaled[0] - self.crop) // 2, (scaled[1] - self.crop) // 2
        pixels = np.array(resized.crop((left, top, left + self.crop, top + self.crop)))  # (crop, crop, 3)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def normalise(self, prepared: Sequence[Tensor], device: torch.device) -> Tensor:
        """(pictures, 3, crop, crop) float32 of what the call gave; further axes before the channels are kept."""
        pixels = torch.stack(list(prepared)).to(device, torch.float32)
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        return pixels.sub_(mean).div_(torch.tensor(self.deviation, device=device).view(3, 1, 1))


def as_picture(picture: Any) -> Image:
    """An RGB picture of a PIL picture (transparent parts become white) or an (height, width, 3) uint8 array.

    Raises:
        TypeError: it is neither.
    """
    with requires_extra("experts", "Preparing images"):
        import PIL.Image

    if isinstance(picture, PIL.Image.Image):
        if picture.mode == "RGB":
            return picture
        rgba = picture.convert("RGBA")
        flat = PIL.Image.new("RGBA", rgba.size, "white")
        flat.alpha_composite(rgba)
        return flat.convert("RGB")
    pixels = np.asarray(picture)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise TypeError(
            f"a picture must be a PIL picture or an (height, width, 3) uint8 array, got {type(picture).__name__} "
            f"{pixels.dtype} of shape {pixels.shape}"
        )
    return PIL.Image.fromarray(pixels)


IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
KINETICS = ((110.2008, 100.63983, 95.99475), (58.14765, 56.46975, 55.332195))
UNIT = ((0.0, 0.0, 0.0), (255.0, 255.0, 255.0))
