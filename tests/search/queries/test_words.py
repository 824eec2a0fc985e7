"""Words of a query in captions, file names, folders and columns, against a comparison written with sets."""

import re

import numpy as np
import pytest

from crossclr.search import QueryError, Searcher
from crossclr.search.faiss_index import FaissIndex
from crossclr.search.index import FORMAT, ITEMS, current_generation, new_generation, write_index
from crossclr.search.items import Item, Items
from crossclr.search.service.server import create_app
from crossclr.search.words import fuse_ranks, word_query

PHOTOS = {  # key -> sentences, file, fields
    "a": (["a baseball player runs", "people in a stadium"], "sport/DSC0012.jpg", '{"place": "Chicago"}'),
    "b": (["a sports car"], "beachDay_7.jpg", ""),
    "c": ([""], "sport/IMG_2031.jpg", '{"duration": 3.5, "date": "2024-01-02"}'),
    "d": (["a dog on the sand at the beach"], "d.png", ""),
    "e": ([""], "old/baseball.jpg", ""),
}


class Fixed:
    """Every sentence has the same vector, so that only words can change an order."""

    def warm_up(self):
        """Nothing to load."""

    def encode(self, texts, modality=None):
        return np.array([[1.0, 0.0]], dtype=np.float32).repeat(len(texts), 0)


@pytest.fixture
def folder(tmp_path):
    """An index of photos whose vectors lie at equal angles from that of every query."""
    root = tmp_path / "photos"
    items, rows = [], {"image": [], "text": []}
    for key, (sentences, file, fields) in PHOTOS.items():
        place = ord(key) - ord("a")
        items.append(
            Item(len(items), f"image/{key}", "image", key, sentences[0], "train", media="image",
                 file=str(root / file), fields=fields)
        )  # fmt: skip
        rows["image"].append((items[-1].id, place))
        for sentence in filter(None, sentences):
            items.append(Item(len(items), f"text/{key}#{len(items)}", "text", key, sentence, "train"))
            rows["text"].append((items[-1].id, place))
    with new_generation(tmp_path / "index") as generation:
        table, indexes = Items(generation / ITEMS, writable=True), {}
        table.put(items)
        for name, pairs in rows.items():
            angles = np.array([0.1 * place for _, place in pairs])  # a is nearest to the query, then b, c, d, e
            indexes[name] = FaissIndex(2)
            vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
            indexes[name].add(np.array([number for number, _ in pairs]), vectors)
        labels = {name: {"label": f"{name}s", "text": name == "text"} for name in rows}
        meta = {
            "format": FORMAT, "name": "x", "about": "", "weights": "", "dim": 2, "backend": "faiss",
            "text_modality": "text", "text_modalities": ["text"], "validation": None, "media_roots": [str(root)],
            "hub_channels": False, "modalities": labels,
        }  # fmt: skip
        write_index(generation, table, indexes, meta)
    return current_generation(tmp_path / "index")


def with_all_words(query):
    """The keys of photos that have all words, by sets."""
    wanted = set(re.findall(r"[a-z]+|\d+", query.lower()))
    found = []
    for key, (sentences, file, fields) in PHOTOS.items():
        own = " ".join([*sentences, file, fields if "place" in fields else ""])
        if wanted <= set(re.findall(r"[a-z]+|\d+", re.sub("(?<=[a-z])(?=[A-Z])", " ", own).lower())):
            found.append(key)
    return found


@pytest.mark.parametrize(
    "query", ["baseball", "stadium", "IMG_2031.jpg", "2031", "beach", "day 7", "Chicago", "old", "sand beach", "car"]
)
def test_items_with_all_words_come_first_and_the_others_keep_their_order(folder, query):
    searcher = Searcher(folder, Fixed())
    hits = searcher.search(text=query, find="image")
    expected = with_all_words(query)
    assert expected
    assert sorted(hit.item.key for hit in hits[: len(expected)]) == expected
    assert [hit.words for hit in hits] == [True] * len(expected) + [False] * (5 - len(expected))
    assert [hit.item.key for hit in hits[len(expected) :]] == [key for key in PHOTOS if key not in expected]
    searcher.close()


@pytest.mark.parametrize("query", ["of the", "baseball car", "photos", "3.5", "zebra", '"sand dog"', "media photos"])
def test_without_an_item_that_has_all_words_only_vectors_count(folder, query):
    searcher = Searcher(folder, Fixed())
    hits = searcher.search(text=query, find="image")
    assert [hit.item.key for hit in hits] == list("abcde")
    assert not any(hit.words for hit in hits)
    searcher.close()


def test_a_sentence_is_found_by_its_own_words_and_a_phrase_by_its_order(folder):
    searcher = Searcher(folder, Fixed())
    assert searcher.search(text="stadium", find="text")[0].item.text == "people in a stadium"
    assert not searcher.search(text="chicago", find="text")[0].words
    assert searcher.search(text='"dog on the sand"', find="image")[0].item.key == "d"
    assert not searcher.search(text="dogs", find="image")[0].words  # another form of a word is for the vectors
    assert searcher.search(text="a photo of a dog", find="image")[0].item.key == "d"
    searcher.close()


def test_without_an_encoder_words_are_searched_alone(folder):
    searcher = Searcher(folder, None, "typed queries are not possible")
    assert [hit.item.key for hit in searcher.search(text="baseball", find="image")] == ["e", "a"]
    with pytest.raises(QueryError, match="not possible"):
        searcher.search(text="zebra", find="image")
    searcher.close()


def test_filters_hold_for_words_too(folder):
    searcher = Searcher(folder, Fixed())
    assert [hit.item.key for hit in searcher.search(text="baseball", find="image", where={"place": ["Chicago"]})] == [
        "a"
    ]
    with pytest.raises(QueryError, match="30 validation sentences"):
        searcher.search(text="baseball", min_probability=0.5)
    searcher.close()


@pytest.fixture
def asked(folder, tmp_path):
    """The service of the index, with a file behind one of its items."""
    testclient = pytest.importorskip("starlette.testclient")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "d.png").write_bytes(b"a picture")

    def client(**options):
        return testclient.TestClient(create_app(Searcher(folder, Fixed()), **options), "http://localhost")

    return client


def test_a_caption_is_written_next_to_its_file_and_found_at_once(asked, tmp_path):
    with asked(hosts=["localhost"]) as client:
        answer = client.post("/api/caption", json={"id": "image/d", "text": "a  zebra\n\nin the snow "})
        assert (answer.status_code, answer.json()) == (200, {"file": "d.txt"})
        assert (tmp_path / "photos" / "d.txt").read_text() == "a zebra\nin the snow\n"
        found = client.get("/api/search", params={"q": "zebra", "find": "image", "top": 2}).json()["results"]
        assert (found[0]["id"], found[0]["words"], found[0]["text"]) == ("image/d", True, "a zebra")
        assert found[0]["media"]["file"] == "d.png"
        sand = client.get("/api/search", params={"q": "sand", "find": "image", "top": 1}).json()["results"]
        assert not sand[0]["words"]  # the old caption is gone
        assert client.get("/api/info").json()["folder"] == str(tmp_path / "photos")
        assert client.post("/api/caption", json={"id": "image/a", "text": "x"}).status_code == 422  # it has no file
        (tmp_path / "elsewhere.jpg").write_bytes(b"a picture")
        (tmp_path / "photos" / "beachDay_7.jpg").symlink_to(tmp_path / "elsewhere.jpg")
        outside = client.post("/api/caption", json={"id": "image/b", "text": "x"})
        assert "outside the folders" in outside.json()["detail"]
        assert not (tmp_path / "photos" / "beachDay_7.txt").exists()
        text = {"content-type": "text/plain"}
        assert client.post("/api/caption", content=b'{"id": "image/d", "text": "x"}', headers=text).status_code in (
            415,
            422,
        )
        assert client.post("/api/caption", content=b'{"id": "image/d", "text": "x"}', headers={}).status_code in (
            415,
            422,
        )


def test_a_service_for_other_machines_changes_captions_only_with_its_token(asked, tmp_path):
    with asked() as client:
        assert client.post("/api/caption", json={"id": "image/d", "text": "x"}).status_code == 403
        assert client.get("/api/info").json()["folder"] == ""
    with asked(token="a token of the service") as client:
        headers = {"authorization": "Bearer a token of the service"}
        assert client.post("/api/caption", json={"id": "image/d", "text": "x"}).status_code == 401
        assert client.post("/api/caption", json={"id": "image/d", "text": "x"}, headers=headers).status_code == 200
    assert (tmp_path / "photos" / "d.txt").read_text() == "x\n"


def test_ranks_are_fused_by_their_reciprocals():
    scores = {number: 1 - number / 1000 for number in range(200)}
    matches = [150, 3, 90, 199]
    by_hand = {
        item: 1 / (60 + place) + (2 / (60 + matches.index(item)) if item in matches else 0)
        for place, item in enumerate(scores)
    }
    assert fuse_ranks(scores, matches) == sorted(by_hand, key=lambda item: -by_hand[item])
    assert fuse_ranks(scores, matches)[:4] == [3, 90, 150, 199]


def test_what_a_query_means():
    assert word_query("“Red Car” at 5") == '"red car" AND "5"'
    assert word_query("photo") == '"photo"'  # nothing else is said
    assert word_query('"') is None
    assert word_query('a "b* OR c') == '"b" AND "c"'
