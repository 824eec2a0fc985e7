"""Subtitles (.srt, .vtt) as sentences with times."""

import html
import re
from pathlib import Path

from crossclr.experts.texts.segments import Segment, parse_seconds

SUBTITLES = (".vtt", ".srt")
_TIMES = re.compile(r"^\s*(\d[\d:.,]*)\s*-->\s*(\d[\d:.,]*)(?:\s|$)")
_TAGS = re.compile(r"<[^>]*>|\{\\[^}]*\}")


def subtitles_in(folder: Path) -> dict[str, Path]:
    """The subtitles in a folder, by the stem of their video.

    File names are ``name.vtt``, ``name.srt`` or, with a language, ``name.en.srt``. A name without a language is
    preferred to one with, and .vtt is preferred to .srt.
    """
    found: dict[str, Path] = {}
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUBTITLES)
    for path in sorted(files, key=lambda path: SUBTITLES.index(path.suffix.lower())):
        found.setdefault(path.stem, path)
    for path in files:
        stem, dot, language = path.stem.rpartition(".")
        if dot and 2 <= len(language) <= 8:
            found.setdefault(stem, path)
    return found


def read_subtitles(path: Path) -> list[Segment]:
    """The cues of a file in their order, without tags; cues without words are omitted."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = raw.decode("cp1252", errors="replace")
    cues = parse_subtitles(text)
    if not cues:
        raise ValueError("it has no cue; a cue begins with a line such as 00:00:01,000 --> 00:00:02,500")
    return cues


def parse_subtitles(text: str) -> list[Segment]:
    r"""The cues of a subtitle text.

    Example:
        >>> parse_subtitles("1\n00:00:01,500 --> 00:00:03,000\n<i>Chop</i> the\nonion.\n")
        [Segment(text='Chop the onion.', start=1.5, stop=3.0)]
    """
    cues = []
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n").replace("\r", "\n")):
        lines = block.splitlines()
        for number, line in enumerate(lines):
            times = _TIMES.match(line)
            if times is None:
                continue
            words = " ".join(html.unescape(_TAGS.sub("", " ".join(lines[number + 1 :]))).split())
            if words:
                cues.append(Segment(words, parse_seconds(times[1]), parse_seconds(times[2])))
            break
    return cues
