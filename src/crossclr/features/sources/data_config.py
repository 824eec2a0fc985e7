"""What a data config says, checked before anything is opened."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from crossclr.features.errors import DataError

ROOT_VARIABLE = "CROSSCLR_DATA"


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


class _FilesConfig(BaseModel):
    """What every kind of data on disk has."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    root: str | None = Field(
        default=None,
        description="Folder that relative paths start from. A relative root is looked for in the folder named by the "
        f"environment variable {ROOT_VARIABLE} and then in the working directory; so are paths where root is unset.",
    )
    split_parts: dict[str, dict[str, float]] = Field(
        default={},
        description="Splits cut into parts by share, e.g. {train: {fit: 0.9, dev: 0.1}}, where some training samples "
        "are to be held out; all clips of a video (or samples of a group) fall into one part.",
    )
    split_names: dict[str, list[str]] = Field(
        default={},
        description="Further names of splits, each for the union of the splits listed, e.g. {all: [train, val]}.",
    )

    def bases(self) -> list[Path]:
        """Folders in which relative paths are looked for, in order."""
        root = Path(self.root or "").expanduser()
        if root.is_absolute():
            return [root]
        named = os.environ.get(ROOT_VARIABLE)
        return [Path(base) / root for base in ([named] if named else []) + [Path.cwd()]]

    def resolve(self, path: str, option: str) -> Path:
        """Where a file of the config lies.

        Args:
            path: the path as the config has it.
            option: the config field, for the message.

        Raises:
            DataError: it is nowhere; the message names the places and the options that change them.
        """
        plain = Path(path).expanduser()
        places = [plain] if plain.is_absolute() else [base / plain for base in self.bases()]
        for place in places:
            if place.exists():
                return place
        looked = " and ".join(str(place) for place in places)
        hint = "; `crossclr data text` computes text features" if option == "text" or option.startswith("b.") else ""
        raise DataError(
            f"cannot find {looked} (data.{option} is {path!r}); correct data.{option}, or set data.root or the "
            f"environment variable {ROOT_VARIABLE} to the folder that holds it{hint}"
        )


class CootConfig(_FilesConfig):
    """Data in COOT's layout: a meta JSON, features of whole videos, token features of whole paragraphs."""

    kind: Literal["coot"] = Field(default="coot", description="COOT's layout.")
    meta: str = Field(default="meta_all.json", description="JSON file: key -> data_key, duration_sec, split, segments.")
    video: Annotated[list[str], BeforeValidator(_listed)] = Field(
        description="Features of modality A: an HDF5 file or a folder of npz files; several are joined on the channel "
        "axis.",
        min_length=1,
    )
    text: Annotated[list[str], BeforeValidator(_listed)] = Field(
        description="Features of modality B: an HDF5 file of token rows with <stem>_sentence_splits.json beside it; "
        "several are joined on the channel axis.",
        min_length=1,
    )
    cut_text_by: Literal["sentences", "times"] = Field(
        default="sentences",
        description="How modality B is cut: by its sentence splits, or, for a second video or audio, by times.",
    )
    two_level: bool = Field(
        default=True,
        description="Whether a sample is a whole video with its clips; false makes each clip a sample of its own.",
    )
    max_frames: int | None = Field(
        default=80,
        ge=1,
        description="Longer videos and clips are sampled down to so many rows, each on its own; null keeps all.",
    )
    add_stop_frame: int = Field(
        default=2, ge=0, description="Rows added behind the end of each clip (COOT: YouCook2 2, ActivityNet 1)."
    )
    expand_segments: int = Field(
        default=0,
        ge=0,
        description="Clips of fewer rows grow to so many on both sides (COOT: YouCook2 0, ActivityNet 10).",
    )
    frames_noise: float = Field(
        default=0.0,
        ge=0,
        description="Standard deviation of the noise on video rows, truncated at two of it; in training only.",
    )
    max_datapoints: int = Field(
        default=-1, ge=-1, description="Use only the first so many keys of the meta file; -1 uses all."
    )


class ArrayConfig(BaseModel):
    """One expert's array. A place is ``file`` or ``file#name``; ``#name`` alone means the file of ``values``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    values: str = Field(
        description="Array (samples, dim), (samples, rows, dim) or, with lengths, (all rows, dim): file.npy, "
        "file.npz#array or file.parquet#column."
    )
    lengths: str | None = Field(default=None, description="Rows of each sample, where their number differs.")
    ids: str | None = Field(
        default=None,
        description="Key of each sample of the array; left out, samples are paired by row. In modality B a key may "
        "stand several times: several sentences for one clip.",
    )


class ArraysConfig(_FilesConfig):
    """Data as plain arrays: .npy, .npz or Parquet."""

    kind: Literal["arrays"] = Field(default="arrays", description="Plain arrays.")
    a: Annotated[list[ArrayConfig], BeforeValidator(_listed)] = Field(
        description="Modality A; several arrays are joined on the channel axis.", min_length=1
    )
    b: Annotated[list[ArrayConfig], BeforeValidator(_listed)] = Field(
        description="Modality B; several arrays are joined on the channel axis.", min_length=1
    )
    splits: str | None = Field(
        default=None,
        description="Place of the splits: JSON {split: [keys]} or {key: split} (or file.json#field of each key's "
        "object), or an array or column with one split name for each row of A.",
    )
    split_fractions: dict[str, float] | None = Field(
        default=None,
        description="Where there are no splits: the share of each, e.g. {train: 0.8, val: 0.2}; groups stay together.",
    )
    texts: str | None = Field(
        default=None, description="Place of the sentences: one for each row of B, or JSON key -> list of sentences."
    )
    groups: str | None = Field(
        default=None,
        description="Place of a coarse label of each sample (its parent video): by row of A, or JSON key -> label.",
    )
    max_frames: int | None = Field(
        default=80, ge=1, description="Longer sequences of A are sampled down to so many rows; null keeps all."
    )
    max_frames_b: int | None = Field(default=None, ge=1, description="The same for modality B; null keeps all.")
    unpaired: Literal["error", "drop"] = Field(
        default="error", description="What to do with keys that only one modality has."
    )


class ShardsConfig(_FilesConfig):
    """Data larger than memory: Parquet or HDF5 shards with ``id``, ``a``, ``b``, and perhaps ``text`` and ``group``."""

    kind: Literal["shards"] = Field(default="shards", description="Files of some thousand samples each.")
    shards: dict[str, Annotated[list[str], BeforeValidator(_listed)]] = Field(
        description="Files of each split: names, patterns or folders, e.g. {train: 'train/*.parquet'}.", min_length=1
    )
    max_frames: int | None = Field(
        default=80, ge=1, description="Longer sequences of A are sampled down to so many rows; null keeps all."
    )
    max_frames_b: int | None = Field(default=None, ge=1, description="The same for modality B; null keeps all.")
    window: int = Field(
        default=16,
        ge=1,
        description="Blocks (row groups, or 1,000 samples of HDF5) whose samples are mixed in training; twice as many "
        "are held in memory.",
    )

    def places(self, split: str) -> list[Path]:
        """The patterns of a split, in full, where they name something."""
        found = []
        for pattern in self.shards[split]:
            plain = Path(pattern).expanduser()
            tried = [plain] if plain.is_absolute() else [base / plain for base in self.bases()]
            named = [place for place in tried if place.exists() or any(place.parent.glob(place.name))]
            if not named:
                looked = " and ".join(str(place) for place in tried)
                raise DataError(
                    f"cannot find shards at {looked} (data.shards.{split} is {pattern!r}); correct it, or set "
                    f"data.root or the environment variable {ROOT_VARIABLE} to the folder that holds them"
                )
            found.append(named[0].absolute())
        return found


_EMOJI_MODALITY = r"^(text|(noto|fluent|twemoji)(\+(noto|fluent|twemoji))*)$"


class EmojiConfig(BaseModel):
    """The built-in set: emoji drawn by three vendors, with names and tags."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["emoji"] = Field(default="emoji", description="The built-in set.")
    a: str = Field(
        default="noto",
        pattern=_EMOJI_MODALITY,
        description="Modality A: noto, fluent, twemoji or text; drawings joined with + are joined on the channel axis.",
    )
    b: str = Field(default="text", pattern=_EMOJI_MODALITY, description="Modality B, in the same way.")
    two_level: bool = Field(default=False, description="Whether the emoji of a Unicode subgroup form a video of clips.")
    vary: bool = Field(
        default=False,
        description="In training, take each drawing from any of the three vendors, and every other text as a colour "
        "and a tag, such as `red fruit`; needs crossclr[experts].",
    )


AnyData = CootConfig | ArraysConfig | ShardsConfig | EmojiConfig
DataConfig = Annotated[AnyData, Field(discriminator="kind")]


def parse_data_config(values: Any, where: str = "data config") -> AnyData:
    """A data config from plain values.

    Raises:
        DataError: a field is missing, unknown or wrong; the message names it.

    Example:
        >>> parse_data_config({"kind": "coot", "video": "v.h5", "text": "t.h5"}).max_frames
        80
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


def load_data_config(path: str | Path) -> AnyData:
    """A data config from a YAML file: the file itself, or what it has under ``data``."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as YAML ({error})") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: a YAML mapping with a field 'kind' or a section 'data' is needed")
    return parse_data_config(values.get("data", values), str(path))
