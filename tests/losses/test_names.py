"""Names and options of losses are known without importing them, and are those of the classes."""

import inspect

import pytest

from crossclr.losses.names import LOSS_PATHS, check_options, loss_class, loss_key, loss_options


def test_the_options_are_those_of_the_constructors():
    for name, path in LOSS_PATHS.items():
        loss = loss_class(name)
        assert loss_options(name) == tuple(inspect.signature(loss).parameters), name
        assert path == f"{loss.__module__}:{loss.__qualname__}"


def test_names_and_options_are_checked():
    assert loss_key("Cross-CLR") == "crossclr"
    check_options("my_package.losses:Mine", ["anything"])
    check_options("dcl", ["prior"])
    with pytest.raises(ValueError, match="there is no loss 'clipp'; did you mean 'clip'"):
        check_options("clipp", [])
    with pytest.raises(ValueError, match="dcl has no option 'margin'; there are: temperature, prior"):
        check_options("dcl", ["margin"])
