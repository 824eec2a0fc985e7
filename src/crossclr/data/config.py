"""What the config of every kind of data can do, and the options that all data in files shares."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from crossclr.errors import DataError

ROOT_VARIABLE = "CROSSCLR_DATA"


def as_list(value: Any) -> Any:
    """One value as a list of one, for options that take one or several."""
    return value if isinstance(value, list | tuple) else [value]


Paths = Annotated[list[str], BeforeValidator(as_list)]
FromText = dict[Literal["from"], Literal["text"]]  # concepts that are equal sentences
ModalityName = Annotated[str, StringConstraints(pattern=r"^[\w -]+$")]
"""A name without ``/``, ``.``, ``+`` and ``->``, which have a meaning in results."""


class StrictConfig(BaseModel):
    """A section of a config: unknown fields and infinite values are errors, and fields cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _no_truth_as_number(cls, values: Any) -> Any:
        for name, field in cls.model_fields.items() if isinstance(values, Mapping) else ():
            types, value = {field.annotation, *get_args(field.annotation)}, values.get(name)
            if isinstance(value, bool) and types & {int, float} and bool not in types:
                raise ValueError(f"{name} needs a number, got {str(value).lower()}")
        return values


class DataConfigBase(StrictConfig, ABC):
    """The config of one kind of data. It also has ``kind`` and ``modalities``, whose keys are their names."""

    @property
    def modality_names(self) -> tuple[str, ...]:
        """Names of the modalities, in the order of the data."""
        return tuple(getattr(self, "modalities", ()))

    @abstractmethod
    def describe(self) -> str:
        """The data in a sentence or two of Markdown, for a model card; file names without folders."""

    def licence(self) -> str:
        """The terms of the data, for a model card; empty if they are not known."""
        return ""

    def caveats(self) -> tuple[str, ...]:
        """Limits of models trained on this data, for a model card."""
        return ()

    def row_limits(self) -> dict[str, int | None]:
        """By modality, the largest number of rows of a sequence; None is no limit."""
        return {}

    def without_row_limits(self) -> Self:
        """The same data with all rows of every sequence."""
        return self

    def with_absolute_paths(self) -> Self:
        """The same data with absolute paths, so that it can be opened from any folder."""
        return self

    def with_root(self, root: Path) -> Self:
        """The same data with relative paths that start from ``root``."""
        raise DataError("a root folder is for data on disk; the built-in set has none")


class FilesConfig(DataConfigBase):
    """Data on disk."""

    root: str | None = Field(
        default=None,
        description="Folder that relative paths start from. A relative root is searched for in the folder named by the "
        f"environment variable {ROOT_VARIABLE}, then in the working directory; so are paths if root is not set.",
    )
    split_parts: dict[str, dict[str, float]] = Field(
        default={},
        description="Splits to cut into parts by share, e.g. {train: {fit: 0.9, dev: 0.1}}, to hold out some training "
        "samples. All clips of a video (or samples of a group) go to the same part.",
    )
    split_names: dict[str, list[str]] = Field(
        default={}, description="Additional names for unions of splits, e.g. {all: [train, val]}."
    )

    def row_limits(self) -> dict[str, int | None]:
        """By modality, the largest number of rows of a sequence: its option ``max_frames``."""
        return {name: one.max_frames for name, one in self._options().items()}

    def without_row_limits(self) -> Self:
        """The same data with all rows of every sequence."""
        free = {name: one.model_copy(update={"max_frames": None}) for name, one in self._options().items()}
        return self.model_copy(update={"modalities": free})

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = getattr(self, "modalities", {})
        return options

    def with_root(self, root: Path) -> Self:
        """The same data with relative paths that start from ``root``."""
        return self.model_copy(update={"root": str(root)})

    def bases(self) -> list[Path]:
        """Folders in which relative paths are searched for, in order."""
        root = Path(self.root or "").expanduser()
        if root.is_absolute():
            return [root]
        named = os.environ.get(ROOT_VARIABLE)
        return [Path(base) / root for base in ([named] if named else []) + [Path.cwd()]]

    def candidates(self, path: str) -> list[Path]:
        """The places where a path of the config may be."""
        plain = Path(path).expanduser()
        return [plain] if plain.is_absolute() else [base / plain for base in self.bases()]

    def resolve(self, path: str, option: str) -> Path:
        """Where a path of the config is; the error names the places and the options that change them."""
        places = self.candidates(path)
        for place in places:
            if place.exists():
                return place
        hint = "; `crossclr extract --text-only` computes text features" if "text" in option.split(".") else ""
        raise self.not_found(places, option, path, hint)

    def not_found(self, places: list[Path], option: str, path: str, hint: str = "") -> DataError:
        """The error for a path that does not exist."""
        return DataError(
            f"cannot find {' and '.join(map(str, places))} (data.{option} is {path!r}); correct data.{option}, or set "
            f"data.root or the environment variable {ROOT_VARIABLE} to the folder that contains it{hint}"
        )

    def absolute(self, place: str, option: str) -> str:
        """A place, ``file`` or ``file#name``, with the absolute path of its file."""
        file, mark, name = place.partition("#")
        return f"{self.resolve(file, option).absolute()}{mark}{name}" if file else place


def file_names(places: list[str]) -> str:
    """The names of files as Markdown code, without folders: a model card is passed on, folders are private.

    Example:
        >>> file_names(["/home/me/a.npz#feat", "b.h5"])
        '`a.npz`, `b.h5`'
    """
    return ", ".join(f"`{Path(place.partition('#')[0]).name}`" for place in places)
