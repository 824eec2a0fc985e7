"""The service under load that is meant and load that is not, through a real socket."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from urllib.parse import quote

import numpy as np
import pytest

from crossclr.data.emoji_set import emoji_image
from crossclr.search.searcher import Searcher
from crossclr.search.service.access import HEALTH, LARGEST_BODY, Limits, PatientProtocol
from crossclr.search.service.search_routes import MOST_RESULTS
from crossclr.search.service.server import make_server


@contextmanager
def running(searcher, **options):
    """A service on a free port, in a thread; gives its address."""
    ready = threading.Event()
    server, listening = make_server(searcher, port=0, ready=lambda address: ready.set(), **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert ready.wait(60)
    while not server.started:
        time.sleep(0.01)
    try:
        yield listening.getsockname()
    finally:
        server.should_exit = True
        thread.join(15)
        listening.close()
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def address(searcher):
    with running(searcher) as found:
        yield found


def call(address, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        # a body that is refused may be cut off before all of it is sent; the answer is there to read all the same
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def post(address, values):
    status, _, body = call(address, "POST", "/api/search", json.dumps(values), {"content-type": "application/json"})
    return status, json.loads(body)


def test_both_ways_to_ask_give_the_searcher_s_own_results(address, searcher):
    expected = [hit.item.name for hit in searcher.search(text="crimson fruit", top=7, splits=["val"])]
    status, _, body = call(address, "GET", "/api/search?q=crimson%20fruit&top=7&split=val")
    assert status == 200
    assert [result["id"] for result in json.loads(body)["results"]] == expected
    status, _, body = call(address, "GET", "/api/search?q=crimson%20fruit&top=7&where=split%3Dval")
    assert [result["id"] for result in json.loads(body)["results"]] == expected
    status, answer = post(address, {"text": "crimson fruit", "top": 7, "splits": ["val"]})
    assert [result["id"] for result in answer["results"]] == expected
    assert answer["results"][0]["media"]["kind"] == "image"
    vector = searcher.queries.encode(["crimson fruit"])[0].tolist()
    status, answer = post(address, {"vector": vector, "top": 7, "splits": ["val"], "find": "image"})
    assert [result["id"] for result in answer["results"]] == expected
    name = expected[0]
    status, _, body = call(address, "GET", f"/api/search?like={quote(name)}&find=text&top=3")
    assert [one["id"] for one in json.loads(body)["results"]] == [
        hit.item.name for hit in searcher.search(like=name, find="text", top=3)
    ]


def test_an_item_its_partners_and_its_picture(address, searcher):
    name = searcher.search(text="red fruit", top=1)[0].item.name
    status, _, body = call(address, "GET", f"/api/item?id={quote(name)}")
    item = json.loads(body)
    assert status == 200
    assert len(item["partners"]) == 3
    status, headers, picture = call(address, "GET", f"/media?id={quote(name)}")
    assert (status, headers["content-type"]) == (200, "image/webp")
    key, vendor = name.removeprefix("image/").split("@")
    assert picture == emoji_image(key, vendor)
    assert call(address, "GET", f"/media?id={quote(item['partners'][-1]['id'])}")[0] == 404  # a sentence


def test_the_page_and_its_parts_come_from_here_and_nowhere_else(address):
    for path in (
        "/",
        "/page.css",
        "/page.js",
        "/elements.js",
        "/filters.js",
        "/item.js",
        "/map.js",
        "/parts.js",
        "/server.js",
        "/icon.svg",
        "/docs",
        "/docs.js",
        "/openapi.json",
        "/api/map",
    ):
        status, headers, body = call(address, "GET", path)
        assert status == 200, path
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        text = body.decode("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text, path
        assert "https://" not in text, path
    points = json.loads(call(address, "GET", "/api/map")[2])
    assert set(points["filters"]) == {"split", "group"}
    columns = [*points.pop("filters").values(), *points.values()]
    assert len({len(column) for column in columns}) == 1
    info = json.loads(call(address, "GET", "/api/info")[2])
    assert info["text"] is True
    assert set(info["modalities"]) == {"image", "text"}


def test_whole_samples_have_all_their_modalities(address):
    for find in ("fused", "image+text"):
        status, answer = post(address, {"text": "red fruit", "find": find, "top": 3})
        assert status == 200
        results = answer["results"]
        assert len({one["key"] for one in results}) == 3
        for one in results:
            assert [part["modality"] for part in one["together"]] == ["image", "text"]
            assert {part["key"] for part in one["together"]} == {one["key"]}
    status, answer = post(address, {"text": "red fruit", "find": "image+sound"})
    assert (status, answer["detail"]) == (422, "the index has no modality 'sound'; it has image, text")


WRONG = [
    ({"text": "a", "top": 10**9}, 422, f"less than or equal to {MOST_RESULTS}"),
    ({"text": "a", "top": 0}, 422, "top"),
    ({"text": "a", "top": "many"}, 422, "top"),
    ({"text": "a", "top": 2.5}, 422, "top"),
    ({"text": 7}, 422, "text"),
    ({"text": ["a"]}, 422, "text"),
    ({"text": "x" * 1001}, 422, "1000"),
    ({"text": "a", "unknown": 1}, 422, "unknown"),
    ({"text": ""}, 422, "empty"),
    ({"text": "\ud800"}, 422, "unicode"),
    ({"like": "\ud800"}, 422, "unicode"),
    ({}, 422, "say what to find"),
    ({"text": "a", "like": "b"}, 404, "no item"),
    ({"text": "a", "weights": {"text": -1}}, 422, "between 0 and 100"),
    ({"text": "a", "file": "lost"}, 422, "lost its file"),
    ({"like": "image/none"}, 404, "no item"),
    ({"like": "../../../etc/passwd"}, 404, "no item"),
    ({"text": "a", "find": "z"}, 422, "no modality 'z'"),
    ({"text": "a", "splits": ["none"]}, 422, "no split"),
    ({"text": "a", "where": {"colour": ["red"]}}, 422, "no filter"),
    ({"text": "a", "where": {"split": "val"}}, 422, "where"),
    ({"text": "a", "splits": "test"}, 422, "splits"),
    ({"vector": [1, 2, 3]}, 422, "32 numbers"),
    ({"vector": ["a"] * 32}, 422, "vector"),
    ({"vector": [0.0] * 32}, 422, "not zero"),
    ([], 422, ""),
    (None, 422, ""),
    ("text", 422, ""),
]


@pytest.mark.parametrize(("values", "status", "message"), WRONG)
def test_wrong_requests_get_a_clear_4xx(address, values, status, message):
    found, answer = post(address, values)
    assert found == status
    assert message in answer["detail"]
    assert "Traceback" not in answer["detail"]
    assert len(answer["detail"]) < 400


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"text": "\xff\xfe"}', 400),
        (b'{"text": ', 422),
        (b"\x00\x01\x02", 422),
        (b"[" * 100_000, 400),
        (b'{"vector": [NaN, Infinity]}', 422),
        (b'{"text": "a", "top": 1e999}', 422),
        (b'{"text": "' + b"x" * 1_000_000 + b'"}', 413),
        (b'{"text": "' + b"x" * (LARGEST_BODY - 1000) + b'"}', 422),
        (b"", 422),
        (b'{"text": "a", "text": "a"}', 422),
        (b'{"text": "a", "weights": {"text": 1, "text": 2}}', 422),
    ],
)
def test_bodies_that_are_no_request(address, body, status):
    try:
        found, _, answer = call(address, "POST", "/api/search", body, {"content-type": "application/json"})
    except ConnectionResetError:
        assert status == 413  # only a body that is too large may be cut off
        return
    assert found in (status, 400, 422) if status != 413 else found == 413
    assert isinstance(json.loads(answer)["detail"], str)
    assert len(answer) < 500


def test_a_large_body_without_a_length_is_cut_off(address):
    def endless():
        for _ in range(40):
            yield b"x" * 65_536

    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request("POST", "/api/search", endless(), {"content-type": "application/json"}, encode_chunked=True)
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # the service answered and closed before everything was sent
    finally:
        connection.close()
    assert call(address, "GET", "/api/info")[0] == 200


@pytest.mark.parametrize(
    ("path", "statuses"),
    [
        ("/api/search?q=%ff%fe", {400}),
        ("/api/item?id=%c3%28", {400}),
        ("/%ff", {400}),
        ("/api/search?q=" + "x" * 9000, {414}),
        ("/api/search?q=" + "x" * 1_000_000, {400, 414}),
        ("/api/search?q=a&top=1000000000", {422}),
        ("/api/search?q=a&top=-1", {422}),
        ("/api/search?q=a&top=ten", {422}),
        ("/api/search?q=a&find=c", {422}),
        ("/api/search", {422}),
        ("/api/search?q=a&split=" + "x" * 600, {422}),
        ("/api/search?q=a" + "&group=x" * 60, {422}),
        ("/api/item?id=nothing", {404}),
        ("/api/item", {422}),
        ("/media?id=nothing", {404}),
        ("/media?id=../../../../etc/passwd", {404}),
        ("/media?id=a/..%2f..%2fetc%2fpasswd", {404}),
        ("/media/../../etc/passwd", {404}),
        ("/page/../service.py", {404}),
        ("/..%2f..%2fetc/passwd", {404}),
        ("/%2e%2e/%2e%2e/etc/passwd", {404}),
        ("//etc/passwd", {404}),
        ("/media?id=%00", {404}),
    ],
)
def test_wrong_addresses_get_a_clear_4xx(address, path, statuses):
    try:
        status, _, body = call(address, "GET", path)
    except (BrokenPipeError, ConnectionResetError):
        assert len(path) > 100_000  # cut off while it was still sending
        return
    assert status in statuses
    assert b"Traceback" not in body
    assert b"root:" not in body
    assert len(body) < 500


def test_other_methods_and_garbage(address):
    assert call(address, "DELETE", "/api/search")[0] == 405
    assert call(address, "POST", "/api/info")[0] == 405
    with socket.create_connection(address, timeout=10) as raw:
        raw.sendall(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
        assert b"400" in raw.recv(4096)
    with socket.create_connection(address, timeout=10) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert b"421" in raw.recv(4096)  # a foreign name that points here (DNS rebinding)


def test_media_only_from_the_folders_that_the_index_names(indexed, tmp_path):
    """Items whose file lies elsewhere, or leads elsewhere by a link, are refused."""
    from dataclasses import replace

    from crossclr.search import Searcher

    inside, outside = tmp_path / "media", tmp_path / "secret"
    inside.mkdir()
    outside.mkdir()
    (inside / "clip.mp4").write_bytes(bytes(range(256)) * 40)
    (outside / "secret.mp4").write_bytes(b"secret")
    (outside / "secret.txt").write_bytes(b"secret")
    (inside / "link.mp4").symlink_to(outside / "secret.mp4")
    searcher = Searcher.open(indexed, text=False)
    searcher.meta["media_roots"] = [str(inside)]
    plain = searcher.items.get([0])[0]
    files = {
        "clip": inside / "clip.mp4",
        "link": inside / "link.mp4",
        "outside": outside / "secret.mp4",
        "dots": inside / ".." / "secret" / "secret.mp4",
        "absent": inside / "absent.mp4",
        "text": inside / "clip.txt",
        "system": "/etc/passwd",
    }
    items = {name: replace(plain, media="video", file=str(file), name=name) for name, file in files.items()}
    searcher.items.named = lambda name: items.get(name)
    with running(searcher) as address:
        status, headers, body = call(address, "GET", "/media?id=clip")
        assert (status, headers["content-type"], len(body)) == (200, "video/mp4", 10_240)
        status, headers, body = call(address, "GET", "/media?id=clip", headers={"Range": "bytes=100-199"})
        assert (status, body) == (206, (bytes(range(256)) * 40)[100:200])  # a player can jump
        for name in ("link", "outside", "dots", "text", "system"):
            status, _, body = call(address, "GET", f"/media?id={name}")
            assert status == 403, name
            assert b"secret" not in body.replace(b"secret/", b"")
        assert call(address, "GET", "/media?id=absent")[0] == 404
    searcher.close()


def test_slow_clients_are_cut_off(searcher, monkeypatch):
    monkeypatch.setattr(PatientProtocol, "header_seconds", 0.4)
    real = Limits.__init__

    def impatient(self, app, hosts=None, **_):
        real(self, app, hosts, body_seconds=0.4, send_seconds=0.4)

    monkeypatch.setattr(Limits, "__init__", impatient)
    with running(searcher) as address:
        begun = time.monotonic()
        with socket.create_connection(address, timeout=10) as raw:  # headers that never end
            raw.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
            assert raw.recv(100) == b""
        with socket.create_connection(address, timeout=10) as raw:  # nothing at all
            assert raw.recv(100) == b""
        with socket.create_connection(address, timeout=10) as raw:  # a body that never ends
            raw.sendall(b"POST /api/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n{")
            assert b"408" in raw.recv(4096)
        with socket.create_connection(address, timeout=10) as raw:  # a second request on the same connection
            raw.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            while b"</svg>" not in raw.recv(4096):
                pass
            raw.sendall(b"GET / HTT")
            assert raw.recv(4096) == b""
        assert time.monotonic() - begun < 8
        assert call(address, "GET", "/api/info")[0] == 200


def test_many_clients_at_once_get_right_answers(address, searcher):
    vectors = np.random.default_rng(0).standard_normal((40, 32)).astype(np.float32)
    expected = [[hit.item.name for hit in searcher.search(vector=row, find="image", top=5)] for row in vectors]

    def ask(number):
        row = number % len(vectors)
        status, answer = post(address, {"vector": vectors[row].tolist(), "find": "image", "top": 5})
        return status == 200 and [one["id"] for one in answer["results"]] == expected[row]

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(320)))


def test_the_service_listens_at_the_loopback_address_unless_told(searcher):
    import inspect

    from crossclr.search.service.server import serve_run

    assert inspect.signature(serve_run).parameters["host"].default == "127.0.0.1"
    with running(searcher) as address:
        assert address[0] == "127.0.0.1"
        with pytest.raises(OSError, match="choose another with --port"):
            make_server(searcher, port=address[1])


def test_a_fault_inside_says_nothing_about_the_inside(searcher, monkeypatch):
    def broken(**_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(searcher, "search", broken)
    with running(searcher) as address:
        status, answer = post(address, {"vector": [1.0] * 32})
    assert status == 500
    assert "secret" not in answer["detail"]


def damage(folder, what):
    if what == "the folder is gone":
        shutil.rmtree(folder)
    elif what == "the map is gone":
        (folder / "map.json").unlink()
    else:
        (tail,) = (folder / "image").glob("tail.npy")
        os.truncate(tail, 200)


@pytest.mark.parametrize("what", ["the folder is gone", "the map is gone", "the vectors are cut"])
def test_an_index_that_vanishes_or_shrinks_is_reported_and_the_service_lives(run_copy, what):
    searcher = Searcher.open(run_copy)
    with running(searcher) as address:
        damage(searcher.folder, what)
        for path in ("/api/map", "/api/search?q=fruit", "/api/search?q=fruit&find=text", "/api/sample"):
            status, _, body = call(address, "GET", path)
            assert status in (200, 503)
            if status == 503:
                assert "rebuild it with crossclr index" in json.loads(body)["detail"]
        broken = "/api/search?q=fruit" if what == "the vectors are cut" else "/api/map"
        assert call(address, "GET", broken)[0] == 503
        assert call(address, "GET", HEALTH)[0] == 200


def test_a_running_service_takes_over_a_changed_index(run_copy, monkeypatch):
    from crossclr.search import Searcher, update_index
    from crossclr.search.service import file_routes as index_reload

    monkeypatch.setattr(index_reload, "CHECK_SECONDS", 0.05)
    searcher = Searcher.open(run_copy, text=False)
    gone = searcher.items.get([0])[0].name
    with running(searcher) as address:
        assert call(address, "GET", f"/api/item?id={quote(gone)}")[0] == 200
        count = json.loads(call(address, "GET", "/api/info")[2])["modalities"]["image"]["count"]
        update_index(run_copy, delete=[gone])
        until = time.monotonic() + 20
        while call(address, "GET", f"/api/item?id={quote(gone)}")[0] == 200 and time.monotonic() < until:
            time.sleep(0.05)
        assert call(address, "GET", f"/api/item?id={quote(gone)}")[0] == 404
        assert json.loads(call(address, "GET", "/api/info")[2])["modalities"]["image"]["count"] == count - 1
    searcher.close()


def test_an_index_of_other_weights_is_not_taken_over(run_copy, caplog):
    from crossclr.search import Searcher
    from crossclr.search.index import META, current_generation, new_generation
    from crossclr.search.service.file_routes import ReloadingSearcher

    reloading = ReloadingSearcher(Searcher.open(run_copy, text=False))
    before = current_generation(reloading.current.folder.parent)
    meta = json.loads((before / META).read_text()) | {"weights": "others"}
    with new_generation(before.parent) as folder:
        (folder / META).write_text(json.dumps(meta))
    for _ in range(3):
        assert not reloading.refresh()
    assert reloading.current.folder == before
    assert caplog.text.count("other weights") == 1
    reloading.current.close()
