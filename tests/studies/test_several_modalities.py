"""The report of data with three modalities and gaps: a grid of all pairs with a picture, all else about two of them."""

import json
import re

import numpy as np
import pytest
import yaml

from crossclr.studies import maps, open_study
from crossclr.studies import maps as connectivity_graph
from crossclr.studies.examples import choose_examples
from crossclr.studies.loss_experiments import Losses
from crossclr.studies.report import ReportFigures, write_report
from tests.studies.conftest import write_study

NAMES = ("sound", "picture", "text")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("three") / "data"
    none = {"experts": {}, "joined_experts": {}, "fused_experts": [], "modalities": {}}
    path = write_study(folder, methods=["crossclr", "ntxent"], histograms=["ntxent", "crossclr"], trials=0, **none)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    sound = np.load(folder / "a.npy")
    sound[3::7] = np.nan  # these clips have no sound
    np.save(folder / "a.npy", sound)
    text = config["data"]["modalities"]["text"]
    config["data"]["modalities"] = {"sound": {"values": "a.npy"}, "picture": {"values": "second.npy"}, "text": text}
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    return open_study(path, tmp_path_factory.mktemp("three") / "out")


@pytest.fixture(scope="module")
def page(study):
    return write_report(study).read_text(encoding="utf-8")


def test_the_grid_has_the_mean_of_every_pair(study, page):
    assert study.pair == ("sound", "text")
    section = re.search(r'<h2 id="modalities".*?(?=<h2 )', page, flags=re.DOTALL)[0]
    pictures = re.findall(r"<svg.*?</svg>", section, flags=re.DOTALL)
    assert len(pictures) == 2
    for picture, variant in zip(pictures, reversed(Losses().variants(study)), strict=True):
        runs = [json.loads((study.finished.find(job) / "results.json").read_text()) for job in variant.jobs()]
        means = {
            (query, found): sum(run["test"][f"clip/{query}->{found}"]["R@10"] for run in runs) / len(runs)
            for found in NAMES
            for query in NAMES
            if query != found
        }
        shown = re.findall(r'text-anchor="middle" fill="[^"]*">([\d.]+)<', picture)
        assert shown == [f"{mean:.1f}" for mean in means.values()]  # column by column
    assert "sound and text; the section Pairs of modalities has all 3 modalities" in page


def test_figures_name_the_clips_that_they_show(study, page):
    drawn = ReportFigures(study)
    embeddings, inputs = drawn.embeddings("crossclr"), drawn.inputs("train")
    texts = json.loads((study.base.data.bases()[0] / "texts.json").read_text())
    shown = [(one.key, one.text) for one in choose_examples(embeddings, by_text=True)]
    shown += [(hit.key, hit.text) for one in choose_examples(embeddings, by_text=False) for hit in one.hits]
    graph = connectivity_graph.connectivity_graph(inputs, 0.9, "quantile")
    shown += zip(graph.keys, graph.texts, strict=True)
    points = maps.choose_points(embeddings, drawn.inputs("test"))
    found = maps.joint_map("CrossCLR", embeddings, points)
    shown += zip(found.keys, found.texts, strict=True)
    assert len(shown) > 50
    for key, text in shown:
        assert texts[key] == text
        assert int(key) % 7 != 3  # it has a sound
