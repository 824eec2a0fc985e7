"""Read JSON and YAML without losing a key: repeated keys, deep nesting and oversized files are errors."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from crossclr.storage.read_error import ReadError, check_regular, reading

DEEPEST = 64  # levels; our own files have at most ten
MOST_YAML_VALUES = 200_000  # aliases can make a small file grow without end
LARGEST = {"JSON": 4 << 30, "YAML": 16 << 20}  # bytes

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')


def read_json(path: Path, kind: type[ReadError] = ReadError) -> Any:
    """The content of a JSON file."""
    return parse_json(_text(path, "JSON", kind), path, kind)


def read_json_object(path: Path, *fields: str, kind: type[ReadError] = ReadError) -> dict[str, Any]:
    """The content of a JSON file that holds an object with these fields."""
    found = read_json(path, kind)
    if not isinstance(found, dict):
        raise kind(f"{path}: must hold an object, found {type(found).__name__}; restore the file")
    for field in fields:
        if field not in found:
            raise kind(f"{path}: has no field {field!r}; restore the file")
    return found


def parse_json(text: str | bytes, origin: Path | str, kind: type[ReadError] = ReadError) -> Any:
    """The value of a JSON text; ``origin`` is its name in messages."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            line, key = _repeated_key(text if isinstance(text, str) else text.decode())
            raise kind(f"{origin}: line {line}: key {key!r} occurs twice in one object; remove one of them")
        return found

    with reading(origin, "JSON", advice="correct it", kind=kind):
        found = json.loads(text, object_pairs_hook=unique)
        _check_size(found, None)
        return found


def read_yaml(path: Path, kind: type[ReadError] = ReadError) -> Any:
    """The content of a YAML file."""
    return parse_yaml(read_yaml_text(path, kind), path, kind)


def read_yaml_text(path: Path, kind: type[ReadError] = ReadError) -> str:
    """The text of a YAML file, not parsed."""
    return _text(path, "YAML", kind)


def parse_yaml(text: str, origin: Path | str, kind: type[ReadError] = ReadError) -> Any:
    """The value of a YAML text; ``origin`` is its name in messages."""
    with reading(origin, "YAML", advice="correct it", kind=kind):
        try:
            found = yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
        except _RepeatedKeyError as error:
            raise kind(f"{origin}: {error}; remove one of them") from error
        _check_size(found, MOST_YAML_VALUES)
        return found


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


def _text(path: Path, form: str, kind: type[ReadError]) -> str:
    size = check_regular(path, kind)
    if size > LARGEST[form]:
        raise kind(f"{path}: has {size:,} bytes; a {form} file may have at most {LARGEST[form]:,}")
    with reading(path, form, kind=kind):
        return path.read_text(encoding="utf-8-sig")


def _check_size(value: Any, most: int | None) -> None:
    """Refuse values that are nested too deeply; in YAML also too many (aliases), numbers beyond 64 bits and NUL."""
    level, depth, count = [value], 0, 0
    while level:
        depth, count = depth + 1, count + len(level)
        if depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        if most is not None and count > most:
            raise ValueError(f"it has more than {most:,} values")
        if most is not None and any(isinstance(inner, int) and inner.bit_length() > 64 for inner in level):
            raise ValueError("it has a whole number of more than 64 bits")
        if most is not None and any(isinstance(inner, str) and "\0" in inner for inner in level):
            raise ValueError("it has a text with a NUL character")
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _inner(outer)]


def _inner(value: dict[Any, Any] | list[Any]) -> Iterator[Any]:
    return iter(value.values() if isinstance(value, dict) else value)


def _repeated_key(text: str) -> tuple[int, str]:
    """Line and name of the first key that occurs twice in its object, in a text that is valid JSON."""
    keys: list[set[str] | None] = []  # of each open object; None for a list
    key_comes = False
    for token in _TOKEN.finditer(text):
        found = token.group()
        if found in "{[":
            keys.append(set() if found == "{" else None)
            key_comes = found == "{"
        elif found in "}]":
            keys.pop()
        elif found == ",":
            key_comes = keys[-1] is not None
        elif key_comes:
            here, name, key_comes = keys[-1] or set(), json.loads(found), False
            if name in here:
                return text.count("\n", 0, token.start()) + 1, name
            here.add(name)
            keys[-1] = here
    return 0, "?"
