import pytest

from crossclr import api


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run with a closed form and a correction of hubs, in seconds."""
    return api.train("emoji", ["recipe=closed-form"], out=tmp_path_factory.mktemp("emoji") / "run")
