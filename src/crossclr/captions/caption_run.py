"""The folder of a captioner.

config.yaml        everything that decides it
vocabulary.json    its words
environment.json   versions, machine and command
model.json         channels of a feature row, and whether memory goes from sentence to sentence
metrics.jsonl      one line for every few steps and one for every epoch; equal runs have equal bytes
tensorboard/       the same as events, with times
last/  best/       checkpoints; ``best`` holds the averaged weights, training continues from ``last``
predictions-*.json what it wrote for a split, in MART's format
results.json       the final scores; present when training is finished
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from crossclr.captions.caption_config import CaptionConfig, CaptionDataConfig, load_caption_config
from crossclr.captions.data.vocabulary import Vocabulary
from crossclr.captions.data.word_vectors import read_word_vectors
from crossclr.captions.network.captioner import Captioner
from crossclr.storage import new_folder, restore_folder, write_file, write_json
from crossclr.training import CheckpointError, dump_config, load_checkpoint, load_weights, save_checkpoint
from crossclr.training.run_folder.journal import Journal, read_metrics
from crossclr.training.run_folder.run import environment

CONFIG, WORDS, ENVIRONMENT, MODEL, RESULTS = (
    "config.yaml",
    "vocabulary.json",
    "environment.json",
    "model.json",
    "results.json",
)


@dataclass(frozen=True)
class CaptionRun:
    """The folder of a captioner, and its config."""

    path: Path
    config: CaptionConfig

    @classmethod
    def open(cls, path: str | Path) -> CaptionRun:
        """Open an existing folder.

        Raises:
            FileNotFoundError: there is no captioner at ``path``.
        """
        path = Path(path)
        if not (path / CONFIG).is_file() or not (path / WORDS).is_file():
            inside = sorted(folder.parent.name for folder in path.glob(f"captions/*/{WORDS}"))
            hint = f"; the run has the captioners {', '.join(f'captions/{n}' for n in inside)}" if inside else ""
            raise FileNotFoundError(
                f"{path} is no folder of a captioner ({CONFIG} or {WORDS} is absent){hint}; make one with: "
                "crossclr caption train RUN"
            )
        return cls(path, load_caption_config(path / CONFIG))

    @classmethod
    def create(
        cls, path: Path, config: CaptionConfig, vocabulary: Vocabulary, model: Captioner, state: Mapping[str, Any]
    ) -> CaptionRun:
        """Make a folder with its first checkpoint; it appears complete or not at all."""
        if path.exists():
            raise FileExistsError(f"{path} is already there; continue it with --resume {path} or choose another --out")
        config = config.model_copy(update={"data": _absolute(config.data)})
        with new_folder(path) as partial:
            write_file(partial / CONFIG, dump_config(config))
            write_file(partial / WORDS, vocabulary.to_json())
            write_json(partial / ENVIRONMENT, environment())
            write_json(partial / MODEL, {"feature_dim": model.feature_dim, "recurrent": model.recurrent})
            save_checkpoint(partial / "last", model.state_dict(), state)
        return cls(path, config)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Its words."""
        return Vocabulary.load(self.path / WORDS)

    def load_model(self, which: Literal["best", "last"] = "best") -> Captioner:
        """The trained captioner, in evaluation mode on the CPU."""
        weights = load_weights(self.path / which)
        shape = json.loads((self.path / MODEL).read_text())
        model = Captioner(self.config.model, shape["feature_dim"], len(self.vocabulary), shape["recurrent"])
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise CheckpointError(f"the weights in {self.path / which} do not fit {CONFIG}: {error}") from error
        return model.eval()

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights and state to continue from."""
        return load_checkpoint(self.path / "last")

    def metrics(self) -> list[dict[str, Any]]:
        """The records of ``metrics.jsonl``."""
        return read_metrics(self.path)

    def predictions(self, part: str) -> Path:
        """Where the sentences for a split (or an embedding file) are kept."""
        return self.path / f"predictions-{Path(part).stem}.json"

    @property
    def results(self) -> dict[str, Any] | None:
        """The final scores, or None while training is not finished."""
        path = self.path / RESULTS
        if not path.is_file():
            return None
        loaded: dict[str, Any] = json.loads(path.read_text())
        return loaded

    def write_results(self, results: Mapping[str, Any]) -> None:
        """Store the final scores; this is what makes a captioner finished."""
        write_json(self.path / RESULTS, results)


class CaptionRecorder:
    """Keeps in the folder what training produces.

    Args:
        run: the folder.
        state: the state that training continues from, which tells how much of the metrics belongs to it.
    """

    def __init__(self, run: CaptionRun, state: Mapping[str, Any] | None = None) -> None:
        for name in ("last", "best"):
            restore_folder(run.path / name)
        size, step = (0, 0) if state is None else (state.get("metrics_bytes", 0), state["position"]["step"])
        self.run, self.journal = run, Journal(run.path, size, step)

    def log(self, record: Mapping[str, Any]) -> None:
        """Append to the metrics."""
        self.journal.log(record)

    def save(self, weights: Mapping[str, Tensor], averaged: Mapping[str, Tensor], state: Any, best: bool) -> None:
        """Write ``best`` before ``last``: a kill between them repeats the epoch and writes the same ``best`` again."""
        if best:
            save_checkpoint(self.run.path / "best", averaged, {"position": state["position"]})
        save_checkpoint(self.run.path / "last", weights, {**state, "metrics_bytes": self.journal.size})

    def close(self) -> None:
        """Close the metrics."""
        self.journal.close()


def build_captioner(config: CaptionConfig, feature_dim: int, vocabulary: Vocabulary, recurrent: bool) -> Captioner:
    """A new captioner, its word vectors read where the config names a file. The caller seeds torch."""
    model = Captioner(config.model, feature_dim, len(vocabulary), recurrent)
    if config.vocabulary.word_vectors is not None:
        vectors, _ = read_word_vectors(config.vocabulary.word_vectors, vocabulary, config.model.word_dim)
        with torch.no_grad():
            model.embedding.words.weight.copy_(vectors)
    return model


def _absolute(data: CaptionDataConfig) -> CaptionDataConfig:
    """The places of files and runs so that the captioner can be opened from anywhere."""

    def found(part: str | None) -> str | None:
        return part if part is None or not Path(part).exists() else str(Path(part).absolute())

    places = {"run": found(data.run), "captions": tuple(str(Path(path).absolute()) for path in data.captions)}
    parts = {
        name: found(part) if part is not None and Path(part).suffix else part
        for name, part in (("train", data.train), ("validate_", data.validate_), ("test", data.test))
    }
    return data.model_copy(update={**places, **parts})
