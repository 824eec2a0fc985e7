"""Finished rows of one recording and one expert, each in a file of its own until everything is joined.

A file appears under its name only when it is complete, so what can be read is finished. Each carries a fingerprint of
what it was made from; a changed recording or another expert makes it worthless.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from crossclr.experts.contract import FloatRows, Origin
from crossclr.storage import new_file

FOLDER = ".parts"


@dataclass(frozen=True)
class Shard:
    """The rows of a recording (or paragraph) from one expert.

    Args:
        rows: (rows, dim).
        about: what is written beside them: who made them, their times, the length of the recording.
        counts: tokens of each sentence, for a paragraph.
    """

    rows: FloatRows
    about: dict[str, Any]
    counts: list[int] = field(default_factory=list)


class Shards:
    """The folder of finished parts.

    Args:
        out: the output folder, which has the parts in a folder of its own.
    """

    def __init__(self, out: Path) -> None:
        self.folder = out / FOLDER

    def write(self, expert: str, key: str, shard: Shard) -> None:
        """Store a finished part, at once or not at all."""
        path = self._path(expert, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = np.frombuffer(json.dumps({**shard.about, "key": key}).encode(), dtype=np.uint8)
        with new_file(path) as temporary, temporary.open("wb") as file:
            np.savez(file, rows=shard.rows, counts=np.array(shard.counts, dtype=np.int64), about=about)

    def about(self, expert: str, key: str) -> dict[str, Any] | None:
        """What stands beside the rows of a part; None where there is no whole part."""
        found = self._load(expert, key, ("about",))
        return None if found is None else found[0]

    def read(self, expert: str, key: str) -> Shard:
        """A part that is known to be there."""
        found = self._load(expert, key, ("about", "rows", "counts"))
        if found is None:
            raise FileNotFoundError(2, "No such part", str(self._path(expert, key)))
        about, rows, counts = found
        return Shard(rows, about, counts.tolist())

    def remove(self) -> None:
        """Throw all parts away: they stand in the feature files now."""
        import shutil

        shutil.rmtree(self.folder, ignore_errors=True)

    def _load(self, expert: str, key: str, names: tuple[str, ...]) -> list[Any] | None:
        path = self._path(expert, key)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as content:
                about = json.loads(content["about"].tobytes())
                return None if about.get("key") != key else [about, *(content[name] for name in names[1:])]
        except Exception:  # zipfile and numpy raise many kinds for a damaged file, which is then made again
            return None

    def _path(self, expert: str, key: str) -> Path:
        return self.folder / expert / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.npz"


def fingerprint(origin: Origin, stored: str, **made_from: Any) -> str:
    """A digest of everything that rows depend on.

    Args:
        origin: the expert.
        stored: the number type of the rows.
        made_from: what they were made from: size and time of the recording, or sentences.
    """
    content = json.dumps([asdict(origin), stored, made_from], sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(content.encode(), digest_size=12).hexdigest()


def file_state(path: Path) -> Mapping[str, int]:
    """Size and time of change of a file."""
    found = path.stat()
    return {"size": found.st_size, "changed": found.st_mtime_ns}
