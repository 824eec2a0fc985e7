"""Caption files (JSON, CSV) and subtitles (.srt, .vtt): the sentences of each recording, with their times."""

import csv
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.errors import ReadError
from crossclr.extract.segments import Segment, parse_seconds
from crossclr.storage.reading import check_regular, read_json, reading

SUBTITLES = (".vtt", ".srt")
_TIMES = re.compile(r"^\s*(\d[\d:.,]*)\s*-->\s*(\d[\d:.,]*)(?:\s|$)")
_TAGS = re.compile(r"<[^>]*>|\{\\[^}]*\}")


def subtitles_in(folder: Path) -> dict[str, Path]:
    """The subtitles in a folder, by the stem of their video.

    File names are ``name.vtt``, ``name.srt`` or, with a language, ``name.en.srt``. A name without a language is
    preferred to one with, and .vtt is preferred to .srt.
    """
    by_stem: dict[str, Path] = {}
    files = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUBTITLES)
    for path in sorted(files, key=lambda path: SUBTITLES.index(path.suffix.lower())):
        by_stem.setdefault(path.stem, path)
    for path in files:
        stem, dot, language = path.stem.rpartition(".")
        if dot and 2 <= len(language) <= 8:
            by_stem.setdefault(stem, path)
    return by_stem


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


FILE = ("file", "video", "path", "filename", "name", "clip", "image", "audio", "video_id", "id", "data_key")
TEXT = ("text", "caption", "sentence", "description")
START = ("start", "start_sec", "start_time", "begin")
LONGEST_LINE = 131_072  # characters; the limit of a field in the csv module
STOP = ("stop", "stop_sec", "end", "end_sec", "end_time")
OTHER = ("split", "captions", "segments", "timestamps", "sentences", "duration", "duration_sec")
MOST_FIELDS, LONGEST_FIELD = 16, 200  # other columns of a row, and their characters


@dataclass(frozen=True)
class Captioned:
    """An entry of a caption file."""

    key: str  # the entry's name in the file
    file: str  # the name of the recording
    split: str | None  # its split, if the file names one
    segments: tuple[Segment, ...]  # its sentences, with times if the file has them


def read_captions(path: Path) -> list[Captioned]:
    """The entries of a caption file.

    A JSON file may hold

    - an object: file -> a sentence, a list of sentences, or an object with ``captions``, ``segments`` (COOT's meta
      file) or ``timestamps`` and ``sentences`` (ActivityNet Captions);
    - a list of objects with ``file``, ``text`` and optionally ``start``, ``stop`` and ``split``.

    A CSV or TSV file has a header and the same columns as such a list.

    Raises:
        ValueError: it has another form; the message names the entry.
    """
    if path.suffix.lower() in (".csv", ".tsv"):
        return _from_rows(path, _table_rows(path))
    content = read_json(path)
    if isinstance(content, list):
        return _from_rows(path, ((f"entry {n}", row) for n, row in enumerate(content)))
    if not isinstance(content, dict):
        raise ValueError(f"{path}: it must hold an object or a list, found {type(content).__name__}")
    return [_from_entry(path, str(key), entry) for key, entry in content.items()]


def _from_entry(path: Path, key: str, entry: Any) -> Captioned:
    try:
        if isinstance(entry, Mapping):
            file = str(_first(entry, ("data_key", "file", "video", "path")) or key)
            split = entry.get("split")
            return Captioned(key, file, None if split is None else str(split), tuple(_segments_of(entry)))
        texts = [entry] if isinstance(entry, str) else entry
        return Captioned(key, key, None, tuple(Segment(_sentence(text)) for text in texts))
    except (TypeError, KeyError, ValueError) as error:
        what = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise ValueError(
            f"{path}: entry {key!r}: {what}; write a sentence, a list of sentences, or an object with captions or "
            "segments (text, start_sec, stop_sec)"
        ) from error


def _segments_of(entry: Mapping[str, Any]) -> Iterator[Segment]:
    if "segments" in entry:
        for segment in entry["segments"]:
            yield _segment(segment, _fields(entry))
    elif "timestamps" in entry:
        for (start, stop), text in zip(entry["timestamps"], entry["sentences"], strict=True):
            yield Segment(_sentence(text), parse_seconds(start), parse_seconds(stop), _fields(entry))
    else:
        texts = entry["captions"] if "captions" in entry else _first(entry, TEXT)
        for text in [texts] if isinstance(texts, str) else texts or ():
            yield Segment(_sentence(text), fields=_fields(entry))


def _fields(values: Mapping[str, Any]) -> dict[str, str]:
    """What a row says besides file, sentence, times and split."""
    known = (*FILE, *TEXT, *START, *STOP, *OTHER)
    fields = {
        str(name): str(value).strip()[:LONGEST_FIELD]
        for name, value in values.items()
        if name and name not in known and isinstance(value, str | int | float) and str(value).strip()
    }
    return dict(list(fields.items())[:MOST_FIELDS])


def _segment(values: Mapping[str, Any], shared: Mapping[str, str] | None = None) -> Segment:
    start, stop = (
        None if value is None else parse_seconds(value) for value in (_first(values, START), _first(values, STOP))
    )
    return Segment(_sentence(_first(values, TEXT)), start, stop, {**(shared or {}), **_fields(values)})


def _sentence(text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a sentence must be a non-empty string, got {text!r}")
    return " ".join(text.split())


def _first(values: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) not in (None, "")), None)


def _table_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    check_regular(path)
    with reading(path, "CSV", advice="correct it"), path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline(LONGEST_LINE)
        file.seek(0)
        delimiter = max(",;\t", key=first.count)
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)  # strict: an open quote is an error
        names = reader.fieldnames = [(name or "").strip().lower() for name in reader.fieldnames or ()]
        if twice := [name for name in names if name and names.count(name) > 1]:
            raise ReadError(f"{path}: line 1: the column {twice[0]!r} occurs twice; remove one of them")
        for row in reader:
            line = f"line {reader.line_num}"
            if None in row:
                raise ReadError(f"{path}: {line} has more fields than the header; put texts in quotes")
            if any("\0" in (value or "") for value in row.values()):
                raise ReadError(f"{path}: {line} contains a NUL character; remove it")
            yield line, row


def _from_rows(path: Path, rows: Iterator[tuple[str, Any]]) -> list[Captioned]:
    """Rows of the same file, in order, become the segments of one entry."""
    entries: dict[str, tuple[str | None, list[Segment]]] = {}
    for line, row in rows:
        name = _first(row, FILE) if isinstance(row, Mapping) else None
        if name is None:
            raise ValueError(f"{path}: {line} names no file; add a column or field 'file'")
        _, segments = entries.setdefault(str(name), (row.get("split") or None, []))
        try:
            if _first(row, TEXT) is not None:
                segments.append(_segment(row))
            elif row.get("captions"):
                segments.extend(_segments_of(row))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path}: {line} ({name}): {error}") from error
    return [Captioned(name, name, split, tuple(segments)) for name, (split, segments) in entries.items()]
