"""Which experts made the features of a run, so that a new file can be turned into rows of the same kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crossclr.experts.extraction.extract import MANIFEST
from crossclr.features import EmojiConfig
from crossclr.search.query_error import QueryError
from crossclr.storage.json_files import read_json
from crossclr.storage.read_error import ReadError
from crossclr.training import RunConfig


@dataclass(frozen=True)
class Recipe:
    """How to build an expert again: its spec and options for `crossclr.experts.load`."""

    spec: str
    options: Mapping[str, Any] = field(default_factory=dict)


def run_experts(config: RunConfig) -> dict[str, Sequence[Recipe]]:
    """The experts of each modality that a file can be encoded in, in the order in which their channels are joined.

    Raises:
        QueryError: it is not known which experts made the features.

    Example:
        >>> from crossclr.training import load_config
        >>> run_experts(load_config("emoji"))
        {'image': [Recipe(spec='appearance', options={})]}
    """
    data = config.data
    if isinstance(data, EmojiConfig):
        shown = {name: content for name, content in data.modalities.items() if content != "text"}
        return {name: [Recipe("appearance")] * len(content.split("+")) for name, content in shown.items()}
    path = Path(getattr(data, "root", "") or ".") / MANIFEST
    if not path.is_file():
        raise QueryError(
            "files cannot be queries here: it is not known which experts made the features of this run "
            f"(`crossclr extract` writes that to {MANIFEST})"
        )
    try:
        found = _recipes(read_json(path), data.modality_names)
    except (ReadError, OSError, LookupError, TypeError, AttributeError) as error:
        raise QueryError(f"files cannot be queries here: {path} does not name the experts ({error})") from error
    if not found:
        raise QueryError(f"files cannot be queries here: {path} names no expert for images or sound")
    return found


def _recipes(manifest: Any, names: Sequence[str]) -> dict[str, Sequence[Recipe]]:
    found: dict[str, Sequence[Recipe]] = {}
    for name, labels in manifest["modalities"].items():
        experts = [manifest["experts"][label] for label in labels]
        if name in names and all(one["needs"]["kind"] != "tokens" for one in experts):
            if unknown := [one["expert"] for one in experts if not one["spec"]]:
                raise LookupError(f"it does not say how to build {unknown[0]!r}")
            found[name] = [Recipe(one["spec"], one["options"]) for one in experts]
    return found
