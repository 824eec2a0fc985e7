"""What every experiment of a study works with: its config, its tuned losses, its finished runs."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.analysis.studies.compared_losses import METHODS, configure
from crossclr.analysis.studies.stored_trainings import Finished, Job, digest
from crossclr.analysis.studies.study import StudyConfig
from crossclr.analysis.studies.trainer import open_trainer
from crossclr.analysis.studies.tuning import Tuner
from crossclr.analysis.tables import Cell
from crossclr.evaluation import embed_baseline
from crossclr.storage import write_json
from crossclr.training import RunConfig

STRICT, SEMANTIC = ("R@1", "R@5", "R@10"), ("nDCG", "sR@1")
TUNED = "tuned.json"
B_TO_A, A_TO_B = "clip/b->a", "clip/a->b"


@dataclass(frozen=True)
class Variant:
    """One row of a table: a name and the config that all its seeds share."""

    name: str
    config: RunConfig
    seeds: Sequence[int]
    keep: int = 0

    def jobs(self) -> list[Job]:
        """A run for each seed; of the first ``keep`` of them the weights are kept."""
        return [
            Job(self.name, self.config.model_copy(update={"seed": seed}), keep=number < self.keep)
            for number, seed in enumerate(self.seeds)
        ]


class Context:
    """A study that is being worked on.

    Args:
        study: what to vary.
        base: the config that every run starts from.
        out: the study's folder.
        seeds: seeds of the tables; left out, the study's own.
        trials: tuning runs for each loss; left out, the study's own.
        data: what the user called the study, for the commands that the report shows.
        overrides: what the user changed of the config, likewise.
        tuned_in: folder of another study; options of losses that were tuned there are taken as they are.
    """

    def __init__(
        self,
        study: StudyConfig,
        base: RunConfig,
        out: Path,
        seeds: Sequence[int] | None = None,
        trials: int | None = None,
        data: str = "",
        overrides: Sequence[str] = (),
        tuned_in: Path | None = None,
    ) -> None:
        self.study, self.base, self.out = study, base, out
        self.seeds = list(seeds or study.seeds)
        self.few_seeds = self.seeds[: study.few_seeds]
        self.ablation_seeds = self.seeds[: study.ablation_seeds]
        self.data, self.overrides = data or study.config, list(overrides)
        self.tuned_in = tuned_in
        self.given: dict[str, dict[str, float]] = {} if tuned_in is None else read_tuned(tuned_in)
        self.finished = Finished(out)
        self.trials = study.trials if trials is None else trials
        self.tuner = Tuner(base, self.trials, study.tune_by, out)

    @property
    def methods(self) -> list[str]:
        """The losses that this data can be trained with."""
        return list(self.study.methods)

    def tuned(self, name: str, options: Mapping[str, Any] | None = None) -> RunConfig:
        """A loss with its tuned options, and others over them."""
        return configure(self.base, METHODS[name], {**self.options(name), **(options or {})})

    def options(self, name: str) -> dict[str, float]:
        """The tuned options of a loss: those of another study where they were given, else found here."""
        name = tuned_name(name)
        if not self.trials:
            return self.given.get(name, {})
        return self.given[name] if name in self.given else self.tuner.best(name).options

    def command(self, name: str) -> str:
        """The command that makes an experiment (or ``report``) in this folder."""
        words = ["crossclr", *(["experiment", name] if name != "report" else [name])]
        words += ["--data", self.data, "--out", str(self.out)]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += [] if self.tuned_in is None else ["--tuned-in", str(self.tuned_in)]
        words += ["--seeds", ",".join(map(str, self.seeds)), "--trials", str(self.trials)]
        return shlex.join(words)

    def baseline(self) -> dict[str, dict[str, float]]:
        """The figures of CCA on the same data, in closed form; kept in the study's folder."""
        splits = self.base.splits
        path = self.out / f"baseline-{digest(self.base)}.json"
        if not path.is_file():
            trainer = open_trainer(self.base)
            chosen_on = splits.validate_ if splits.validate_ != splits.test else None
            embeddings = embed_baseline(trainer.raw, splits.test or "", train=splits.train, validation=chosen_on)
            write_json(path, trainer.measure(embeddings, splits.test or ""))
        found: dict[str, dict[str, float]] = json.loads(path.read_text())
        return found

    def results(self, variant: Variant) -> list[dict[str, Any]]:
        """The figures of every seed of a variant."""
        return [self.finished.results(job) for job in variant.jobs()]

    def values(self, variant: Variant, direction: str, metric: str) -> list[float]:
        """One figure for each seed; NaN where a run failed or the data has no such figure."""
        return [figure(results, direction, metric) for results in self.results(variant)]

    def kept(self, variant: Variant, side: str) -> list[float]:
        """Percent of input-space neighbours that each seed keeps within a modality."""
        found = [results.get("neighbours") or {} for results in self.results(variant)]
        return [float(kept.get(side, math.nan)) for kept in found]

    def arrow(self, direction: str) -> str:
        """A direction in the words of the study."""
        a, b = self.study.a, self.study.b
        return f"{b} → {a}" if direction == B_TO_A else f"{a} → {b}"

    def score_columns(self, variants: Sequence[Variant]) -> tuple[list[str], list[tuple[str, int]], list[list[Cell]]]:
        """Heads, groups and cells of the scores in both directions and of the neighbours kept."""
        has_texts = not math.isnan(self.values(variants[0], B_TO_A, "nDCG")[0])
        metrics = [*STRICT, *(SEMANTIC if has_texts else ())]
        heads = [*metrics, *metrics, self.study.a, self.study.b]
        groups = [(self.arrow(B_TO_A), len(metrics)), (self.arrow(A_TO_B), len(metrics)), ("neighbours kept", 2)]
        rows = []
        for variant in variants:
            cells = [Cell.of(self.values(variant, d, m)) for d in (B_TO_A, A_TO_B) for m in metrics]
            rows.append([*cells, *(Cell.of(self.kept(variant, side)) for side in ("a", "b"))])
        return heads, groups, rows


def read_tuned(folder: Path) -> dict[str, dict[str, float]]:
    """The tuned options of every loss that a study has tuned.

    Raises:
        ValueError: the folder holds no such study, or it has not finished its experiment ``losses``.
    """
    path = folder / TUNED
    if not path.is_file():
        raise ValueError(f"{path} is not there: finish `crossclr experiment losses --out {folder}` first")
    found: dict[str, dict[str, float]] = json.loads(path.read_text())
    return found


def tuned_name(name: str) -> str:
    """The method whose tuning a method goes by: its own, or that of the one that it is trained as.

    Example:
        >>> tuned_name("clip"), tuned_name("clip-fitted")
        ('clip', 'clip')
    """
    return METHODS[name].tuned_as or name


def figure(results: Mapping[str, Any], direction: str, metric: str) -> float:
    """One figure of a finished run."""
    scores = (results.get("test") or {}).get(direction, {})
    return float(scores.get(metric, math.nan))
