"""Damaged files are reported as such, and mistakes of this package are not."""

import pytest
import yaml

from crossclr.errors import ReadError
from crossclr.storage import reading as module
from crossclr.storage.reading import check_regular, parse_json, reading
from crossclr.storage.yaml_files import parse_yaml


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyError("x"), OSError("x"), RuntimeError("x"), RecursionError("x")]
)
def test_what_a_library_raises_is_about_the_file(error):
    with (
        pytest.raises(ReadError, match=r"a\.h5: cannot be read as HDF5 .*; copy or write it again"),
        reading("a.h5", "HDF5"),
    ):
        raise error


def test_an_attribute_error_of_a_library_is_about_the_file():
    with pytest.raises(AttributeError):
        yaml.safe_load("!!timestamp x")
    with pytest.raises(ReadError, match="t: cannot be read as YAML"):
        parse_yaml("!!timestamp x", "t")


def test_a_mistake_in_this_package_is_not_a_damaged_file():
    with pytest.raises(AttributeError), reading("a.json", "JSON"):
        check_regular(None)  # has no attribute 'stat'


def test_a_mistake_after_parsing_is_not_a_damaged_file(monkeypatch):
    monkeypatch.setattr(module, "check_nesting", lambda *_, **__: {}["mistake"])
    with pytest.raises(KeyError):
        parse_json("{}", "a.json")
