"""Tokens, counters and logs, on a small application without an index."""

import json

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from crossclr.search.service.access import Access, Counters, read_token

TOKEN = "a-token-of-many-letters"


def client(token=TOKEN, log=False, counters=None):
    async def answer(request):
        return PlainTextResponse(request.url.path)

    paths = ("/", "/api/search", "/healthz")
    app = Starlette(routes=[Route(path, answer) for path in paths])
    counters = counters if counters is not None else Counters()
    return TestClient(Access(app, frozenset(paths), counters, token, log), follow_redirects=False)


def test_without_the_token_only_the_health_is_told():
    asked = client()
    assert asked.get("/healthz").status_code == 200
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": "crossclr=wrong"}, {"cookie": "\x01=;;"}):
        refused = asked.get("/api/search", headers=headers)
        assert refused.status_code == 401
        assert TOKEN not in refused.text
    assert asked.get("/api/search?token=wrong").status_code == 401
    assert asked.post(f"/?token={TOKEN}").status_code == 401  # a link is read, not sent


def test_a_header_or_a_link_opens_the_service():
    assert client().get("/api/search", headers={"authorization": f"Bearer {TOKEN}"}).text == "/api/search"
    asked = client()
    moved = asked.get(f"/?q=red+fruit&token={TOKEN}")
    assert moved.status_code == 303
    assert moved.headers["location"] == "/?q=red+fruit"  # the token does not stay in the address
    assert "HttpOnly" in moved.headers["set-cookie"]
    assert asked.get("/api/search").status_code == 200  # by its cookie


def test_requests_are_counted():
    counters = Counters()
    asked = client(token=None, counters=counters)
    for path in ("/api/search", "/api/search", "/secret/42", "/"):
        asked.get(path)
    text = counters.text({"image": 7})
    assert 'crossclr_requests_total{path="/api/search",status="200"} 2' in text
    assert 'crossclr_requests_total{path="other",status="404"} 1' in text
    assert "secret" not in text
    assert "crossclr_request_seconds_count 4" in text
    assert 'crossclr_request_seconds_bucket{le="10.0"} 4' in text
    assert "crossclr_requests_running 0" in text
    assert 'crossclr_items{modality="image"} 7' in text


def test_a_log_line_has_no_query(capsys):
    client(token=None, log=True).get("/api/search?q=private")
    line = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (line["method"], line["path"], line["status"]) == ("GET", "/api/search", 200)
    assert "private" not in json.dumps(line)


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("short\n")
    with pytest.raises(ValueError, match="at least 16"):
        read_token(tmp_path / "token")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token") == TOKEN
