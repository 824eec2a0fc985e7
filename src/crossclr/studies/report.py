"""The paper's claims and what this data says about each.

The report of a study: every experiment with its tables, every figure with a sentence about this data.
"""

import datetime
import html
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
from rich.console import Console

from crossclr.evaluation.result_tables import mean_and_deviation
from crossclr.models import Embeddings
from crossclr.storage import write_file
from crossclr.studies import examples, maps, plots
from crossclr.studies.examples import image_uri
from crossclr.studies.experiments import COMPARED, EXPERIMENTS, TABLES, ModalityPairs, run_experiments
from crossclr.studies.loss_experiments import Ablation, Losses, Sweeps
from crossclr.studies.maps import PairCosines
from crossclr.studies.plots import Page, save_figures
from crossclr.studies.significance import PairedTest, paired
from crossclr.studies.study import Study, words
from crossclr.studies.study_config import METHODS, loss_option
from crossclr.studies.tables import Cell, Table
from crossclr.studies.trainings import open_trainer
from crossclr.training import RunConfig, dump_config

PARTS = {
    "intra-modal term": "Does the intra-modal term help at a fixed temperature?",
    "pruning": "Does pruning influential samples help?",
    "weighting": "Does weighting by connectivity help?",
}


@dataclass(frozen=True)
class Claim:
    """A claim and what this data says about it."""

    question: str
    answer: str
    evidence: str


def claims(study: Study, similarities: Sequence[PairCosines]) -> list[Claim]:
    """All claims; the experiments losses, ablation and sweeps must be finished."""
    gain = Ablation().gain
    answers = [
        Claim(question, *_verdict([(f"{words(d)} {m}", gain(study, part, d, m)) for d, m in _main(study)]))
        for part, question in PARTS.items()
    ]
    return [*answers, *_queue(study), *_similarities(similarities), *_neighbours(study)]


def _main(study: Study) -> list[tuple[str, str]]:
    """The directions and metrics that answer a question, the decisive one first."""
    there, back = study.directions
    return [(there, "R@1"), (there, "nDCG"), (back, "R@1")]


def _verdict(tests: Sequence[tuple[str, PairedTest]]) -> tuple[str, str]:
    """An answer from the first metric, unless another one contradicts it, and all differences in words."""
    known = [
        (name, test) for name, test in tests if test.difference == test.difference
    ]  # NaN: the data lacks the metric
    first = known[0][1]
    answer = "yes" if first.difference > 0 else "no, it hurts"
    if not first.p < 0.05:
        answer = "no clear effect"
    elif any(test.p < 0.05 and test.difference * first.difference < 0 for _, test in known):
        answer = "mixed"
    return answer, "; ".join(f"{name} {test.difference:+.2f} ({test.p_in_words})" for name, test in known)


def _queue(study: Study) -> list[Claim]:
    sizes = sorted(study.settings.sweeps.get("queue_size", []))
    if len(sizes) < 2:
        return []
    none, long = (Sweeps().variant(study, "queue_size", size) for size in (sizes[0], sizes[-1]))
    compared = [
        (f"{words(d)} {m}", paired(study.values(long, d, m), study.values(none, d, m), f"{sizes[0]}"))
        for d, m in _main(study)
    ]
    return [Claim(f"Does a larger queue help ({sizes[-1]:,} against {sizes[0]:,} samples)?", *_verdict(compared))]


def _similarities(compared: Sequence[PairCosines]) -> list[Claim]:
    ours = [each for each in compared if each.loss.startswith("CrossCLR")]
    rivals = [each for each in compared if each not in ours]
    if not ours or not rivals:
        return []
    crossclr = ours[0]
    lower = all(crossclr.positive.variance < each.positive.variance for each in rivals)
    higher = all(crossclr.negative.mean > each.negative.mean for each in rivals)
    variances = ", ".join(f"{each.loss} {each.positive.variance:.4f}" for each in compared)
    means = ", ".join(f"{each.loss} {each.negative.mean:+.3f}" for each in compared)
    return [
        Claim("Is the variance of positive pairs lower than with the rivals?", "yes" if lower else "no", variances),
        Claim("Do negative pairs shift towards positive scores?", "yes" if higher else "no", f"mean cosine: {means}"),
    ]


def _neighbours(study: Study) -> list[Claim]:
    variants = {variant.name: variant for variant in Losses().variants(study)}
    ours, rival = METHODS["crossclr"].title, METHODS["ntxent"].title
    if ours not in variants or rival not in variants:
        return []
    compared = [
        (
            f"within {name}",
            paired(study.neighbours_kept(variants[ours], name), study.neighbours_kept(variants[rival], name), rival),
        )
        for name in study.names
    ]
    question = f"Does the joint space keep more input-space neighbours than with {rival} (kept@10, %)?"
    return [Claim(question, *_verdict(compared))]


def claims_table(answers: Sequence[Claim]) -> Table:
    """The claims as a table."""
    rows = [[Cell(text=text) for text in (claim.question, claim.answer, claim.evidence)] for claim in answers]
    caption = (
        "An answer is yes or no only if the paired t-test of its first metric over seeds has p < 0.05, and mixed if "
        "another metric contradicts it with p < 0.05. Answers on similarities of pairs use one training of each loss."
    )
    return Table("claims", "The paper's claims on this data", ["claim", "on this data", "evidence"], rows, caption)


REPORT, FIGURES = "report.html", "figures"
MAPS = ("crossclr", "ntxent")  # whose joint spaces are drawn


def write_report(study: Study, jobs: int = 1, console: Console | None = None) -> Path:
    """Run the experiments that are missing (``jobs`` at a time), draw all figures and write ``report.html``."""
    by_experiment = run_experiments(list(EXPERIMENTS), study, jobs, console)
    if console is not None:
        console.print("figures", highlight=False)
    page = Page(f"CrossCLR on {study.base.name}")
    drawn = ReportFigures(study)
    _head(page, study)
    answers = claims_table(claims(study, drawn.similarities()))
    answers.write(study.out / TABLES)
    page.section("claims", "The paper's claims", "What this data says about each claim; details follow below.")
    _table(page, answers, words=True)
    page.source(study.command("report"), dump_config(study.base))
    for name, tables in by_experiment.items():
        _experiment(page, study, name, tables)
    drawn.add(page)
    from plotly.offline import get_plotlyjs

    path = study.out / REPORT
    write_file(path, page.render(get_plotlyjs()))
    save_figures(page.figures, study.out / FIGURES, get_plotlyjs())
    return path


def _head(page: Page, study: Study) -> None:
    base, trainer = study.base, open_trainer(study.base)
    sizes = []
    for split in (base.splits.train, base.splits.validate_, base.splits.test):
        counts = [f"{name} {len(vectors.rows):,}" for name, vectors in trainer.inputs(split or "").modalities.items()]
        sizes.append(f"{split}: {len(trainer.inputs(split or '').clip_keys):,} clips ({', '.join(counts)})")
    shown = f"{' and '.join(study.pair)}; the section {ModalityPairs.title} has all {len(study.names)} modalities"
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
        grids = {METHODS[method].title: ModalityPairs().picture(study, method) for method in COMPARED}
        pictures = "".join(f"<div><h3>{title}</h3>{grid}</div>" for title, grid in grids.items())
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
                metrics[f"{words(main)} {metric}"] = mean_and_deviation(values)
        rows.append((variant.name, METHODS[name].ours, metrics))
    return plots.scores(rows)


class ReportFigures:
    """The figures of a report, computed from trainings whose weights were kept."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.variants = dict(zip(study.methods, Losses().variants(study), strict=True))
        self._embedded: dict[str, Embeddings] = {}
        self._similarities: list[maps.PairCosines] = []

    def embeddings(self, name: str) -> Embeddings:
        """The study's pair on the test split, embedded by the first seed of a loss."""
        if name not in self._embedded:
            job = self.variants[name].jobs()[0]
            model = self.study.finished.open(job).load_model()
            joint = open_trainer(job.config).embed(model, job.config.splits.test or "")
            self._embedded[name] = joint.only(self.study.pair)
        return self._embedded[name]

    def inputs(self, split: str) -> Embeddings:
        """The mean input rows of the study's pair."""
        return open_trainer(self.study.base).inputs(split).only(self.study.pair)

    def similarities(self) -> list[maps.PairCosines]:
        """Similarities of the losses that the study names."""
        if not self._similarities:
            shown = [name for name in self.study.settings.histograms if name in self.variants]
            self._similarities = [maps.similarities(METHODS[n].title, self.embeddings(n)) for n in shown]
        return self._similarities

    def add(self, page: Page) -> None:
        """Add all figures to a page."""
        study = self.study
        seed = f"seed {study.seeds[0]}, split {study.base.splits.test}"
        page.section("histograms", "Similarities", f"Cosines in the joint space after training ({seed}).")
        similarities = self.similarities()
        page.plot(plots.histograms(similarities), maps.similarity_sentence(similarities))
        self._source(page, study.settings.histograms[-1])
        trainer = open_trainer(study.base)
        image = partial(image_uri, trainer.raw)
        page.section("map", "The joint space", f"t-SNE of clips and texts ({seed}).")
        test, train = study.base.splits.test or "", study.base.splits.train
        shown = [name for name in MAPS if name in self.variants]
        points = maps.choose_points(self.embeddings(shown[0]), self.inputs(test))
        drawn = [maps.joint_map(METHODS[name].title, self.embeddings(name), points) for name in shown]
        page.plot([plots.space(joint_map, image) for joint_map in drawn], maps.map_sentence(drawn))
        self._source(page, shown[0])
        ours = self._config("crossclr")
        pruning = (loss_option(ours, name) for name in ("prune_threshold", "prune_by", "min_keep"))
        page.section("graph", "Connectivity", f"Inputs of modality {study.pair[1]}, split {train}.")
        network = maps.connectivity_graph(self.inputs(train), *pruning)
        page.plot(plots.network(network), maps.graph_sentence(network))
        self._source(page, "crossclr")
        if self.inputs(train)[study.pair[1]].texts:
            self._texts(page, image)

    def _texts(self, page: Page, image: Callable[[str], str]) -> None:
        study = self.study
        samples = maps.influential_samples(self.inputs(study.base.splits.train))
        page.section("influential", "Influential samples", "The most connected texts, each with its nearest texts.")
        cards = []
        for sample in samples:
            lines = [(key, f"{text} ({cosine:.2f})", "") for key, text, cosine in sample.nearest]
            cards.append(_card(sample.key, f"{sample.text} (C {sample.connectivity:.2f})", lines, image))
        page.html(f'<div class="cards">{"".join(cards)}</div>')
        mean = float(np.mean([cosine for sample in samples for _, _, cosine in sample.nearest]))
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
