"""The config of data in plain arrays."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crossclr.features.sources.config_base import FilesConfig, FromText, ModalityName, file_names


class ArrayConfig(BaseModel):
    """One expert's array. A place is ``file`` or ``file#name``; ``#name`` alone means the file of ``values``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

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
