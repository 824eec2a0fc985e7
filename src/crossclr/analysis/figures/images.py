"""Small images of clips for a report."""

import base64
import io
from pathlib import Path

from crossclr.features import DataError, Source

SIDE = 64  # pixels
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".gif"}


def image_uri(source: Source, clip_key: str) -> str:
    """The image of a clip as a data URI, from the data or from a sample's image file; empty if there is none."""
    content = source.image(clip_key)
    if content is not None:
        return f"data:image/webp;base64,{base64.b64encode(content).decode()}"
    try:
        media = Path(source.read(clip_key).extra.get("media", ""))
    except (DataError, ValueError):
        return ""
    return _small(media) if media.suffix.lower() in ENDINGS and media.is_file() else ""


def _small(path: Path) -> str:
    from PIL import Image

    written = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((SIDE, SIDE))
        image.convert("RGB").save(written, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
