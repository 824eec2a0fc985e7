"""Read an image as RGB pixels on a white background, without PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from crossclr.experts.media import MediaError
from crossclr.extras import requires_extra

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def as_rgb(image: Any) -> Image:
    """An RGB image from a PIL image (transparent parts become white) or a (height, width, 3) uint8 array."""
    with requires_extra("experts", "Preparing images"):
        import PIL.Image

    if isinstance(image, PIL.Image.Image):
        if image.mode == "RGB":
            return image
        rgba = image.convert("RGBA")
        opaque = PIL.Image.new("RGBA", rgba.size, "white")
        opaque.alpha_composite(rgba)
        return opaque.convert("RGB")
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise TypeError(
            f"an image must be a PIL image or a (height, width, 3) uint8 array, got {type(image).__name__} "
            f"{pixels.dtype} of shape {pixels.shape}"
        )
    return PIL.Image.fromarray(pixels)


def check_image(path: Path) -> None:
    """Check that a file is an image, without decoding it."""
    _open_image(path, lambda image: image.size)


def read_image(path: Path | BinaryIO) -> Any:
    """(height, width, 3) uint8, turned as the file's orientation tag says.

    Raises:
        MediaError: the file is absent or damaged.
    """

    def decode(image: Image) -> Any:
        import PIL.ImageOps

        return np.asarray(as_rgb(PIL.ImageOps.exif_transpose(image)))

    return _open_image(path, decode)


def _open_image(path: Path | BinaryIO, use: Callable[[Image], Any]) -> Any:
    with requires_extra("experts", "Decoding images"):
        import PIL.Image

    try:
        with PIL.Image.open(path, formats=FORMATS) as image:
            return use(image)
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise MediaError("it has too many pixels") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise MediaError(f"it cannot be read as an image ({error})") from error
