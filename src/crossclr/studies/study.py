"""An open study: its config, its tuned losses and its finished trainings. Every experiment works on it."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from crossclr.data import open_data
from crossclr.evaluation.baseline import embed_baseline
from crossclr.evaluation.metrics import check_selection
from crossclr.models.directions import Direction, directions_of
from crossclr.storage import sweep, write_file, write_json
from crossclr.storage.reading import read_json_object
from crossclr.studies.study_config import METHODS, StudyConfig, base_config, configure, load_study
from crossclr.studies.tables import Cell, Table
from crossclr.studies.trainings import Job, StoredTrainings, digest, open_trainer
from crossclr.studies.tuning import Tuner
from crossclr.training import RunConfig

BASELINE = "linear CCA"
STRICT, SEMANTIC = ("R@1", "R@5", "R@10"), ("nDCG", "sR@1")
STUDY, TUNED = "study.yaml", "tuned.json"


@dataclass(frozen=True)
class Variant:
    """One row of a table: a name and the config that all its seeds share."""

    name: str  # shown in tables and progress
    config: RunConfig  # of every training
    seeds: Sequence[int]  # one training for each
    keep: int = 0  # keep the weights of this many seeds, from the first on

    @property
    def directions(self) -> list[str]:
        """Keys of the directions in results: from the second modality to the first, and back."""
        return directions_of(self.config.data.modality_names)

    def jobs(self) -> list[Job]:
        """One training for each seed."""
        return [
            Job(self.name, self.config.model_copy(update={"seed": seed}), keep=number < self.keep)
            for number, seed in enumerate(self.seeds)
        ]


class Study:
    """A study in its folder; `open_study` explains the arguments. ``base`` is the config of every training."""

    def __init__(
        self,
        settings: StudyConfig,
        base: RunConfig,
        out: Path,
        seeds: Sequence[int] | None = None,
        trials: int | None = None,
        data: str = "",
        overrides: Sequence[str] = (),
        tuned_in: Path | None = None,
    ) -> None:
        self.settings, self.base, self.out = settings, base, out
        self.seeds = list(seeds or settings.seeds)
        self.few_seeds = self.seeds[: settings.few_seeds]
        self.ablation_seeds = self.seeds[: settings.ablation_seeds]
        self.data, self.overrides = data or settings.config, list(overrides)
        self.tuned_in = tuned_in
        self.names = base.data.modality_names
        self.given: dict[str, dict[str, float]] = {} if tuned_in is None else read_tuned(tuned_in)
        self.finished = StoredTrainings(out)
        self.trials = settings.trials if trials is None else trials
        self.tuner = Tuner(base, self.trials, settings.tune_by, out, settings.tune_also)

    @cached_property
    def pair(self) -> tuple[str, str]:
        """The modalities of tables, curves and figures: of more than two, the first and the first other with texts."""
        if len(self.names) == 2:
            return self.names[0], self.names[1]
        vectors = open_trainer(self.base).inputs(self.base.splits.test or "").modalities
        others = sorted(self.names[1:], key=lambda name: not vectors[name].texts)
        return self.names[0], others[0]

    @property
    def directions(self) -> list[str]:
        """Keys of the pair's directions in results: from the second modality to the first, and back."""
        return directions_of(self.pair)

    def clip_count(self) -> int:
        """The number of clips of the test split; no features are read."""
        data = open_data(self.base.data).where(split=self.base.splits.test)
        return len(data) if data.clip_starts is None else int(data.clip_starts[-1])

    @property
    def methods(self) -> list[str]:
        """The losses that are compared."""
        return list(self.settings.methods)

    def prepare_folder(self) -> None:
        """Make the study's folder, store its settings there and remove what an interrupted run left half written."""
        stored = {
            "data": self.data,
            "set": self.overrides,
            "seeds": self.seeds,
            "trials": self.trials,
            "study": self.settings.model_dump(mode="json"),
            "config": self.base.model_dump(mode="json", by_alias=True),
        }
        self.out.mkdir(parents=True, exist_ok=True)
        sweep(self.out, recursive=True)
        write_file(self.out / STUDY, yaml.safe_dump(stored, sort_keys=False, allow_unicode=True))

    def tuned(self, name: str, options: Mapping[str, Any] | None = None) -> RunConfig:
        """The config of a loss with its tuned options; ``options`` take precedence."""
        return configure(self.base, METHODS[name], {**self.options(name), **(options or {})})

    def options(self, name: str) -> dict[str, float]:
        """The tuned options of a loss, from another study where they were given."""
        if name in self.given:
            return self.given[name]
        return self.tuner.best(name).options if self.trials else {}

    def command(self, name: str) -> str:
        """The command that runs an experiment (or ``report``) in this folder."""
        words = ["crossclr", "study", *(["run", name] if name != "report" else [name])]
        words += ["--study", self.data, "--out", str(self.out)]
        words += [word for override in self.overrides for word in ("--set", override)]
        words += [] if self.tuned_in is None else ["--tuned-in", str(self.tuned_in)]
        words += ["--seeds", ",".join(map(str, self.seeds)), "--trials", str(self.trials)]
        return shlex.join(words)

    def baseline(self) -> dict[str, dict[str, float]]:
        """Metrics of CCA on the same data; computed once and stored in the study's folder."""
        splits = self.base.splits
        path = self.out / f"baseline-{digest(self.base)}.json"
        if not path.is_file():
            trainer = open_trainer(self.base)
            chosen_on = splits.validate_ if splits.validate_ != splits.test else None
            embeddings = embed_baseline(trainer.raw, splits.test or "", train=splits.train, validation=chosen_on)
            write_json(path, trainer.measure(embeddings, splits.test or ""))
        return read_json_object(path)

    def results(self, variant: Variant) -> list[dict[str, Any]]:
        """The results of every seed of a variant."""
        return [self.finished.results(job) for job in variant.jobs()]

    def values(self, variant: Variant, direction: str, metric: str) -> list[float]:
        """One metric for each seed; NaN where a training failed or the data does not have the metric."""
        tests = [results.get("test") or {} for results in self.results(variant)]
        return [float(test.get(direction, {}).get(metric, math.nan)) for test in tests]

    def ranks(self, variant: Variant, direction: str) -> np.ndarray[Any, np.dtype[np.float64]] | None:
        """(seeds, queries) ranks on the test split; None where a training stored none."""
        by_seed = [self.finished.ranks(job).get(direction) for job in variant.jobs()]
        known = [ranks for ranks in by_seed if ranks is not None]
        return np.stack(known) if len(known) == len(by_seed) else None

    def neighbours_kept(self, variant: Variant, modality: str) -> list[float]:
        """Percent of input-space neighbours that each seed keeps within a modality."""
        by_seed = [results.get("neighbours") or {} for results in self.results(variant)]
        return [float(neighbours.get(modality, math.nan)) for neighbours in by_seed]

    def score_table(
        self, name: str, title: str, heads: Sequence[str], rows: Mapping[Any, Variant], caption: str
    ) -> Table:
        """Metrics of the pair and neighbours kept, linear CCA last; keys of ``rows`` are the texts under ``heads``."""
        first = next(iter(rows.values()))
        has_texts = not math.isnan(self.values(first, self.directions[0], "nDCG")[0])
        metrics = [*STRICT, *(SEMANTIC if has_texts else ())]
        groups = [
            ("", len(heads)),
            *((words(direction), len(metrics)) for direction in self.directions),
            ("neighbours kept", len(self.names)),
        ]
        lines = []
        for texts, variant in rows.items():
            columns = product(self.directions, metrics)
            cells = [Cell.of(self.values(variant, direction, metric)) for direction, metric in columns]
            neighbours = [Cell.of(self.neighbours_kept(variant, modality)) for modality in self.names]
            lines.append([*(Cell(text=text) for text in texts), *cells, *neighbours])
        baseline = self.baseline()
        cells = [Cell.of([baseline[direction][metric]]) for direction, metric in product(self.directions, metrics)]
        blank = [*(Cell(text="") for _ in heads[1:]), *(Cell(text="–") for _ in self.names)]
        lines.append([Cell(text=BASELINE), *blank[: len(heads) - 1], *cells, *blank[len(heads) - 1 :]])
        return Table(name, title, [*heads, *metrics, *metrics, *self.names], lines, caption, groups)


def words(direction: str) -> str:
    """The words of a direction's key, such as ``text → video``."""
    return Direction.parse(direction).words


def open_study(
    data: str | Path,
    out: str | Path,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    trials: int | None = None,
    tuned_in: str | Path | None = None,
) -> Study:
    """Open a study in a folder; nothing is written before it runs.

    Args:
        data: a shipped study, or a YAML file of a study or of a run config.
        out: the folder.
        overrides: changes to the config of every training, ``a.b=value``.
        seeds: replace those of the study.
        trials: tuning runs for each loss, replacing the study's; 0 uses the config's own options.
        tuned_in: folder of another study whose tuned options are used, if tuning here would take too long.

    Raises:
        ValueError: validation or test split is missing, tuning would use the test split, or ``validation.select_by``
            names what the data does not have.
    """
    settings = load_study(data)
    base = base_config(settings, overrides)
    if base.splits.validate_ is None or base.splits.test is None:
        raise ValueError("experiments tune on a validation split and measure on a test split; name both under splits")
    tunes = (settings.trials if trials is None else trials) > 0 and tuned_in is None
    if tunes and base.splits.validate_ == base.splits.test:
        raise ValueError(
            f"splits.validate and splits.test are both {base.splits.test!r}, so tuning would use the test samples; "
            "hold some training samples out with data.split_parts, as the shipped study youcook2-spoken does"
        )
    check_selection(base.validation.select_by, base.data.modality_names)
    other = None if tuned_in is None else Path(tuned_in)
    return Study(settings, base, Path(out), seeds, trials, str(data), overrides, other)


def read_tuned(folder: Path) -> dict[str, dict[str, float]]:
    """The options of every loss that another study has tuned; fields of the config are not carried over."""
    path = folder / TUNED
    if not path.is_file():
        raise ValueError(f"{path} is missing; finish `crossclr study run losses --out {folder}` first")
    tuned = read_json_object(path)
    # A rate or a number of epochs belongs to the model that it was tuned for.
    return {loss: {name: options[name] for name in options if "." not in name} for loss, options in tuned.items()}
