"""`crossclr search` without PyTorch: onnxruntime and a running service give the results of the model."""

import contextlib
import json
import subprocess
import sys
import threading

import pytest

from crossclr.search import Searcher, update_index
from crossclr.search.index import INDEX
from crossclr.search.onnx_queries import open_onnx_queries
from crossclr.search.query import Query, Weights
from crossclr.search.quick_search import ANNOUNCED, announce, ask_running_service, open_without_torch
from crossclr.search.service.server import make_server
from tests.support.commands import ENVIRONMENT

pytest.importorskip("onnxruntime", reason="needs crossclr[experts]")


def named(hits):
    return {hit.item.name: pytest.approx(hit.score, abs=1e-3) for hit in hits}


def plain(hits):
    return {hit.item.name: hit.score for hit in hits}


def test_onnx_finds_what_the_model_finds(indexed, searcher):
    light = open_without_torch(indexed.path, Query("red fruit"))
    for text in ("red fruit", "a sad cat"):
        assert plain(light.search(text=text)) == named(searcher.search(text=text))
    assert light.queries.encode(["red fruit"]) == pytest.approx(searcher.queries.encode(["red fruit"]), abs=1e-4)
    name = searcher.search(text="red fruit")[0].item.name
    assert plain(open_without_torch(indexed.path, Query(like=name)).search(like=name)) == named(
        searcher.search(like=name)
    )


def test_pytorch_is_needed_without_the_encoder_for_long_texts_and_other_weights(run_copy):
    assert open_without_torch(run_copy.path, Query("word " * 200)) is None
    weights = run_copy.path / "best" / "model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    assert open_without_torch(run_copy.path, Query("red fruit")) is None
    weights.write_bytes(weights.read_bytes()[:-1])
    assert open_without_torch(run_copy.path, Query("red fruit")) is not None
    assert open_onnx_queries(run_copy.path, "red fruit") is None  # there is no encoder in this folder


def test_an_updated_index_keeps_the_encoder(run_copy, searcher):
    update_index(run_copy, delete=[searcher.search(text="red fruit")[0].item.name])
    assert open_without_torch(run_copy.path, Query("red fruit")) is not None


HEAVY = ("torch", "transformers", "scipy", "faiss")
COMMAND = (
    "import sys; from crossclr.cli import main\n"
    "try:\n    main()\n"
    f"finally:\n    sys.stderr.write(str([name for name in {HEAVY} if name in sys.modules]))\n"
)


def searched(path, *words):
    command = [sys.executable, "-c", COMMAND, "search", str(path), *words, "--json"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {hit["id"]: hit["score"] for hit in json.loads(done.stdout)}, done.stderr


@contextlib.contextmanager
def service(run):
    """A service for a run, as `serve_run` starts it."""
    searcher, ready = Searcher.open(run), threading.Event()
    server, listening = make_server(searcher, port=0, ready=lambda address: ready.set(), instance="this one")
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    port = listening.getsockname()[1]
    try:
        assert ready.wait(120)
        with announce(searcher.folder.parent, "this one", "127.0.0.1", port, searcher.meta["weights"]):
            yield port
    finally:
        server.should_exit = True
        thread.join()


def test_the_command_loads_no_pytorch_and_asks_a_running_service(run_copy, searcher):
    expected = named(searcher.search(text="red fruit"))
    found, loaded = searched(run_copy.path, "red fruit")
    assert (found, loaded) == (expected, "['faiss']")
    with service(run_copy):
        found, loaded = searched(run_copy.path, "red fruit")
        weighted, _ = searched(run_copy.path, "at night", "--like", "image/1F60B@noto", "--weight", "text=0.5")
    assert (found, loaded) == (expected, "[]")
    mixed = searcher.search(text="at night", like="image/1F60B@noto", weights=Weights(text=0.5))
    assert weighted == named(mixed)
    assert weighted != named(searcher.search(text="at night", like="image/1F60B@noto"))
    assert not (run_copy.path / INDEX / ANNOUNCED).exists()


def test_only_the_service_of_this_index_on_this_machine_is_asked(run_copy, searcher):
    query = Query("red fruit", find="image", top=5, splits=["test"])
    path = run_copy.path / INDEX / ANNOUNCED
    with service(run_copy):
        assert plain(ask_running_service(run_copy.path, query)) == named(searcher.search(query))
        assert ask_running_service(run_copy.path, Query("red fruit", top=201)) is None
        assert ask_running_service(run_copy.path, Query(like="no such item", top=5)) is None
        about = json.loads(path.read_text())
        for change in ({"instance": "another"}, {"host": "192.0.2.1"}, {"host": "localhost"}, {"weights": "other"}):
            path.write_text(json.dumps(about | change))
            assert ask_running_service(run_copy.path, query) is None, change
        for text in ("{", "[]", "null"):
            path.write_text(text)
            assert ask_running_service(run_copy.path, query) is None
        path.write_text(json.dumps(about))
    path.write_text(json.dumps(about))  # as a killed service leaves it
    assert ask_running_service(run_copy.path, query) is None


@pytest.mark.parametrize(
    ("host", "reached"),
    [("127.0.0.1", "127.0.0.1"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")],
)
def test_a_service_is_announced_at_its_loopback_address(tmp_path, host, reached):
    with announce(tmp_path, "one", host, 8000, "weights"):
        assert json.loads((tmp_path / ANNOUNCED).read_text())["host"] == reached
        with announce(tmp_path, "two", host, 8001, "weights"):
            pass
        assert not (tmp_path / ANNOUNCED).exists()


def test_a_service_on_another_address_is_not_announced(tmp_path):
    with announce(tmp_path, "one", "192.0.2.1", 8000, "weights"):
        assert list(tmp_path.iterdir()) == []
