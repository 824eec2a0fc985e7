"""What the tests of captions share."""

import pytest

from crossclr.captions.meteor import Meteor
from tests.support.data_sets import real_data
from tests.support.programs import program
from tests.support.references import caption_metric_cases


@pytest.fixture(scope="session")
def metric_cases():
    return caption_metric_cases()


@pytest.fixture(scope="session")
def youcook2():
    return real_data("youcook2")


@pytest.fixture(scope="session")
def java():
    return program("java")  # METEOR is a Java program


@pytest.fixture(scope="session")
def running_meteor(java):
    """One program for all tests: it takes seconds to start."""
    with Meteor(java) as running:
        yield running
