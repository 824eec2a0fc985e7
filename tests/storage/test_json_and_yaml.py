"""JSON and YAML lose no key and cannot exhaust memory."""

import os

import pytest

from crossclr.errors import ReadError
from crossclr.storage.reading import DEEPEST, parse_json, read_json, read_json_object
from crossclr.storage.yaml_files import parse_yaml, read_yaml


def test_a_repeated_json_key_is_found_at_any_depth(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"a": {"x": 1},\n "b": [{"x": 1,\n "y": "\\"x\\": {[,", "x": 2}]}')
    with pytest.raises(ReadError, match=r"a\.json: line 3: key 'x' occurs twice"):
        read_json(path)


def test_equal_keys_of_different_objects_are_fine():
    assert parse_json('[{"x": 1}, {"x": {"x": 2}}]', "t") == [{"x": 1}, {"x": {"x": 2}}]


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "x:\n  a: 1\n  a: 2", "- {a: 1, a: 1}", "'a': 1\na: 2"])
def test_a_repeated_yaml_key_is_found(text):
    with pytest.raises(ReadError, match=r"line \d: key 'a' occurs twice \(first in line \d\)"):
        parse_yaml(text, "t.yaml")


def test_merged_yaml_keys_may_be_overridden():
    assert parse_yaml("base: &b {x: 1, y: 2}\nmore:\n  <<: *b\n  x: 3", "t")["more"] == {"x": 3, "y": 2}


@pytest.mark.parametrize("depth", [DEEPEST + 1, 5_000, 200_000])
def test_deep_nesting_is_refused(depth):
    for parse in (parse_json, parse_yaml):
        with pytest.raises(ReadError, match="nested"):
            parse("[" * depth + "]" * depth, "t")


def test_aliases_cannot_grow_without_end():
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    with pytest.raises(ReadError, match="more than 200,000 values"):
        parse_yaml(text, "t")


@pytest.mark.parametrize("content", [b"\xff\xfe{", b"{", b'{"a": 1} x', b"", b"1" * 5000])
def test_what_is_no_json_is_one_line(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ReadError, match=r"a\.json: cannot be read as JSON") as caught:
        read_json(tmp_path / "a.json")
    assert "\n" not in str(caught.value)


def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "absent", tmp_path / "nul\0"):
        for read in (read_json, read_yaml):
            with pytest.raises(ReadError):
                read(path)


@pytest.mark.parametrize(("text", "message"), [("[]", "must hold an object"), ("{}", "no field 'dim'")])
def test_objects_have_their_fields(tmp_path, text, message):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ReadError, match=message):
        read_json_object(tmp_path / "a.json", "dim")
