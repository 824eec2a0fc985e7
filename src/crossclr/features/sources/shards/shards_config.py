"""The config of data in shards."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crossclr.features.sources.config_base import FilesConfig, FromText, ModalityName, Paths, file_names

RESERVED = ("id", "text", "group", "concept")  # columns that hold no features


def column_of(modality: str) -> str:
    """The usual column of a modality: its name, unless that column has another use.

    Example:
        >>> column_of("video"), column_of("text")
        ('video', 'text_features')
    """
    return f"{modality}_features" if modality in RESERVED else modality


class ShardModality(BaseModel):
    """The column of a modality."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str | None = Field(
        default=None,
        description="Column or data set of its rows; default: its name. A modality named `text` has `text_features`, "
        "because `id`, `text`, `group` and `concept` have other uses.",
    )
    max_frames: int | None = Field(
        default=None, ge=1, description="Maximum number of rows; longer sequences are subsampled. null keeps all."
    )


class ShardsConfig(FilesConfig):
    """Data larger than memory: Parquet or HDF5 shards with ``id``, modalities and ``text``, ``group``, ``concept``."""

    kind: Literal["shards"] = Field(default="shards", description="Files of some thousand samples each.")
    shards: dict[str, Paths] = Field(
        description="Files of each split: names, patterns or folders, e.g. {train: 'train/*.parquet'}.", min_length=1
    )
    modalities: dict[ModalityName, ShardModality] = Field(
        default={"video": ShardModality(max_frames=80), "text": ShardModality()},
        min_length=2,
        description="The column of each modality by its name. A shard may lack some of them.",
    )
    concepts: FromText | None = Field(
        default=None,
        description="`{from: text}`: samples with equal sentences show the same thing; default: the column `concept`, "
        "if there is one.",
    )
    window: int = Field(
        default=16,
        ge=1,
        description="Number of blocks (row groups, or 1,000 samples of HDF5) whose samples are mixed in training; "
        "twice as many are kept in memory.",
    )

    @model_validator(mode="after")
    def _own_columns(self) -> Self:
        for name, column in self.columns.items():
            if column in RESERVED:
                raise ValueError(
                    f"modalities.{name}: the column {column!r} holds no features ({', '.join(RESERVED)} have other "
                    f"uses); set modalities.{name}.column"
                )
            if list(self.columns.values()).count(column) > 1:
                raise ValueError(
                    f"modalities.{name}: another modality has the column {column!r} too; give each its own"
                )
        return self

    @property
    def columns(self) -> dict[str, str]:
        """The column of each modality."""
        return {name: modality.column or column_of(name) for name, modality in self.modalities.items()}

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
