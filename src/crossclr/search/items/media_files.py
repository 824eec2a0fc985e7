"""Find the image, video or sound of a clip."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossclr.experts.media.file_types import media_kind
from crossclr.features import DataError, Sample, Source
from crossclr.storage.json_files import read_json_object


@dataclass(frozen=True)
class Media:
    """A file, and the seconds of it that show a clip (None: all of it)."""

    kind: str  # image, video or audio
    file: str  # absolute path
    start: float | None = None
    stop: float | None = None
    fields: dict[str, str] = field(default_factory=dict)  # what the captions say about it besides


class MediaFinder:
    """Find the file of a clip: in a folder by name, in a table by key, or where the sample itself names it.

    Args:
        source: the data set, which may know the times of its clips.
        place: a folder whose files are named after the samples (or their groups, which are videos in COOT's layout), or
            a JSON file ``{clip key: file or {"file": ..., "start": ..., "stop": ...}}`` with paths relative to it;
            ``fields`` may have values for filters.
            Default: only what samples name in ``extra`` (``media``, ``start``, ``stop``).

    Raises:
        DataError: the place does not exist, or the table has another form.
    """

    def __init__(self, source: Source, place: str | Path | None = None) -> None:
        self.source = source
        self.roots: set[str] = set()
        self._by_stem: dict[str, Path] = {}
        self._table: dict[str, Any] = {}
        self._base = Path.cwd()
        if place is None:
            return
        place = Path(place).resolve()
        if place.is_dir():
            self.roots.add(str(place))
            for path in sorted(place.rglob("*")):
                if media_kind(path) and path.is_file():
                    self._by_stem.setdefault(path.stem, path)
        elif place.is_file():
            self._table, self._base = read_json_object(place, kind=DataError), place.parent
        else:
            raise DataError(f"{place} does not exist; give a folder of media files, or a JSON table of them")

    def find(self, sample: Sample, clip: int, key: str) -> Media | None:
        """The media of a clip, or None."""
        entry = self._table.get(key)
        if entry is None and sample.clip_count == 1:
            entry = self._table.get(sample.key)
        if entry is None and sample.extra.get("media"):
            entry = {"file": sample.extra["media"], **{n: sample.extra.get(n) for n in ("start", "stop")}}
        if entry is not None:
            return self._from_entry(entry, key)
        names = (key, sample.key, sample.key.rsplit("/", 1)[0], sample.group)
        path = next((self._by_stem[name] for name in names if name in self._by_stem), None)
        if path is None:
            return None
        times = self.source.clip_times(sample.key)
        start, stop = times[clip] if clip < len(times) else (None, None)
        return Media(str(media_kind(path)), str(path), start, stop)

    def _from_entry(self, entry: Any, key: str) -> Media:
        values: Any = {"file": entry} if isinstance(entry, str) else entry
        try:
            path = (self._base / values["file"]).resolve()
            start, stop = (None if values.get(n) in (None, "") else float(values[n]) for n in ("start", "stop"))
            fields = {str(name): str(value) for name, value in values.get("fields", {}).items()}
        except (AttributeError, TypeError, KeyError, ValueError) as error:
            raise DataError(f"media of {key!r}: give a file name, or file, start and stop; got {entry!r}") from error
        kind = media_kind(path)
        if kind is None:
            raise DataError(f"media of {key!r}: {path} is not an image, video or sound")
        self.roots.add(str(path.parent))
        return Media(kind, str(path), start, stop, fields)
