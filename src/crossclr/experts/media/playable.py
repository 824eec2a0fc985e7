"""Media files that browsers play: which endings, with which media type."""

from __future__ import annotations

from pathlib import Path

PLAYABLE = {
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"},
    **{".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime"},
    **{".mkv": "video/x-matroska", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg"},
    **{".m4a": "audio/mp4", ".flac": "audio/flac", ".opus": "audio/ogg", ".aac": "audio/aac"},
}


def media_type(path: Path) -> str | None:
    """The media type of a file that browsers play, by the ending of its name; None for any other file.

    Example:
        >>> media_type(Path("clip.MP4")), media_type(Path("notes.txt"))
        ('video/mp4', None)
    """
    return PLAYABLE.get(path.suffix.lower())
