"""A run with two text modalities: either encodes a sentence, in Python, the command, the service and the page."""

import json

import numpy as np
import pytest

from crossclr import api
from crossclr.extract import TokenEncoder
from crossclr.search import QueryError, Searcher, build_index
from crossclr.search.query import Query
from crossclr.search.quick_search import open_without_torch
from crossclr.training import Run, load_config
from tests.search.conftest import SMALL
from tests.search.service.test_app import call, post, running
from tests.search.service.test_page import browser  # noqa: F401
from tests.support.commands import run as run_command


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    names = {"image": "noto", "english": "text", "spanish": "text"}
    config = load_config("emoji", {**SMALL, "training.epochs": 1, "data.modalities": names})
    path = tmp_path_factory.mktemp("two") / "run"
    api.train(config, out=path, baseline=False)
    build_index(path, splits=["test"])
    return Run.open(path)


@pytest.fixture(scope="module")
def opened(run):
    searcher = Searcher.open(run)
    yield searcher
    searcher.close()


@pytest.fixture(scope="module")
def expected(run, opened):
    """By text modality, the ten best images for "crimson fruit" by a plain product."""
    space, found = run.load_space(), {}
    items = opened.items.columns("id", "name", where="image")
    gallery = opened.indexes["image"].vectors(np.array([row[0] for row in items]))
    for name in ("english", "spanish"):
        query = space.encode_queries(name, TokenEncoder()(["crimson fruit"])).numpy()[0]
        found[name] = [items[place][1] for place in np.argsort(-(gallery @ query), kind="stable")[:10]]
    return found


def test_a_sentence_is_encoded_by_the_chosen_modality(opened, expected):
    assert expected["english"] != expected["spanish"]
    for chosen, name in ((None, "english"), ("english", "english"), ("spanish", "spanish")):
        hits = opened.search(text="crimson fruit", text_modality=chosen)
        assert [hit.item.name for hit in hits] == expected[name]
        assert [hit.probability for hit in hits] == [None] * 10
    hits = opened.search(text="crimson fruit", text_modality="spanish", find="english")
    assert {hit.item.modality for hit in hits} == {"english"}
    with pytest.raises(QueryError, match="'image' cannot encode a sentence; the text modalities are english, spanish"):
        opened.search(text="crimson fruit", text_modality="image")


def test_the_command_takes_it(run, expected, monkeypatch, capsys):
    for options, name in (([], "english"), (["--text-modality", "spanish"], "spanish")):
        assert run_command(monkeypatch, "search", run.path, "crimson fruit", *options, "--json") == 0
        assert [hit["id"] for hit in json.loads(capsys.readouterr().out)] == expected[name]
    assert open_without_torch(run.path, Query("crimson fruit", "spanish")) is None  # only the default is exported


def test_the_service_and_the_page_take_it(opened, expected, browser):  # noqa: F811
    with running(opened) as address:
        values = {"text": "crimson fruit", "text_modality": "spanish", "top": 10}
        assert [hit["id"] for hit in post(address, values)[1]["results"]] == expected["spanish"]
        _, _, body = call(address, "GET", "/api/search?q=crimson+fruit&text_modality=spanish&top=10")
        assert [hit["id"] for hit in json.loads(body)["results"]] == expected["spanish"]
        assert post(address, values | {"text_modality": "image"})[0] == 422
        page = browser.new_page()
        page.goto(f"http://{address[0]}:{address[1]}/?q=crimson+fruit")
        page.wait_for_selector("#list .card")  # the page fills its choices before it searches
        choice = page.get_by_label("Modality that encodes your sentence")
        assert choice.input_value() == "english"
        for name in ("spanish", "english"):
            choice.select_option(name)
            page.wait_for_function(
                "name => document.querySelector('#list [data-id]')?.dataset.id === name", arg=expected[name][0]
            )
        page.close()
