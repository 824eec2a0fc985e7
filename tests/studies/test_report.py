"""The report: one file, nothing from elsewhere, every figure drawn in a real Chromium."""

import json
import math
import os
import re
import shutil
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.studies.report import ReportFigures, _verdict, claims, write_report
from crossclr.studies.significance import PairedTest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]


@pytest.fixture(scope="module")
def report(study, tables):
    return write_report(study)


@pytest.fixture(scope="module")
def text(report):
    return report.read_text(encoding="utf-8")


def test_it_needs_nothing_else(text):
    page = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)  # plotly.js and the lines that call it
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert "url(" not in page
    assert text.count("<script>") == 2


def test_every_experiment_and_figure_has_its_sentence_command_and_config(text, study):
    anchors = re.findall(r'<h2 id="([^"]+)"', text)
    experiments = ["losses", "ablation", "sweeps", "modalities", "experts", "positives"]
    figures = ["histograms", "map", "graph", "influential", "text-examples", "clip-examples"]
    assert anchors == ["claims", *experiments, *figures]
    sections = dict(zip(anchors, re.split(r'<h2 id="[^"]+"', text)[1:], strict=True))
    for name in experiments:
        assert f"crossclr study run {name} --study" in sections[name]
    for name in anchors:
        assert "<summary>Command and config</summary>" in sections[name]
        assert "temperature:" in sections[name]
    assert "Tiny &amp; &lt;made&gt; up." in text
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert len(captions) == 7  # losses, two sweeps, grid, histograms, map, graph
    assert all(re.search(r"\d", caption) for caption in captions)


def test_every_plot_is_valid_data(text):
    found = re.findall(r'<script type="application/json" data-plot="([^"]+)">(.*?)</script>', text, flags=re.DOTALL)
    assert len(found) == 7  # two maps stand side by side
    for name, content in found:
        assert f'<div id="{name}">' in text
        assert json.loads(content)["data"]


def test_claims_are_answered_with_figures(study, report):
    found = claims(study, ReportFigures(study).similarities())
    assert len(found) == 7
    for claim in found:
        assert claim.answer in ("yes", "no", "no, it hurts", "no clear effect", "mixed")
        assert re.search(r"\d", claim.evidence)
    assert (study.out / "tables" / "claims.csv").is_file()


@pytest.mark.parametrize(
    ("figures", "expected"),
    [
        ([(1.0, 0.01), (0.5, 0.3)], "yes"),
        ([(-1.0, 0.01), (-0.5, 0.01)], "no, it hurts"),
        ([(1.0, 0.2), (-0.5, 0.01)], "no clear effect"),
        ([(1.0, 0.01), (-0.5, 0.2)], "yes"),
        ([(1.0, 0.01), (-0.5, 0.01)], "mixed"),
        ([(math.nan, math.nan), (-0.5, 0.01)], "no, it hurts"),
        ([(1.0, math.nan)], "no clear effect"),
    ],
)
def test_an_answer_is_no_stronger_than_its_figures(figures, expected):
    found = [(str(place), PairedTest("rival", difference, 0.0, p)) for place, (difference, p) in enumerate(figures)]
    assert _verdict(found)[0] == expected


def test_the_command_only_writes_what_is_finished(study, study_file, report):
    done = CliRunner().invoke(
        app, ["study", "report", "--study", str(study_file), "--out", str(study.out), "--jobs", "1"]
    )
    assert done.exit_code == 0, done.output
    assert "report.html" in done.output
    assert "to do" not in done.output
    done = CliRunner().invoke(app, ["study", "run", "losses", "--study", str(study_file), "--out", str(study.out)])
    assert done.exit_code == 0, done.output
    assert "Differences to the best rival" in done.output


def test_chromium_draws_every_figure_offline(report):
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if path is None:
        if os.environ.get("CI"):
            pytest.fail("the report must be looked at here, but there is no Chromium")
        pytest.skip("there is no Chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        page = browser.new_context(offline=True).new_page()
        faults, asked = [], []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.resolve().as_uri())
        page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length > 0")
        assert page.locator(".js-plotly-plot").count() == 7
        assert not faults
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1")
        browser.close()
    figures = report.parent / "figures"
    drawn = sorted(path.stem for path in figures.glob("*.svg"))
    assert drawn == sorted(["losses-1", "sweeps-1", "sweeps-2", "histograms-1", "map-1", "map-2", "graph-1"])
    assert all(ElementTree.parse(figures / f"{name}.svg").getroot().tag.endswith("svg") for name in drawn)
    assert (figures / "figures.pdf").read_bytes().count(b"/MediaBox") == len(drawn)
