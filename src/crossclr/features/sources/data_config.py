"""The config of any kind of data, checked before anything is opened."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from crossclr.features.errors import DataError
from crossclr.features.sources.arrays.arrays_config import ArraysConfig
from crossclr.features.sources.coot.coot_config import CootConfig
from crossclr.features.sources.emoji.emoji_config import EmojiConfig
from crossclr.features.sources.shards.shards_config import ShardsConfig
from crossclr.storage.yaml_files import read_yaml

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
