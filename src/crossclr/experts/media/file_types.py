"""Which file names are videos, sounds or images, and which of them a browser can play."""

from __future__ import annotations

# File ending -> media type, for the formats that browsers play.
BROWSER_TYPES = {
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"},
    **{".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime"},
    **{".mkv": "video/x-matroska", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg"},
    **{".m4a": "audio/mp4", ".flac": "audio/flac", ".opus": "audio/ogg", ".aac": "audio/aac"},
}


def _played(kind: str) -> frozenset[str]:
    return frozenset(ending for ending, media_type in BROWSER_TYPES.items() if media_type.startswith(f"{kind}/"))


VIDEOS = _played("video") | {".avi", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
SOUNDS = _played("audio")
IMAGES = _played("image") | {".bmp"}
RECORDINGS = VIDEOS | SOUNDS | IMAGES
