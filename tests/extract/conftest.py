import pytest

from tests.support.tiny_models import tiny_models


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders that ``save_pretrained`` wrote, by kind."""
    return tiny_models(tmp_path_factory.mktemp("models"))
