"""How a captioner learns: steps, averaged weights, the best epoch by the scores of what it writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from crossclr.captions.caption_config import CaptionConfig
from crossclr.captions.data.training_sentences import TrainingBatch, TrainingSentences
from crossclr.captions.learning.bert_adam import BertAdam, parameter_groups, warmup_linear
from crossclr.captions.learning.moving_average import MovingAverage
from crossclr.captions.network.captioner import Captioner
from crossclr.training import Interrupted, Schedule, TrainingError
from crossclr.training.run_folder.checkpoint import random_state, set_random_state
from crossclr.training.stopping import stop_on_signal

Validate = Callable[[Captioner], Mapping[str, float | None]]


class Recorder(Protocol):
    """Whoever keeps what training produces."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take one record of metrics."""

    def save(self, weights: Mapping[str, Tensor], averaged: Mapping[str, Tensor], state: Any, best: bool) -> None:
        """Keep a state to continue from; ``best`` where the averaged weights are also the best so far."""


class Reporter(Protocol):
    """Whoever shows progress to a person."""

    def step(self, record: Mapping[str, Any], clips: int) -> None:
        """One step was taken."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over."""


@dataclass
class Position:
    """Where training stands."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)


def smoothed_loss(logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    """Σ KL(target ‖ softmax): 1 − smoothing on the right word, the rest spread evenly over all others.

    Args:
        logits: (count, words).
        targets: (count,) the right words.
        smoothing: share of the others.

    Example:
        >>> float(smoothed_loss(torch.zeros(1, 4), torch.tensor([2]), 0.0))  # log 4
        1.3862943649291992
    """
    words = logits.shape[1]
    share = smoothing / (words - 1)
    # torch spreads over all words, the right one included: the same target with a slightly larger share
    total = functional.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing * words / (words - 1))
    entropy = -sum(p * math.log(p) * n for p, n in ((1 - smoothing, 1), (share, words - 1)) if p > 0)
    return total - entropy * len(targets)


class CaptionTraining:
    """All that changes while a captioner learns.

    Args:
        config: how.
        model: the captioner.
        sentences: what it learns from.
    """

    def __init__(self, config: CaptionConfig, model: Captioner, sentences: TrainingSentences) -> None:
        self.config, self.model, self.sentences = config, model, sentences
        settings, moves = config.training, config.optimiser
        self.optimiser = BertAdam(
            parameter_groups(model, moves.weight_decay),
            lr=moves.learning_rate,
            betas=moves.betas,
            eps=moves.epsilon,
            max_norm=moves.gradient_clip,
        )
        self.average = MovingAverage(model, settings.ema_decay)
        self.schedule = Schedule(early_stop=settings.early_stop)
        self.position = Position()
        self.batches_per_epoch = sentences.batches_per_epoch(settings.batch_size)
        self.steps = self.batches_per_epoch * settings.epochs

    def loss(self, batch: TrainingBatch) -> tuple[Tensor, int]:
        """The summed loss of a batch, and over how many words."""
        hidden = self.model(batch.features, batch.rows, batch.words, batch.lengths, batch.active)
        taught, targets = batch.targets()
        logits = self.model.logits(hidden[:, :-1][taught])  # only where a word is to be guessed
        return smoothed_loss(logits, targets, self.config.training.label_smoothing), len(targets)

    def step(self, batch: TrainingBatch) -> dict[str, float]:
        """One step; gives the loss of a word and the rate."""
        position = self.position
        rate = self.config.optimiser.learning_rate * warmup_linear(
            position.step / self.steps, self.config.optimiser.warmup
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.model.train()
        loss, words = self.loss(batch)
        value = float(loss.detach()) / words
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {position.step} (epoch {position.epoch}); lower optimiser.learning_rate"
            )
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimiser.gradient_clip)
        self.optimiser.step()
        self.average.update(position.step)
        position.sums["loss"] = position.sums.get("loss", 0.0) + value
        position.batch += 1
        position.step += 1
        return {"loss": value, "learning_rate": rate}

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights."""
        return {
            "position": asdict(self.position),
            "schedule": self.schedule.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "average": self.average.weights,
            "random": random_state(),
        }

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        self.model.load_state_dict(dict(weights))
        self.optimiser.load_state_dict(state["optimiser"])
        self.average.load(state["average"])
        self.schedule.load_state_dict(state["schedule"])
        self.position = Position(**state["position"])
        set_random_state(state["random"])


def fit(
    training: CaptionTraining, recorder: Recorder, reporter: Reporter | None = None, validate: Validate | None = None
) -> None:
    """Train to the end, from wherever ``training`` stands.

    Args:
        training: what is trained.
        recorder: keeps metrics and states.
        reporter: shows progress.
        validate: scores the model with its averaged weights; None: the last epoch is the best.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when the state has been kept.
    """
    settings, checking, position = training.config.training, training.config.validation, training.position

    def keep(best: bool) -> None:
        recorder.save(training.model.state_dict(), training.average.weights, training.state_dict(), best)

    with stop_on_signal() as stop_asked:
        for epoch in range(position.epoch, settings.epochs):
            if training.schedule.stops_before(epoch):
                break
            batches = training.sentences.batches(training.config.seed, epoch, settings.batch_size, position.batch)
            for batch in batches:
                record = {"kind": "step", "epoch": epoch, "step": position.step + 1, **training.step(batch)}
                if reporter is not None:
                    reporter.step(record, clips=len(batch.rows))
                if position.step % settings.log_every == 0:
                    recorder.log(record)
                if stop_asked():
                    keep(best=False)
                    raise Interrupted
                if settings.checkpoint_every is not None and position.step % settings.checkpoint_every == 0:
                    keep(best=False)
            record = {"kind": "epoch", "epoch": epoch, "step": position.step}
            record["loss"] = position.sums.get("loss", 0.0) / max(1, position.batch)
            record["learning_rate"] = training.optimiser.param_groups[0]["lr"]
            best, last = False, epoch == settings.epochs - 1
            due = epoch >= checking.first_epoch and (epoch - checking.first_epoch) % checking.every == 0
            wanted = due or epoch + 1 == settings.epochs  # the end of a schedule is often its best
            if validate is not None and (wanted or last):
                best = _measure(training, validate, record)
            recorder.log(record)
            if reporter is not None:
                reporter.epoch(record)
            position.epoch, position.batch, position.sums = epoch + 1, 0, {}
            keep(best=best)
            if stop_asked() and not last:
                raise Interrupted
        if training.schedule.best_epoch is None:
            keep(best=True)


def _measure(training: CaptionTraining, validate: Validate, record: dict[str, Any]) -> bool:
    """Score the averaged weights; True where they are the best so far."""
    with training.average.in_place():
        found = validate(training.model)
    name = training.config.validation.select_by
    score = found.get(name)
    if score is None:
        raise TrainingError(f"validation.select_by is {name}, which could not be computed; choose CIDEr instead")
    best = training.schedule.observe(record["epoch"], score)
    record.update(score=score, best=best, validation={key: value for key, value in found.items() if value is not None})
    return best
