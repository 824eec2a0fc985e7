"""The config of data in plain arrays."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from crossclr.features.sources.config_base import PairedFilesConfig, as_list, file_names


class ArrayConfig(BaseModel):
    """One expert's array. A place is ``file`` or ``file#name``; ``#name`` alone means the file of ``values``."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    values: str = Field(
        description="Array (samples, dim), (samples, rows, dim) or, with lengths, (all rows, dim): file.npy, "
        "file.npz#array or file.parquet#column."
    )
    lengths: str | None = Field(default=None, description="Number of rows of each sample, if it varies.")
    ids: str | None = Field(
        default=None,
        description="Key of each sample of the array; without it, samples are paired by row. In the second modality a "
        "key may occur several times: several sentences for one clip.",
    )


Arrays = Annotated[list[ArrayConfig], BeforeValidator(as_list)]


class ArraysConfig(PairedFilesConfig):
    """Data as plain arrays: .npy, .npz or Parquet."""

    kind: Literal["arrays"] = Field(default="arrays", description="Plain arrays.")
    a: Arrays = Field(
        description="The first modality (video, image, audio); several arrays are joined on the channel axis.",
        min_length=1,
    )
    b: Arrays = Field(
        description="The second modality (usually text); several arrays are joined on the channel axis.", min_length=1
    )
    splits: str | None = Field(
        default=None,
        description="Place of the splits: JSON {split: [keys]} or {key: split} (or file.json#field of each key's "
        "object), or an array or column with one split name per row of a.",
    )
    split_fractions: dict[str, float] | None = Field(
        default=None,
        description="If there are no splits: the share of each, e.g. {train: 0.8, val: 0.2}; groups stay together.",
    )
    texts: str | None = Field(
        default=None, description="Place of the sentences: one per row of b, or JSON key -> list of sentences."
    )
    groups: str | None = Field(
        default=None,
        description="Place of a coarse label of each sample (its parent video): one per row of a, or JSON key -> "
        "label.",
    )
    unpaired: Literal["error", "drop"] = Field(
        default="error", description="What to do with keys that only one modality has."
    )

    def describe(self) -> str:
        """The data in a sentence of Markdown."""
        files = (file_names([expert.values for expert in experts]) for experts in (self.a, self.b))
        return "Arrays. {0}: {2}; {1}: {3}.".format(*self.modalities, *files)

    def with_absolute_paths(self) -> Self:
        """The same data with absolute paths."""
        update: dict[str, Any] = {}
        for side in ("a", "b"):
            update[side] = [
                expert.model_copy(update={name: self.absolute(place, side) for name, place in expert if place})
                for expert in getattr(self, side)
            ]
        for option in ("splits", "texts", "groups"):
            place = getattr(self, option)
            update[option] = None if place is None else self.absolute(place, option)
        return self.model_copy(update=update)
