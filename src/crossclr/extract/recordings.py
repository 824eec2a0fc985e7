"""Find the recordings of a folder or a table, and the sentences that belong to them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from unicodedata import normalize

from crossclr.extract.caption_files import Captioned, read_captions, read_subtitles, subtitles_in
from crossclr.extract.media import RECORDINGS, UNREADABLE
from crossclr.extract.segments import Segment


@dataclass(frozen=True)
class Omission:
    """Something that is omitted."""

    name: str  # the file or datapoint
    what: str  # the reason
    minor: bool = False  # whether the file is used all the same, such as a video without sound

    def __str__(self) -> str:
        return f"{self.name}: {self.what}"


@dataclass(frozen=True)
class Recording:
    """A video, sound or image."""

    key: str  # its name in the feature files
    path: Path  # the file


@dataclass(frozen=True)
class Datapoint:
    """A recording with its sentences; several datapoints may share one recording."""

    key: str  # its name in the meta file
    recording: str  # the key of the recording
    split: str | None  # the split that the caption file names, if any
    segments: tuple[Segment, ...]  # its sentences; empty without captions


MAX_LINES = 100  # of a text file next to a recording


@dataclass
class Listing:
    """Everything there is to extract."""

    recordings: list[Recording] = field(default_factory=list)  # files, in order
    datapoints: list[Datapoint] = field(default_factory=list)  # what the captions or subtitles say about them
    problems: list[Omission] = field(default_factory=list)  # what is omitted
    unused: list[str] = field(default_factory=list)  # files that the captions do not name

    @property
    def captioned(self) -> bool:
        """Whether there is any sentence."""
        return any(point.segments for point in self.datapoints)


def list_media(source: Path | str, captions: Path | str | None = None, keep_all: bool = False) -> Listing:
    """The recordings of a folder or of a table of files, with their sentences.

    Args:
        source: a folder (searched recursively), one recording, or a CSV or JSON file that names files relative to
            itself.
        captions: a caption file; recordings that it does not name are omitted. Without it, the subtitles next to a
            recording are its sentences.
        keep_all: keep recordings that the caption file does not name. Their sentences are the subtitles, or the lines
            of a text file of the same name.

    Raises:
        FileNotFoundError: the source or the caption file does not exist.
        ValueError: there is no recording, or a table has another form.
    """
    source = Path(source)
    if not source.exists():
        raise FileNotFoundError(2, "No such file or directory", str(source))
    listing = Listing()
    table: list[Captioned] | None = None
    base = source if source.is_dir() else source.parent
    if source.is_dir():
        files = _files_in(source, listing)
    elif source.suffix.lower() in RECORDINGS:
        files = [source]
    else:
        table = read_captions(source)
        files = _named_files(table, base, listing)
    listing.recordings = _with_keys(files, base)
    if not listing.recordings and not listing.problems:
        raise ValueError(f"{source}: there is no video, sound or image ({', '.join(sorted(RECORDINGS))})")
    if captions is not None:
        table = read_captions(Path(captions))
    named = table is not None and (captions is not None or any(entry.segments for entry in table))
    if table is not None and named:
        _add_captions(listing, table, base, listed=captions is None)
    if keep_all or not named:
        _add_subtitles(listing, sidecars=keep_all)
    used = {point.recording for point in listing.datapoints}
    listing.unused = [recording.path.name for recording in listing.recordings if recording.key not in used]
    listing.recordings = [recording for recording in listing.recordings if recording.key in used]
    return listing


def _files_in(folder: Path, listing: Listing) -> list[Path]:
    files = []
    for path in sorted(folder.rglob("*"), key=lambda path: path.as_posix().encode(errors="surrogateescape")):
        inside = path.relative_to(folder)
        ending = path.suffix.lower()
        hidden = any(name.startswith(".") for name in inside.parts)
        if hidden or ending not in (*RECORDINGS, *UNREADABLE) or not path.is_file():
            continue
        try:
            str(inside).encode("utf-8")
        except UnicodeEncodeError:
            shown = str(inside).encode(errors="surrogateescape").decode(errors="backslashreplace")
            listing.problems.append(Omission(shown, "the name is not UTF-8; rename the file"))
            continue
        if ending in UNREADABLE:
            what = f"files of type {ending} are not read; convert it to {UNREADABLE[ending]}"
            listing.problems.append(Omission(str(inside), what))
        else:
            files.append(path)
    return files


def _named_files(table: Iterable[Captioned], base: Path, listing: Listing) -> list[Path]:
    files: dict[Path, None] = {}
    for entry in table:
        path = base / entry.file
        if path.is_file():
            files[path] = None
        else:
            listing.problems.append(Omission(entry.file, f"there is no such file in {base}"))
    return list(files)


def _with_keys(files: Sequence[Path], base: Path) -> list[Recording]:
    """The stem is the key. Files with the same stem get their path as key, without slashes, which HDF5 forbids."""
    shared = Counter(path.stem for path in files)
    recordings: list[Recording] = []
    taken: set[str] = {".", ".."}
    for path in files:
        inside = path.relative_to(base).parts if path.is_relative_to(base) else path.parts[1:]
        key = _unused_key("__".join(inside) if shared[path.stem] > 1 else path.stem, taken)
        recordings.append(Recording(key, path))
    return recordings


def _unused_key(key: str, taken: set[str]) -> str:
    while key in taken:
        key = f"{key}_"
    taken.add(key)
    return key


def _add_captions(listing: Listing, table: Sequence[Captioned], base: Path, listed: bool) -> None:
    """Find the recording of each entry of a table."""
    names: dict[str, str] = {}
    for recording in listing.recordings:
        path = recording.path
        inside = str(path.relative_to(base)) if path.is_relative_to(base) else str(path)
        for name in (path.stem, path.name, inside, str(path)):
            names.setdefault(normalize("NFC", name), recording.key)  # macOS decomposes umlauts
        names[recording.key] = recording.key
    taken: set[str] = set()
    for entry in table:
        file = Path(normalize("NFC", entry.file))
        target = names.get(entry.file) or next(
            (names[candidate] for candidate in (str(file), file.name, file.stem) if candidate in names), None
        )
        if target is None:
            if not listed:  # a table of files has already reported this
                listing.problems.append(Omission(entry.file, "the captions name it, but there is no such file"))
        elif not entry.segments:
            listing.problems.append(Omission(entry.file, "it has no sentence"))
        else:
            proposed = entry.key if entry.key != entry.file else target
            key = _unused_key(proposed.replace("/", "__"), taken)
            listing.datapoints.append(Datapoint(key, target, entry.split, entry.segments))


def _add_subtitles(listing: Listing, sidecars: bool) -> None:
    """A datapoint for each recording that has none."""
    by_folder: dict[Path, dict[str, Path]] = {}
    known = {point.recording for point in listing.datapoints}
    for recording in (recording for recording in listing.recordings if recording.key not in known):
        folder = recording.path.parent
        if folder not in by_folder:
            by_folder[folder] = subtitles_in(folder)
        path, note = by_folder[folder].get(recording.path.stem), recording.path.with_suffix(".txt")
        segments: tuple[Segment, ...] = ()
        if path is not None:
            try:
                segments = tuple(read_subtitles(path))
            except (ValueError, OSError) as error:
                listing.problems.append(Omission(path.name, f"the subtitles cannot be read ({error})"))
        elif sidecars and note.is_file():
            lines = note.read_text(encoding="utf-8-sig", errors="replace").splitlines()[:MAX_LINES]
            segments = tuple(Segment(" ".join(line.split())) for line in lines if line.strip())
        listing.datapoints.append(Datapoint(recording.key, recording.key, None, segments))
