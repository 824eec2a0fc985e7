"""Read YAML without losing a key, under the same limits as JSON."""

import re
from pathlib import Path
from typing import Any

import yaml

from crossclr.errors import ReadError
from crossclr.storage.reading import check_nesting, read_bounded, reading

MOST_VALUES = 200_000  # aliases can make a small file grow without end
LARGEST = 16 << 20  # bytes


def read_yaml(path: Path, kind: type[ReadError] = ReadError) -> Any:
    """The content of a YAML file."""
    return parse_yaml(read_yaml_text(path, kind), path, kind)


def read_yaml_text(path: Path, kind: type[ReadError] = ReadError) -> str:
    """The text of a YAML file, not parsed."""
    return read_bounded(path, "YAML", LARGEST, kind)


def parse_yaml(text: str, origin: Path | str, kind: type[ReadError] = ReadError) -> Any:
    """The value of a YAML text; ``origin`` is its name in messages."""
    with reading(origin, "YAML", advice="correct it", kind=kind):
        try:
            value = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
        except _RepeatedKeyError as error:
            raise kind(f"{origin}: {error}; remove one of them") from error
    check_nesting(value, origin, MOST_VALUES, kind)
    return value


class _RepeatedKeyError(Exception):
    pass


class _Loader(yaml.SafeLoader):
    """YAML in which 7e-4 is a number and a key occurs once."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        first: dict[Any, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key, line = key_node.value, key_node.start_mark.line + 1
            if isinstance(key, str) and key_node.tag != "tag:yaml.org,2002:merge" and id(node) not in self._merged:
                if key in first:
                    raise _RepeatedKeyError(f"line {line}: key {key!r} occurs twice (first in line {first[key]})")
                first[key] = line
        return super().construct_mapping(node, deep)

    def flatten_mapping(self, node: Any) -> None:
        if any(key.tag == "tag:yaml.org,2002:merge" for key, _ in node.value):
            self._merged.add(id(node))  # its own keys may repeat those that it merges
        super().flatten_mapping(node)

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._merged: set[int] = set()


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
