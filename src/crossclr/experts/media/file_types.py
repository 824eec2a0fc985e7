"""Which file names are videos, sounds or images, and which of them browsers play."""

from pathlib import Path

PLAYABLE = {  # ending -> media type, for the formats that browsers play
    **{".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp", ".gif": "image/gif"},
    **{".mp4": "video/mp4", ".m4v": "video/mp4", ".webm": "video/webm", ".ogv": "video/ogg", ".mov": "video/quicktime"},
    **{".mkv": "video/x-matroska", ".mp3": "audio/mpeg", ".wav": "audio/wav", ".ogg": "audio/ogg"},
    **{".m4a": "audio/mp4", ".flac": "audio/flac", ".opus": "audio/ogg", ".aac": "audio/aac"},
}


def _playable(kind: str) -> frozenset[str]:
    return frozenset(ending for ending, found in PLAYABLE.items() if found.startswith(f"{kind}/"))


VIDEOS = _playable("video") | {".avi", ".mpg", ".mpeg", ".ts", ".flv", ".wmv"}
SOUNDS = _playable("audio")
IMAGES = _playable("image") | {".bmp"}
RECORDINGS = VIDEOS | SOUNDS | IMAGES


def media_type(path: Path) -> str | None:
    """The media type of a file that browsers play, by the ending of its name; None for any other file.

    Example:
        >>> media_type(Path("clip.MP4")), media_type(Path("notes.txt"))
        ('video/mp4', None)
    """
    return PLAYABLE.get(path.suffix.lower())


def media_kind(path: Path) -> str | None:
    """``image``, ``video`` or ``audio`` by the ending of a file's name, also for formats that browsers do not play.

    Example:
        >>> media_kind(Path("old.AVI")), media_kind(Path("notes.txt"))
        ('video', None)
    """
    ending = path.suffix.lower()
    kinds = (("image", IMAGES), ("video", VIDEOS), ("audio", SOUNDS))
    return next((kind for kind, endings in kinds if ending in endings), None)


def starts_like_image(head: bytes) -> bool:
    """Whether the first 16 bytes of a file are those of a PNG, JPEG, GIF, BMP or WebP image.

    Example:
        >>> starts_like_image(b"GIF89a" + bytes(10)), starts_like_image(b"RIFF....WAVEfmt ")
        (True, False)
    """
    return head.startswith((b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM")) or head[8:12] == b"WEBP"
