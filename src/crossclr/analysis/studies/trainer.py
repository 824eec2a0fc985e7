"""The data of a study in memory, and how one run is trained and measured on it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from crossclr.evaluation import Semantics, evaluate_embeddings, kept_neighbours, pooled_split
from crossclr.evaluation.fitted_search.choice import choose_search
from crossclr.evaluation.retrieval.validation import retrieval_validator
from crossclr.features import DataConfig, open_source, parse_data_config
from crossclr.features.sources.in_memory import Form, MemorySource
from crossclr.models import Embeddings, TwoBranch, embed_source, pool_source
from crossclr.training import JointTraining, MemoryRecorder, RunConfig, fit, make_fabric
from crossclr.training.joint_training import memory_form
from crossclr.training.torch_settings import torch_settings

Results = dict[str, dict[str, float]]
BATCH = 512  # samples that are embedded at once


class Trainer:
    """The data of one config, read once; runs are trained and measured on it one after the other.

    Args:
        data: the data.
        a: how sequences of modality A are kept, see `MemorySource`.
        b: the same for modality B.
    """

    def __init__(self, data: DataConfig, a: Form = "rows", b: Form = "rows") -> None:
        self.raw = open_source(data)
        self.source = MemorySource(self.raw, a, b)
        self._semantics: dict[str, Semantics | None] = {}
        self._inputs: dict[str, Embeddings] = {}

    def inputs(self, split: str) -> Embeddings:
        """The mean input rows of a split."""
        if split not in self._inputs:
            self._inputs[split] = pooled_split(self.raw, split)
        return self._inputs[split]

    def embed(self, model: TwoBranch, split: str) -> Embeddings:
        """Embeddings of a split."""
        return embed_source(model, self.source, split, BATCH)

    def measure(self, embeddings: Embeddings, split: str) -> Results:
        """Strict and semantic scores in both directions, at each level."""
        if split not in self._semantics:
            texts = embeddings.texts
            found = Semantics.of(texts, embeddings.clip_of, len(embeddings.clip_a)) if texts else None
            self._semantics[split] = found
        results = evaluate_embeddings(embeddings, progress=False)
        semantics = self._semantics[split]
        for direction, scores in ({} if semantics is None else semantics.scores(embeddings)).items():
            results[direction].update(scores)
        return results

    def train(self, config: RunConfig) -> Trained:
        """Train one run and measure its best epoch on validation and, where the config names it, on the test split."""
        began = time.monotonic()
        with torch_settings(config.training):
            fabric = make_fabric("cpu", 1, config.training.precision)
            training = JointTraining(config, self.source, fabric)
            memory = MemoryRecorder()
            fit(training, memory, validate=retrieval_validator(self.source, config.splits.validate_, BATCH))
            training.model.load_state_dict(memory.best)
        about = {
            "epochs": len(memory.epochs),
            "best_epoch": memory.best_epoch,
            "warning": training.health.warning,
            "seconds": time.monotonic() - began,
        }
        return self.finish(training.model, config, memory.records, about)

    def finish(
        self, model: TwoBranch, config: RunConfig, records: list[dict[str, Any]], about: Mapping[str, Any]
    ) -> Trained:
        """What comes after training: fitting for search, where the config asks for it, and measuring.

        Args:
            model: with the weights of the best epoch.
            config: of the run.
            records: of its training.
            about: ``epochs``, ``best_epoch`` and ``seconds`` of its training.
        """
        began = time.monotonic()
        splits = config.splits
        with torch_settings(config.training):
            model.eval()
            results: dict[str, Any] = {
                "name": config.name,
                "seed": config.seed,
                "epochs": about["epochs"],
                "best_epoch": about["best_epoch"],
                "warning": about["warning"],
                "fitted": choose_search(
                    model,
                    config,
                    lambda split: self.embed(model, split),
                    lambda split: pool_source(model, self.source, split, BATCH),
                ),
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
                results["test"] = self.measure(embeddings, splits.test)
                results["neighbours"] = kept_neighbours(self.inputs(splits.test), embeddings)
        results["seconds"] = round(about["seconds"] + time.monotonic() - began, 2)
        return Trained(model, records, results)


class Trained:
    """A finished run in memory: the model of the best epoch, the records of training, the figures."""

    def __init__(self, model: TwoBranch, records: list[dict[str, Any]], results: dict[str, Any]) -> None:
        self.model, self.records, self.results = model, records, results


def open_trainer(config: RunConfig) -> Trainer:
    """The trainer of a config's data; the last ones are kept, so that runs on the same data share them."""
    return _trainer(
        config.data.model_dump_json(by_alias=True),
        memory_form(config.model.encoder_a),
        memory_form(config.model.encoder_b),
    )


@lru_cache(maxsize=4)
def _trainer(data: str, a: Form, b: Form) -> Trainer:
    return Trainer(parse_data_config(json.loads(data)), a, b)
