"""Which recordings there are, and which sentences belong to them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crossclr.experts.media.decoding import PICTURES, SOUNDS, VIDEOS
from crossclr.experts.texts.caption_files import Captioned, read_captions
from crossclr.experts.texts.segments import Segment
from crossclr.experts.texts.subtitles import read_subtitles, subtitles_in

MEDIA = VIDEOS | SOUNDS | PICTURES
FRACTIONS = {"train": 0.8, "val": 0.1, "test": 0.1}


@dataclass(frozen=True)
class Problem:
    """Something that was left out.

    Args:
        name: the file or datapoint.
        what: why, in words.
    """

    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass(frozen=True)
class Recording:
    """A video, sound or picture.

    Args:
        key: its name in the feature files.
        path: the file.
    """

    key: str
    path: Path


@dataclass(frozen=True)
class Datapoint:
    """A recording with its sentences; several may share one recording.

    Args:
        key: its name in the meta file.
        recording: the key of the recording.
        split: the split that a caption file names.
        segments: sentences; none where there are no captions.
    """

    key: str
    recording: str
    split: str | None
    segments: tuple[Segment, ...]


@dataclass
class Listing:
    """Everything that is to be extracted, and what cannot be.

    Args:
        recordings: files, in order.
        datapoints: what is said of them.
        problems: what was left out.
        unused: files that the captions do not name.
    """

    recordings: list[Recording] = field(default_factory=list)
    datapoints: list[Datapoint] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    @property
    def captioned(self) -> bool:
        """Whether there is any sentence."""
        return any(point.segments for point in self.datapoints)


def list_media(source: Path | str, captions: Path | str | None = None) -> Listing:
    """The recordings of a folder, or of a table of files, with their sentences.

    Args:
        source: a folder (searched with all folders in it), one recording, or a CSV or JSON file that names files
            relative to itself.
        captions: a caption file. Recordings that it does not name are left out. Without one, subtitles beside a
            recording are its sentences.

    Raises:
        FileNotFoundError: the source or the captions are not there.
        ValueError: there is no recording at all, or a table has another form.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(2, "No such file or directory", str(source))
    listing = Listing()
    table: list[Captioned] | None = None
    if source.is_dir():
        files = _files_of(source, listing)
        base = source
    elif source.suffix.lower() in MEDIA:
        files, base = [source], source.parent
    else:
        table, base = read_captions(source), source.parent
        files = _named_files(table, base, listing)
    listing.recordings = _with_keys(files, base)
    if not listing.recordings and not listing.problems:
        raise ValueError(f"{source}: there is no video, sound or picture ({', '.join(sorted(MEDIA))})")
    if captions is not None:
        table = read_captions(Path(captions))
    if table is not None and (captions is not None or any(entry.segments for entry in table)):
        _join(listing, table, base, listed=captions is None)
    else:
        beside: dict[Path, dict[str, Path]] = {}
        for recording in listing.recordings:
            folder = recording.path.parent
            if folder not in beside:
                beside[folder] = subtitles_in(folder)
            segments = _subtitles(beside[folder].get(recording.path.stem), listing)
            listing.datapoints.append(Datapoint(recording.key, recording.key, None, segments))
    used = {point.recording for point in listing.datapoints}
    listing.unused = [recording.path.name for recording in listing.recordings if recording.key not in used]
    listing.recordings = [recording for recording in listing.recordings if recording.key in used]
    return listing


def assign_splits(keys: Sequence[str], fractions: Mapping[str, float] = FRACTIONS) -> dict[str, str]:
    """A split for each key, by a hash of it: a key keeps its split when others come or go.

    Example:
        >>> splits = assign_splits([f"video{n}" for n in range(1000)])
        >>> {name: list(splits.values()).count(name) for name in FRACTIONS}
        {'train': 796, 'val': 106, 'test': 98}
    """
    total = sum(fractions.values())
    chosen = {}
    for key in keys:
        place = int.from_bytes(hashlib.blake2b(f"split:{key}".encode(), digest_size=8).digest(), "big") / 2**64
        edge = 0.0
        for name, share in fractions.items():
            edge += share / total
            chosen[key] = name
            if place < edge:
                break
    return chosen


def _files_of(folder: Path, listing: Listing) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.as_posix().encode(errors="surrogateescape")):
        inside = path.relative_to(folder)
        if path.suffix.lower() not in MEDIA or any(part.startswith(".") for part in inside.parts) or not path.is_file():
            continue
        if _unreadable(str(inside)):
            shown = str(inside).encode(errors="surrogateescape").decode(errors="backslashreplace")
            listing.problems.append(Problem(shown, "the name is not UTF-8; rename the file"))
            continue
        files.append(path)
    return files


def _unreadable(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _named_files(table: Iterable[Captioned], base: Path, listing: Listing) -> list[Path]:
    files: dict[Path, None] = {}
    for entry in table:
        path = base / entry.file
        if path.is_file():
            files[path] = None
        else:
            listing.problems.append(Problem(entry.file, f"there is no such file in {base}"))
    return list(files)


def _with_keys(files: Sequence[Path], base: Path) -> list[Recording]:
    """The stem is the key; where several files share it, the path inside the folder is. HDF5 allows no slash in it."""
    shared = Counter(path.stem for path in files)
    recordings: list[Recording] = []
    taken: set[str] = set()
    for path in files:
        key = path.stem
        if shared[key] > 1:
            try:
                key = "__".join(path.relative_to(base).parts)
            except ValueError:
                key = "__".join(path.parts[1:])
        while key in taken or key in (".", ".."):
            key = f"{key}_"
        taken.add(key)
        recordings.append(Recording(key, path))
    return recordings


def _join(listing: Listing, table: Sequence[Captioned], base: Path, listed: bool) -> None:
    """Find the recording of each entry of a table."""
    names: dict[str, str] = {}
    for recording in listing.recordings:
        for name in (recording.path.stem, recording.path.name, _inside(recording.path, base), str(recording.path)):
            names.setdefault(name, recording.key)
        names[recording.key] = recording.key
    seen: set[str] = set()
    for entry in table:
        found = names.get(entry.file) or names.get(Path(entry.file).name) or names.get(Path(entry.file).stem)
        if found is None:
            if not listed:  # a table of files has told this already
                listing.problems.append(Problem(entry.file, "the captions name it, but there is no such file"))
            continue
        if not entry.segments:
            listing.problems.append(Problem(entry.file, "it has no sentence"))
            continue
        own = entry.key if entry.key != entry.file else found
        key = own.replace("/", "__")
        while key in seen:
            key = f"{key}_"
        seen.add(key)
        listing.datapoints.append(Datapoint(key, found, entry.split, entry.segments))


def _inside(path: Path, base: Path) -> str:
    return str(path.relative_to(base)) if path.is_relative_to(base) else str(path)


def _subtitles(path: Path | None, listing: Listing) -> tuple[Segment, ...]:
    if path is None:
        return ()
    try:
        return tuple(read_subtitles(path))
    except (ValueError, OSError) as error:
        listing.problems.append(Problem(path.name, f"the subtitles cannot be read ({error})"))
        return ()
