"""JSON files in which no key is lost."""

import json
from pathlib import Path
from typing import Any

from crossclr.features.errors import DataError


def read_json(path: Path) -> Any:
    """A JSON file. A key that occurs twice in one object is an error: a plain parser would silently drop one."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise DataError(f"{path}: key {key!r} occurs twice in one object; remove one of them")
            found[key] = value
        return found

    try:
        with path.open(encoding="utf-8") as file:
            return json.load(file, object_pairs_hook=unique)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as JSON ({error})") from error
