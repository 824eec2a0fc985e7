"""The data of a study in memory, and how a training on it is run and measured."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from crossclr.evaluation import Semantics, kept_neighbours, pooled_split
from crossclr.evaluation.retrieval.metrics import embedding_ranks, rank_metrics
from crossclr.evaluation.retrieval.validation import retrieval_validator
from crossclr.features import DataConfig, open_source, parse_data_config
from crossclr.features.sources.in_memory import Form, MemorySource
from crossclr.models import Embeddings, JointModel, embed_source
from crossclr.training import JointTraining, MemoryRecorder, RunConfig, fit, make_fabric
from crossclr.training.joint_training import memory_forms
from crossclr.training.torch_settings import torch_settings

Results = dict[str, dict[str, float]]
Ranks = Mapping[str, Tensor]  # by direction, (queries,)
BATCH = 512  # samples that are embedded at once


class Trainer:
    """The data of one config, read once; trainings on it run one after the other. See `MemorySource` for ``forms``."""

    def __init__(self, data: DataConfig, forms: Mapping[str, Form] | None = None) -> None:
        self.raw = open_source(data)
        self.source = MemorySource(self.raw, forms)
        self._semantics: dict[str, Semantics | None] = {}
        self._inputs: dict[str, Embeddings] = {}

    def inputs(self, split: str) -> Embeddings:
        """The mean input rows of a split."""
        if split not in self._inputs:
            self._inputs[split] = pooled_split(self.raw, split)
        return self._inputs[split]

    def embed(self, model: JointModel, split: str) -> Embeddings:
        """Embeddings of a split."""
        return embed_source(model, self.source, split, BATCH)

    def measure(self, embeddings: Embeddings, split: str, ranks: Ranks | None = None) -> Results:
        """Strict and meaning-aware metrics in all directions, at each level; ``ranks`` if they are known."""
        if split not in self._semantics:
            self._semantics[split] = Semantics.of(embeddings)
        ranks = ranks or embedding_ranks(embeddings, progress=False)
        results = {direction: rank_metrics(found) for direction, found in ranks.items()}
        semantics = self._semantics[split]
        for direction, scores in ({} if semantics is None else semantics.scores(embeddings)).items():
            results[direction].update(scores)
        return results

    def train(self, config: RunConfig) -> Trained:
        """Train, then measure the best epoch on validation and, if the config names one, on the test split."""
        began = time.monotonic()
        with torch_settings(config.training):
            fabric = make_fabric("cpu", 1, config.training.precision)
            training = JointTraining(config, self.source, fabric)
            memory = MemoryRecorder()
            fit(training, memory, validate=retrieval_validator(self.source, config.splits.validate_, BATCH))
            training.model.load_state_dict(memory.best)
            return self._measured(training.model.eval(), config, memory, training.health.warning, began)

    def _measured(
        self, model: JointModel, config: RunConfig, memory: MemoryRecorder, warning: str | None, began: float
    ) -> Trained:
        splits, ranks = config.splits, {}
        results: dict[str, Any] = {
            "name": config.name,
            "seed": config.seed,
            "epochs": len(memory.epochs),
            "best_epoch": memory.best_epoch,
            "warning": warning,
            "split": splits.test,
            "validation": None,
            "test": None,
            "neighbours": None,
            "cca_baseline": None,
        }
        if splits.validate_ is not None:
            results["validation"] = self.measure(self.embed(model, splits.validate_), splits.validate_)
        if splits.test is not None:
            embeddings = self.embed(model, splits.test)
            ranks = embedding_ranks(embeddings, progress=False)
            results["test"] = self.measure(embeddings, splits.test, ranks)
            results["neighbours"] = kept_neighbours(self.inputs(splits.test), embeddings)
        results["seconds"] = round(time.monotonic() - began, 2)
        return Trained(model, memory.records, results, ranks)


@dataclass(frozen=True)
class Trained:
    """A finished training in memory."""

    model: JointModel  # of the best epoch
    records: list[dict[str, Any]]  # of the training
    results: dict[str, Any]  # as in ``results.json``
    ranks: Ranks  # of every query of the test split, by direction


def open_trainer(config: RunConfig) -> Trainer:
    """The trainer of a config's data; the last four are cached, so that trainings on the same data share them."""
    forms = memory_forms(config.model, config.data.modality_names)
    return _trainer(config.data.model_dump_json(by_alias=True), tuple(forms.items()))


@lru_cache(maxsize=4)
def _trainer(data: str, forms: tuple[tuple[str, Form], ...]) -> Trainer:
    return Trainer(parse_data_config(json.loads(data)), dict(forms))
