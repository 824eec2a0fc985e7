"""The paper's claims and what this data says about each."""

from collections.abc import Sequence
from dataclasses import dataclass

from crossclr.analysis.experiments.ablation import Ablation
from crossclr.analysis.experiments.losses import Losses
from crossclr.analysis.experiments.sweeps import Sweeps
from crossclr.analysis.figures.similarities import Similarities
from crossclr.analysis.significance import Comparison, paired
from crossclr.analysis.studies.compared_losses import METHODS
from crossclr.analysis.studies.open_study import Study, words
from crossclr.analysis.tables import Cell, Table

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


def claims(study: Study, found: Sequence[Similarities]) -> list[Claim]:
    """All claims; the experiments losses, ablation and sweeps must be finished."""
    gain = Ablation().gain
    answers = [
        Claim(question, *_verdict([(f"{words(d)} {m}", gain(study, part, d, m)) for d, m in _main(study)]))
        for part, question in PARTS.items()
    ]
    return [*answers, *_queue(study), *_similarities(found), *_neighbours(study)]


def _main(study: Study) -> list[tuple[str, str]]:
    """The directions and metrics that answer a question, the decisive one first."""
    there, back = study.directions
    return [(there, "R@1"), (there, "nDCG"), (back, "R@1")]


def _verdict(found: Sequence[tuple[str, Comparison]]) -> tuple[str, str]:
    """An answer from the first metric, unless another one contradicts it, and all differences in words."""
    known = [(name, one) for name, one in found if one.difference == one.difference]  # NaN: the data lacks the metric
    first = known[0][1]
    answer = "yes" if first.difference > 0 else "no, it hurts"
    if not first.p < 0.05:
        answer = "no clear effect"
    elif any(one.p < 0.05 and one.difference * first.difference < 0 for _, one in known):
        answer = "mixed"
    return answer, "; ".join(f"{name} {one.difference:+.2f} ({one.p_in_words})" for name, one in known)


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


def _similarities(found: Sequence[Similarities]) -> list[Claim]:
    ours = [one for one in found if one.loss.startswith("CrossCLR")]
    rivals = [one for one in found if one not in ours]
    if not ours or not rivals:
        return []
    crossclr = ours[0]
    lower = all(crossclr.positive.variance < one.positive.variance for one in rivals)
    higher = all(crossclr.negative.mean > one.negative.mean for one in rivals)
    variances = ", ".join(f"{one.loss} {one.positive.variance:.4f}" for one in found)
    means = ", ".join(f"{one.loss} {one.negative.mean:+.3f}" for one in found)
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
        (f"within {name}", paired(study.kept(variants[ours], name), study.kept(variants[rival], name), rival))
        for name in study.names
    ]
    question = f"Does the joint space keep more input-space neighbours than with {rival} (kept@10, %)?"
    return [Claim(question, *_verdict(compared))]


def claims_table(found: Sequence[Claim]) -> Table:
    """The claims as a table."""
    rows = [[Cell(text=text) for text in (one.question, one.answer, one.evidence)] for one in found]
    caption = (
        "An answer is yes or no only if the paired t-test of its first metric over seeds has p < 0.05, and mixed if "
        "another metric contradicts it with p < 0.05. Answers on similarities of pairs use one training of each loss."
    )
    return Table("claims", "The paper's claims on this data", ["claim", "on this data", "evidence"], rows, caption)
