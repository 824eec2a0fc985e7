"""The report of a study: every experiment with its tables, every figure with a sentence about this data."""

import datetime
import html
import platform
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from rich.console import Console

from crossclr.analysis.experiments import EXPERIMENTS
from crossclr.analysis.experiments.losses import Losses
from crossclr.analysis.experiments.modalities import COMPARED, Modalities
from crossclr.analysis.figures import connectivity_graph as graph
from crossclr.analysis.figures import examples, maps, plots, similarities
from crossclr.analysis.figures.images import image_uri
from crossclr.analysis.report.claims import claims, claims_table
from crossclr.analysis.report.html_page import Page
from crossclr.analysis.studies.compared_losses import METHODS, loss_option
from crossclr.analysis.studies.open_study import Study, words
from crossclr.analysis.studies.run_experiments import TABLES, run_experiments
from crossclr.analysis.studies.trainer import open_trainer
from crossclr.analysis.tables import Table
from crossclr.models import Embeddings
from crossclr.storage import write_file
from crossclr.training import RunConfig, dump_config

REPORT = "report.html"
MAPS = ("crossclr", "ntxent")  # whose joint spaces are drawn


def write_report(study: Study, jobs: int = 1, console: Console | None = None) -> Path:
    """Run the experiments that are missing (``jobs`` at a time), draw all figures and write ``report.html``."""
    found = run_experiments(list(EXPERIMENTS), study, jobs, console)
    if console is not None:
        console.print("figures", highlight=False)
    page = Page(f"CrossCLR on {study.base.name}")
    drawn = Drawn(study)
    _head(page, study)
    answers = claims_table(claims(study, drawn.similarities()))
    answers.write(study.out / TABLES)
    page.section("claims", "The paper's claims", "What this data says about each claim; details follow below.")
    _table(page, answers, words=True)
    page.source(study.command("report"), dump_config(study.base))
    for name, tables in found.items():
        _experiment(page, study, name, tables)
    drawn.add(page)
    from plotly.offline import get_plotlyjs

    path = study.out / REPORT
    write_file(path, page.render(get_plotlyjs()))
    return path


def _head(page: Page, study: Study) -> None:
    base, trainer = study.base, open_trainer(study.base)
    sizes = []
    for split in (base.splits.train, base.splits.validate_, base.splits.test):
        counts = [f"{name} {len(found.rows):,}" for name, found in trainer.inputs(split or "").modalities.items()]
        sizes.append(f"{split}: {len(trainer.inputs(split or '').clip_keys):,} clips ({', '.join(counts)})")
    shown = f"{' and '.join(study.pair)}; the section {Modalities.title} has all {len(study.names)} modalities"
    facts = Page("")
    facts.text(study.settings.about, "dim")
    facts.facts(
        [
            ("splits", "; ".join(sizes)),
            *([("modalities", shown)] if len(study.names) > 2 else []),
            ("seeds", _seeds(study)),
            ("tuning", f"{study.trials} trials for each loss, on {base.splits.validate_}"),
            ("made", f"{datetime.date.today().isoformat()} by crossclr {metadata.version('crossclr')}"),
            ("with", f"torch {metadata.version('torch')}, Python {platform.python_version()}, {platform.machine()}"),
            ("command", study.command("report")),
        ]
    )
    facts.text(
        "R@K: percent of queries whose own clip (or text) is among the first K. nDCG: graded by the words that "
        "captions share (Wray et al., CVPR 2021). sR@1: R@1 in which every clip that shares a caption with the "
        "query's clip is correct. Neighbours kept: percent of the ten nearest input-space neighbours that stay "
        "nearest in the joint space. ± is the sample standard deviation over seeds; the best of a column is bold.",
        "dim",
    )
    page.html("".join(facts.parts))


def _experiment(page: Page, study: Study, name: str, tables: Sequence[Table]) -> None:
    experiment = EXPERIMENTS[name]
    page.section(name, experiment.title, experiment.about)
    if not tables:
        page.text(f"Not shown: {experiment.skip(study)}.", "dim")
        return
    if name == "losses":
        page.plot(_scores(study), tables[0].caption)
    for curve in experiment.curves(study):
        page.plot(
            plots.curve(curve), f"{curve.title.capitalize()}. {curve.sentence} The dotted line is the tuned value."
        )
    if name == "modalities":
        pictures = "".join(
            f"<div><h3>{METHODS[one].title}</h3>{Modalities().picture(study, one)}</div>" for one in COMPARED
        )
        page.html(f'<figure><div class="pair">{pictures}</div><figcaption>Mean R@10 over seeds.</figcaption></figure>')
    for table in tables:
        inside = Page("")
        _table(inside, table, words=table.name in ("losses-tuning", "losses-differences"))
        block = "".join(inside.parts)
        folded = name == "sweeps"  # the curves show the same
        page.html(
            f"<details><summary>{html.escape(table.title)}: the numbers</summary>{block}</details>" if folded else block
        )
    page.source(study.command(name), dump_config(experiment.variants(study)[0].config))


def _table(page: Page, table: Table, words: bool = False) -> None:
    shown = table.html()
    page.html(f"<h3>{html.escape(table.title)}</h3>")
    page.html(f'<div class="scroll">{shown.replace("<table>", _WORDS, 1) if words else shown}</div>')
    if table.name != "losses":  # its plot has the same caption
        page.html(f'<p class="caption">{html.escape(table.caption)}</p>')
    page.html(f'<p class="dim"><small>Also as tables/{table.name}.csv and tables/{table.name}.tex.</small></p>')


_WORDS = '<table class="words">'


def _scores(study: Study) -> plots.Plot:
    rows, main = [], study.directions[0]
    for name, variant in zip(study.methods, Losses().variants(study), strict=True):
        metrics = {}
        for metric in ("R@1", "R@10", "nDCG", "sR@1"):
            values = study.values(variant, main, metric)
            if not np.isnan(values).all():
                spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
                metrics[f"{words(main)} {metric}"] = (float(np.nanmean(values)), spread)
        rows.append((variant.name, METHODS[name].ours, metrics))
    return plots.scores(rows)


class Drawn:
    """The figures of a report, computed from trainings whose weights were kept."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.variants = dict(zip(study.methods, Losses().variants(study), strict=True))
        self._embedded: dict[str, Embeddings] = {}
        self._similarities: list[similarities.Similarities] = []

    def embeddings(self, name: str) -> Embeddings:
        """The study's pair on the test split, embedded by the first seed of a loss."""
        if name not in self._embedded:
            job = self.variants[name].jobs()[0]
            model = self.study.finished.open(job).load_model()
            found = open_trainer(job.config).embed(model, job.config.splits.test or "")
            self._embedded[name] = found.only(self.study.pair)
        return self._embedded[name]

    def inputs(self, split: str) -> Embeddings:
        """The mean input rows of the study's pair."""
        return open_trainer(self.study.base).inputs(split).only(self.study.pair)

    def similarities(self) -> list[similarities.Similarities]:
        """Similarities of the losses that the study names."""
        if not self._similarities:
            shown = [name for name in self.study.settings.histograms if name in self.variants]
            self._similarities = [similarities.similarities(METHODS[n].title, self.embeddings(n)) for n in shown]
        return self._similarities

    def add(self, page: Page) -> None:
        """Add all figures to a page."""
        study = self.study
        seed = f"seed {study.seeds[0]}, split {study.base.splits.test}"
        page.section("histograms", "Similarities", f"Cosines in the joint space after training ({seed}).")
        found = self.similarities()
        page.plot(plots.histograms(found), similarities.sentence(found))
        self._source(page, study.settings.histograms[-1])
        trainer = open_trainer(study.base)
        image = partial(image_uri, trainer.raw)
        page.section("map", "The joint space", f"t-SNE of clips and texts ({seed}).")
        test, train = study.base.splits.test or "", study.base.splits.train
        shown = [name for name in MAPS if name in self.variants]
        points = maps.choose_points(self.embeddings(shown[0]), self.inputs(test))
        drawn = [maps.tsne(METHODS[name].title, self.embeddings(name), points) for name in shown]
        page.plot([plots.space(one, image) for one in drawn], maps.sentence(drawn))
        self._source(page, shown[0])
        ours = self._config("crossclr")
        pruning = (loss_option(ours, name) for name in ("prune_threshold", "prune_by", "min_keep"))
        page.section("graph", "Connectivity", f"Inputs of modality {study.pair[1]}, split {train}.")
        network = graph.connectivity_graph(self.inputs(train), *pruning)
        page.plot(plots.network(network), graph.sentence(network))
        self._source(page, "crossclr")
        if self.inputs(train)[study.pair[1]].texts:
            self._texts(page, image)

    def _texts(self, page: Page, image: Callable[[str], str]) -> None:
        study = self.study
        found = graph.influential_samples(self.inputs(study.base.splits.train))
        page.section("influential", "Influential samples", "The most connected texts, each with its nearest texts.")
        cards = []
        for one in found:
            lines = [(key, f"{text} ({cosine:.2f})", "") for key, text, cosine in one.nearest]
            cards.append(_card(one.key, f"{one.text} (C {one.connectivity:.2f})", lines, image))
        page.html(f'<div class="cards">{"".join(cards)}</div>')
        mean = float(np.mean([cosine for one in found for _, _, cosine in one.nearest]))
        page.text(
            f"Their nearest texts have a mean input cosine of {mean:.2f}; used as negatives, they are pushed apart."
        )
        self._source(page, "crossclr")
        embeddings = self.embeddings("crossclr")
        clips, texts = study.pair
        for anchor, title, found_examples in (
            ("text-examples", f"Retrieval: {texts} → {clips}", examples.choose_examples(embeddings, by_text=True)),
            ("clip-examples", f"Retrieval: {clips} → {clips}", examples.choose_examples(embeddings, by_text=False)),
        ):
            page.section(anchor, title, f"CrossCLR, seed {study.seeds[0]}: the three nearest clips.")
            cards = []
            for example in found_examples:
                lines = [(hit.key, f"{hit.text} ({hit.cosine:.2f})", hit.right) for hit in example.hits]
                cards.append(_card(example.key, example.text, lines, image, anchor != "text-examples"))
            page.html(f'<div class="cards">{"".join(cards)}</div>')
            page.text(examples.sentence(found_examples, anchor == "text-examples"), "caption")
            self._source(page, "crossclr")

    def _config(self, name: str) -> RunConfig:
        return self.variants[name].jobs()[0].config

    def _source(self, page: Page, name: str) -> None:
        page.source(self.study.command("report"), dump_config(self._config(name)))


def _card(
    key: str, text: str, lines: Sequence[tuple[str, str, str]], image: Callable[[str], str], with_image: bool = True
) -> str:
    """A query, with or without its image, and its answers."""
    items = []
    for other, line, right in lines:
        note = {"own": "its own", "shared": "shares a caption"}.get(right, "")
        tag = f'<span class="tag {right}">{note}</span>' if note else ""
        items.append(f"<li>{_image(image(other))}{html.escape(line)}{tag}</li>")
    query = f'<div class="query">{_image(image(key)) if with_image else ""}<span>{html.escape(text)}</span></div>'
    return f'<div class="card">{query}<ol>{"".join(items)}</ol></div>'


def _image(uri: str) -> str:
    return f'<img alt="" src="{uri}">' if uri else ""


def _seeds(study: Study) -> str:
    fewer = {"sweeps, pairs and grids": study.few_seeds, "ablation": study.ablation_seeds}
    limits = [f"{what}: the first {len(taken)}" for what, taken in fewer.items() if len(taken) < len(study.seeds)]
    return ", ".join(map(str, study.seeds)) + (f" ({'; '.join(limits)})" if limits else "")
