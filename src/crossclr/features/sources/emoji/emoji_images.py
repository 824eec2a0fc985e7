"""Images of the built-in set, and the places that name them: ``emoji:noto/1F34E``."""

import zipfile
from functools import cache

from crossclr.features.errors import DataError
from crossclr.features.sources.emoji.emoji_catalogue import FOLDER, VENDORS

BUILT_IN = "emoji:"  # followed by <vendor>+<vendor>/<key>; several vendors show one item together


def emoji_image(key: str, vendor: str = "noto") -> bytes:
    """The image of an emoji, a WebP file of 64 × 64 pixels with a transparent background.

    Args:
        key: the emoji's key.
        vendor: `noto`, `fluent` or `twemoji`.

    Example:
        >>> emoji_image("1F34E", "fluent")[8:12]
        b'WEBP'
    """
    if vendor not in VENDORS:
        raise ValueError(f"no vendor {vendor!r}; there are {', '.join(VENDORS)}")
    found = _images(vendor).get(f"{key}.webp")
    if found is None:
        raise DataError(f"the emoji set has no emoji {key!r}; a key looks like '1F34E'")
    return found


@cache
def _images(vendor: str) -> dict[str, bytes]:
    with zipfile.ZipFile(FOLDER / f"{vendor}.zip") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def image_place(key: str, *vendors: str) -> str:
    """The place of an emoji's images.

    Example:
        >>> image_place("1F34E", "noto", "fluent")
        'emoji:noto+fluent/1F34E'
    """
    return f"{BUILT_IN}{'+'.join(vendors)}/{key}"


def is_built_in(place: str) -> bool:
    """Whether a place names images of the built-in set, rather than a file."""
    return place.startswith(BUILT_IN)


def count_images(place: str) -> int:
    """How many images show one item.

    Example:
        >>> count_images("emoji:noto+fluent/1F34E"), count_images("/data/a+b/c.png")
        (2, 1)
    """
    return place.count("+") + 1 if is_built_in(place) else 1


def read_image(place: str, part: int = 0) -> bytes:
    """One image of a place in the built-in set, as a WebP file.

    Raises:
        IndexError: the place has fewer images.

    Example:
        >>> read_image("emoji:noto/1F34E")[8:12]
        b'WEBP'
    """
    vendors, _, key = place.removeprefix(BUILT_IN).partition("/")
    return emoji_image(key, vendors.split("+")[part])
