"""Small images of clips for a report."""

from __future__ import annotations

import base64
import io
from pathlib import Path

from crossclr.features import DataError, Source

SIDE = 64  # pixels
ENDINGS = {".png", ".jpg", ".jpeg", ".webp", ".gif"}


class Pictures:
    """Images as data URIs: images of the data source, or image files that samples name as their media.

    Args:
        source: the data.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def uri(self, clip_key: str) -> str:
        """The image of a clip, or an empty string."""
        content = self.source.image(clip_key)
        if content is not None:
            return f"data:image/webp;base64,{base64.b64encode(content).decode()}"
        try:
            media = self.source.read(clip_key).extra.get("media", "")
        except (DataError, ValueError):
            return ""
        return _small(Path(media)) if Path(media).suffix.lower() in ENDINGS and Path(media).is_file() else ""


def _small(path: Path) -> str:
    from PIL import Image

    written = io.BytesIO()
    with Image.open(path) as picture:
        picture.thumbnail((SIDE, SIDE))
        picture.convert("RGB").save(written, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(written.getvalue()).decode()}"
