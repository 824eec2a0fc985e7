"""The configs of data in files: COOT's layout, arrays, shards; and from the config of any kind to its data."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from crossclr.data.config import FilesConfig, FromText, ModalityName, Paths, StrictConfig, file_names
from crossclr.data.emoji_set import EmojiConfig
from crossclr.errors import DataError
from crossclr.storage.yaml_files import read_yaml

if TYPE_CHECKING:
    from crossclr.data.dataset import Dataset

RESERVED = ("id", "text", "group", "concept")  # columns that hold no features


class CootConfig(FilesConfig):
    """Data in COOT's layout: a meta JSON, features of whole videos, token features of whole paragraphs."""

    kind: Literal["coot"] = Field(default="coot", description="COOT's layout.")
    meta: str = Field(default="meta_all.json", description="JSON file: key -> data_key, duration_sec, split, segments.")
    video: Paths = Field(
        description="Features of the first modality: an HDF5 file or a folder of npz files; several are joined on the "
        "channel axis.",
        min_length=1,
    )
    text: Paths = Field(
        description="Features of the second modality: an HDF5 file of token rows with <stem>_sentence_splits.json next "
        "to it; several are joined on the channel axis.",
        min_length=1,
    )
    join: Literal["resampled", "separate"] = Field(
        default="resampled",
        description="How several files of `video` become one: `resampled` to the rows of the first, with zeros for an "
        "absent one; "
        "`separate`: each keeps its own rows, for an encoder of kind experts.",
    )
    also: dict[ModalityName, Paths] = Field(
        default={},
        description="Features of more modalities by name, cut by times, such as {audio: sound.h5}. A video may lack "
        "them.",
    )
    names: tuple[ModalityName, ModalityName] = Field(
        default=("video", "text"),
        description="Names of the modalities of `video` and `text`, used in results, tables and pages. Name sentences "
        "`text`: search then accepts typed queries for that modality.",
    )
    cut_text_by: Literal["sentences", "times"] = Field(
        default="sentences",
        description="How the second modality is cut: by its sentence splits, or by times (for a second video or audio; "
        "its default name is then `audio`).",
    )
    two_level: bool = Field(
        default=True,
        description="Whether a sample is a whole video with its clips; false makes each clip a sample of its own.",
    )
    max_frames: int | None = Field(
        default=80,
        ge=1,
        description="Maximum number of rows; longer videos and clips are subsampled, each on its own. null keeps all.",
    )
    add_stop_frame: int = Field(
        default=2, ge=0, description="Rows added after the end of each clip (COOT: YouCook2 2, ActivityNet 1)."
    )
    expand_segments: int = Field(
        default=0,
        ge=0,
        description="Minimum number of rows; shorter clips grow on both sides (COOT: YouCook2 0, ActivityNet 10).",
    )
    frames_noise: float = Field(
        default=0.0,
        ge=0,
        description="Standard deviation of the noise on video rows, truncated at two deviations; training only.",
    )
    concepts: str | FromText | None = Field(
        default=None,
        description="Field of each segment that says what it shows, or `{from: text}`: segments with equal sentences. "
        "Clips of one concept are never negatives of each other, and right answers in metrics.",
    )
    max_datapoints: int = Field(
        default=-1, ge=-1, description="Use only the first N keys of the meta file; -1 uses all."
    )

    @model_validator(mode="before")
    @classmethod
    def _name_audio(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("cut_text_by") == "times" and "names" not in values:
            return {**values, "names": ("video", "audio")}
        return values

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.modalities)) < 2 + len(self.also):
            raise ValueError(f"modalities need different names, got {', '.join(self.modalities)}")
        return self

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the modalities."""
        return (*self.names, *self.also)

    @property
    def files(self) -> dict[str, list[str]]:
        """The feature files of each modality, by its name."""
        return {**dict(zip(self.names, (self.video, self.text), strict=True)), **self.also}

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        files = "; ".join(f"{name}: {file_names(paths)}" for name, paths in self.files.items())
        return f"Files in COOT's layout. {files}; meta: {file_names([self.meta])}."

    def row_limits(self) -> dict[str, int | None]:
        """By modality, the largest number of rows of a sequence."""
        limits: dict[str, int | None] = dict.fromkeys(self.modalities, self.max_frames)
        return limits if self.cut_text_by == "times" else {**limits, self.names[1]: None}

    def without_row_limits(self) -> Self:
        """The same data with all rows of every sequence."""
        return self.model_copy(update={"max_frames": None})

    def with_absolute_paths(self) -> Self:
        """The same data with absolute paths."""
        update: dict[str, Any] = {"meta": self.absolute(self.meta, "meta")}
        for option in ("video", "text"):
            update[option] = [self.absolute(path, option) for path in getattr(self, option)]
        update["also"] = {n: [self.absolute(path, f"also.{n}") for path in paths] for n, paths in self.also.items()}
        return self.model_copy(update=update)


class ArrayConfig(StrictConfig):
    """One expert's array. A place is ``file`` or ``file#name``; ``#name`` alone means the file of ``values``."""

    values: str = Field(
        description="Array (samples, dim), (samples, rows, dim) or, with lengths, (all rows, dim): file.npy, "
        "file.npz#array or file.parquet#column. A row of NaN marks a sample that lacks the modality."
    )
    lengths: str | None = Field(default=None, description="Number of rows of each sample, if it varies.")
    ids: str | None = Field(
        default=None,
        description="Key of each sample of the array; without it, samples are matched by row. Except in the "
        "first modality, a key may occur several times: several sentences for one clip.",
    )


class ArrayModality(ArrayConfig):
    """The array of a modality, or several that are joined."""

    also: list[ArrayConfig] = Field(default=[], description="More arrays, joined on the channel axis.")
    join: Literal["resampled", "separate"] = Field(
        default="resampled",
        description="How several arrays become one: `resampled` to the rows of the first, with zeros for an absent "
        "one; "
        "`separate`: each keeps its own rows, for an encoder of kind experts.",
    )
    max_frames: int | None = Field(
        default=80, ge=1, description="Maximum number of rows; longer sequences are subsampled. null keeps all."
    )
    texts: str | None = Field(
        default=None, description="Place of the sentences: one per row, or JSON key -> list of sentences."
    )

    @property
    def arrays(self) -> list[ArrayConfig]:
        """All its arrays."""
        return [self, *self.also]


def _joined(value: Any) -> Any:
    """A list of arrays as the first with the others."""
    return {**value[0], "also": value[1:]} if isinstance(value, list) and value else value


class ArraysConfig(FilesConfig):
    """Data as plain arrays: .npy, .npz or Parquet."""

    kind: Literal["arrays"] = Field(default="arrays", description="Plain arrays.")
    modalities: dict[ModalityName, Annotated[ArrayModality, BeforeValidator(_joined)]] = Field(
        description="The array of each modality by its name, such as {video: {values: v.npy}, text: {values: t.npy}}. "
        "A list of arrays is joined on the channel axis. Samples may lack modalities.",
        min_length=2,
    )
    splits: str | None = Field(
        default=None,
        description="Place of the splits: JSON {split: [keys]} or {key: split} (or file.json#field of each key's "
        "object), or an array or column with one split name per row of the first modality.",
    )
    split_fractions: dict[str, float] | None = Field(
        default=None,
        description="If there are no splits: the share of each, e.g. {train: 0.8, val: 0.2}; groups stay together.",
    )
    groups: str | None = Field(
        default=None,
        description="Place of a coarse label of each sample (its parent video): one per row of the first modality, or "
        "JSON key -> label.",
    )
    concepts: str | FromText | None = Field(
        default=None,
        description="Place of a label of what each sample shows, as for groups, or `{from: text}`: samples with equal "
        "sentences. Samples of one concept are never negatives of each other, and right answers in metrics.",
    )
    unpaired: Literal["error", "drop", "keep"] = Field(
        default="error", description="What to do with keys that only one modality has."
    )

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        files = (
            f"{name}: {file_names([array.values for array in modality.arrays])}"
            for name, modality in self.modalities.items()
        )
        return f"Arrays. {'; '.join(files)}."

    def with_absolute_paths(self) -> Self:
        """The same data with absolute paths."""
        modalities = {}
        for name, modality in self.modalities.items():
            changed: dict[str, Any] = {
                "also": [array.model_copy(update=self._absolute(array, name)) for array in modality.also]
            }
            modalities[name] = modality.model_copy(update=self._absolute(modality, name) | changed)
        update: dict[str, Any] = {"modalities": modalities}
        for option in ("splits", "groups", "concepts"):
            place = getattr(self, option)
            update[option] = self.absolute(place, option) if isinstance(place, str) else place
        return self.model_copy(update=update)

    def _absolute(self, array: ArrayConfig, name: str) -> dict[str, str]:
        """The places of an array as absolute paths."""
        places = {field: getattr(array, field, None) for field in ("values", "lengths", "ids", "texts")}
        return {field: self.absolute(place, f"modalities.{name}.{field}") for field, place in places.items() if place}


def column_of(modality: str) -> str:
    """The usual column of a modality: its name, unless that column has another use.

    Example:
        >>> column_of("video"), column_of("text")
        ('video', 'text_features')
    """
    return f"{modality}_features" if modality in RESERVED else modality


class ShardModality(StrictConfig):
    """The column of a modality."""

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


AnyData = CootConfig | ArraysConfig | ShardsConfig | EmojiConfig
DataConfig = Annotated[AnyData, Field(discriminator="kind")]


def parse_data_config(values: Any, where: str = "data config") -> AnyData:
    """A data config from plain values.

    Raises:
        DataError: a field is missing, unknown or wrong; the message names it.

    Example:
        >>> parse_data_config({"kind": "coot", "video": "v.h5", "text": "t.h5"}).modalities
        ('video', 'text')
    """
    try:
        config: AnyData = TypeAdapter(DataConfig).validate_python(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(str(part) for part in problem['loc']) or 'data'}: {problem['msg']}"
            for problem in error.errors()
        )
        raise DataError(f"{where}: {problems}") from error
    return config


def load_data_config(path: str | Path) -> AnyData:
    """A data config from a YAML file: the file itself, or its section ``data``."""
    path = Path(path)
    values = read_yaml(path, DataError)
    if not isinstance(values, dict):
        raise DataError(f"{path}: a YAML mapping with a field 'kind' or a section 'data' is needed")
    return parse_data_config(values.get("data", values), str(path))


BUILDERS = {
    "coot": "crossclr.data.coot:open_coot",
    "arrays": "crossclr.data.arrays:open_arrays",
    "shards": "crossclr.data.shards:open_shards",
    "emoji": "crossclr.data.emoji_set:open_emoji",
}


def open_data(config: AnyData) -> Dataset:
    """Open the data that a config describes; features stay on disk.

    Raises:
        DataError: a file is missing or unreadable, or the files do not fit each other.

    Example:
        >>> import tempfile, numpy as np
        >>> folder = tempfile.mkdtemp()
        >>> np.save(f"{folder}/a.npy", np.ones((4, 3))); np.save(f"{folder}/b.npy", np.ones((4, 2)))
        >>> config = ArraysConfig(root=folder, modalities={"video": {"values": "a.npy"}, "text": {"values": "b.npy"}})
        >>> open_data(config).dims
        {'video': 3, 'text': 2}
    """
    module, _, name = BUILDERS[config.kind].partition(":")  # imported here: reading a config needs no reader of files
    data: Dataset = getattr(importlib.import_module(module), name)(config)
    return data
