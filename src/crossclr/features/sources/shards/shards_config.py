"""The config of data in shards."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from crossclr.features.sources.config_base import PairedFilesConfig, Paths, file_names


class ShardsConfig(PairedFilesConfig):
    """Data larger than memory: Parquet or HDF5 shards with ``id``, ``a``, ``b`` and optionally ``text``, ``group``."""

    kind: Literal["shards"] = Field(default="shards", description="Files of some thousand samples each.")
    shards: dict[str, Paths] = Field(
        description="Files of each split: names, patterns or folders, e.g. {train: 'train/*.parquet'}.", min_length=1
    )
    window: int = Field(
        default=16,
        ge=1,
        description="Number of blocks (row groups, or 1,000 samples of HDF5) whose samples are mixed in training; "
        "twice as many are kept in memory.",
    )

    def places(self, split: str) -> list[Path]:
        """The patterns of a split as absolute paths.

        Raises:
            DataError: a pattern matches nothing.
        """
        found = []
        for pattern in self.shards[split]:
            tried = self.candidates(pattern)
            named = [place for place in tried if place.exists() or any(place.parent.glob(place.name))]
            if not named:
                raise self.not_found(tried, f"shards.{split}", pattern)
            found.append(named[0].absolute())
        return found

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        return f"Shards. {'; '.join(f'{split}: {file_names(files)}' for split, files in self.shards.items())}."

    def with_absolute_paths(self) -> Self:
        """The same data with absolute paths."""
        shards = {split: [str(path) for path in self.places(split)] for split in self.shards}
        return self.model_copy(update={"shards": shards})
