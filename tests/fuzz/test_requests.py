"""Broken requests: never a status of 500 or above, and a wrong query is never answered."""

import json
import random
import string

import pytest
from starlette.testclient import TestClient

from crossclr.search import Searcher
from crossclr.search.service.server import create_app
from tests.fuzz.verdicts import broken_bytes, share

BATCHES, CASES = share(2_000, 10)
PATHS = ["/", "/api/search", "/api/item", "/api/info", "/api/map", "/media", "/docs", "/openapi.json", "/nowhere"]
ODD = [None, "", "x" * 5_000, "\0", "é🦊", -1, 0, 10**30, 1e400, float("nan"), [], {}, [None], [[1]], True, "../../etc"]
FIELDS = ["text", "like", "vector", "find", "top", "splits", "groups", "nosuchfield"]


@pytest.fixture(scope="module")
def client(indexed):
    searcher = Searcher.open(indexed, text=False)
    with TestClient(create_app(searcher), raise_server_exceptions=False) as found:
        yield found
    searcher.close()


def body(rng, right):
    """(bytes, must_refuse) of a broken search."""
    values = dict(right)
    kind = rng.choice(["odd", "unknown", "bytes", "two queries", "none", "deep", "repeated"])
    if kind == "odd":
        values[rng.choice(FIELDS)] = rng.choice(ODD)
    elif kind == "unknown":
        values["".join(rng.choices(string.printable, k=5))] = 1
        return json.dumps(values).encode(), True
    elif kind == "two queries":
        values["vector"] = [0.5] * 16
        return json.dumps(values).encode(), True
    elif kind == "repeated":
        again = rng.choice([*values, "weights"])
        more = '{"text": 1, "text": 1}' if again == "weights" else json.dumps(rng.choice([values[again], 1]))
        return json.dumps(values)[:-1].encode() + f', "{again}": {more}}}'.encode(), True
    elif kind == "none":
        return json.dumps({"top": 3}).encode(), True
    elif kind == "deep":
        return b'{"like": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", True
    content = json.dumps(values).encode()
    return (broken_bytes(content, rng)[1] if kind == "bytes" else content), None


@pytest.mark.parametrize("seed", BATCHES)
def test_broken_requests(client, seed):
    rng = random.Random(seed)
    name = client.get("/api/map").json()
    assert name
    right = {"like": _any_item(client), "top": 3}
    assert client.post("/api/search", json=right).status_code == 200
    for _ in range(CASES):
        if rng.random() < 0.5:
            content, must = body(rng, right)
            answer = client.post("/api/search", content=content, headers={"content-type": "application/json"})
            case = f"POST {content[:200]!r}"
        else:
            path, must = rng.choice(PATHS), None
            query = {rng.choice([*FIELDS, "q", "id", "split"]): str(rng.choice(ODD))[:2_000] for _ in range(2)}
            method = rng.choice(["GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
            answer = client.request(method, path, params=query)
            case = f"{method} {path} {query}"
        assert answer.status_code < 500, f"{case}: {answer.status_code} {answer.text[:300]}"
        if must:
            assert answer.status_code >= 400, f"{case}: answered, but it is wrong: {answer.text[:300]}"
        if answer.status_code >= 400 and "json" in answer.headers.get("content-type", ""):
            assert len(answer.text) < 2_000, f"{case}: an answer of {len(answer.text)} characters"


def _any_item(client):
    found = client.post("/api/search", json={"vector": [0.25] * 16, "find": "text", "top": 1}).json()
    return found["results"][0]["id"]
