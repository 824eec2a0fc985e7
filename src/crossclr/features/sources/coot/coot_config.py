"""The config of data in COOT's layout."""

from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from crossclr.features.errors import DataError
from crossclr.features.sources.config_base import FilesConfig, FromText, ModalityName, Paths, file_names


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


def guess_data_config(folder: str | Path) -> CootConfig:
    """The config of a folder in COOT's layout: ``meta_all.json``, token files with splits, and other feature files.

    Raises:
        DataError: the folder does not have these files.
    """
    folder = Path(folder)
    files = sorted(file for file in folder.iterdir() if file.suffix == ".h5")
    text = [file.name for file in files if (folder / f"{file.stem}_sentence_splits.json").exists()]
    video = [file.name for file in files if file.name not in text]
    if not (folder / "meta_all.json").exists() or not text or not video:
        raise DataError(
            f"{folder}: is not in COOT's layout: meta_all.json, a .h5 file of features, and a .h5 file of token "
            "features with <stem>_sentence_splits.json are needed (`crossclr data text` makes the last two); for other "
            "files write a data config"
        )
    return CootConfig(root=str(folder.resolve()), video=video, text=text)
