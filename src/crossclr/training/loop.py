"""The training loop: read a batch, embed it, take a step; measure, choose, keep."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from crossclr.features import Batch, Source, batches
from crossclr.features.batching.epochs import bounds
from crossclr.features.sources.in_memory import Form, MemorySource
from crossclr.losses.sums.across_processes import shared_work
from crossclr.models import MLPEncoderConfig, TransformerEncoderConfig, TwoBranch, build_model
from crossclr.models.fit_norms import fit_standard_norms
from crossclr.training.config.run_config import FitConfig
from crossclr.training.gradient_caching import backward_in_parts
from crossclr.training.objective import Objective
from crossclr.training.optimisation.optimiser import build_optimiser, build_schedule
from crossclr.training.processes import gather, part
from crossclr.training.run_folder.checkpoint import random_state, set_random_state
from crossclr.training.stopping import stop_on_signal

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Metrics = dict[str, float]
Validate = Callable[[TwoBranch], Metrics]


class TrainingError(ValueError):
    """Training cannot go on; the message says what to change."""


class Interrupted(Exception):  # noqa: N818 (a wish of the user, no error)
    """The user asked to stop; the state has been kept."""


class Recorder(Protocol):
    """Whoever keeps what training produces: a run folder, or memory."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Take one record of metrics."""

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: bool) -> None:
        """Keep a state to continue from; ``best`` where its weights are also the best so far.

        It may be written later, but is taken down at once: training goes on and changes it.
        """

    def flush(self) -> None:
        """Wait until everything is kept; a fault in keeping it comes up here at the latest."""


class Reporter(Protocol):
    """Whoever shows progress to a person."""

    def step(self, record: Mapping[str, Any], clips: int) -> None:
        """One step was taken."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over."""


@dataclass
class Position:
    """Where training stands: the next batch of an epoch, and the sums of what this epoch has shown so far."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)


class Training:
    """All that changes while training: weights, moments, queue, schedule, random states and position.

    Args:
        config: how to train.
        source: its data.
        fabric: device, precision and processes.
    """

    def __init__(self, config: FitConfig, source: Source, fabric: Fabric) -> None:
        seed_everything(config.seed)
        self.config, self.source, self.fabric = config, source, fabric
        if config.loss.global_ is not None and not source.two_level:
            raise TrainingError(
                "loss.global needs data of two levels (clips within videos), but this data has one; set it to null"
            )
        self.two_level = source.two_level and config.loss.two_level
        self.model = build_model(config.model, source.dims, self.two_level)
        self.objective = Objective(config.loss).to(fabric.device)
        self.optimiser = build_optimiser(config.optimiser, self.model, self.objective)
        self.schedule = build_schedule(config.schedule, config.training.epochs)
        self.position = Position()
        self.inputs = inputs_of(source, config)
        fit_standard_norms(self.model, self.inputs, config.splits.train)
        self.samples = len(source.keys(config.splits.train))
        self.batches_per_epoch = math.ceil(self.samples / config.training.batch_size)
        self.clips = 0  # of the last step, over all processes
        self._wrapped, self._wrapped_optimiser = fabric.setup(self.model, self.optimiser)
        if fabric.global_rank:  # weights begin equal everywhere, dropout must not
            torch.manual_seed(config.seed + 1_000_003 * fabric.global_rank)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """This process's share of the batches of an epoch, from ``start`` on."""
        config, fabric = self.config, self.fabric
        size, workers = config.training.batch_size, config.training.workers
        share = fabric.global_rank, fabric.world_size
        if isinstance(self.inputs, MemorySource):
            return self.inputs.batches(config.splits.train, size, config.seed, epoch, start, share)
        return batches(self.source, config.splits.train, size, config.seed, epoch, start, workers=workers, share=share)

    def read_first_batch(self) -> Batch:
        """The first batch of the run, to see that the data can be read."""
        stream = self.batches(0)
        try:
            return next(stream)
        except StopIteration:
            raise TrainingError(f"the training split {self.config.splits.train!r} has no samples") from None
        finally:
            _close(stream)

    def step(self, batch: Batch) -> dict[str, float]:
        """One step of all processes; gives the loss and what is worth showing of it.

        Args:
            batch: this process's share.
        """
        position, settings, fabric = self.position, self.config.training, self.fabric
        rate = self.config.optimiser.learning_rate * self.schedule.factor(
            position.epoch, position.batch / self.batches_per_epoch
        )
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        batch = batch.to(fabric.device)
        self._wrapped.train()
        self.objective.train()
        self._wrapped_optimiser.zero_grad()
        largest = -(-self._videos // fabric.world_size)  # the same way for all processes, whatever their share
        if settings.micro_batch is None or settings.micro_batch >= largest:
            loss = self._loss(self._wrapped(batch), batch)
            fabric.backward(loss)
        else:
            starts = range(0, len(batch.keys), settings.micro_batch)
            parts = [part(batch, start, min(start + settings.micro_batch, len(batch.keys))) for start in starts]
            loss = backward_in_parts(fabric, self._wrapped, parts, lambda outputs: self._loss(outputs, batch))
        value = float(loss.detach())
        if settings.gradient_clip is not None:
            fabric.clip_gradients(self._wrapped, self._wrapped_optimiser, max_norm=settings.gradient_clip)
        self._wrapped_optimiser.step()
        shown = {"loss": value, **self.objective.parts}
        for name, number in shown.items():
            position.sums[name] = position.sums.get(name, 0.0) + number
        position.batch += 1
        position.step += 1
        return {**shown, "learning_rate": rate}

    @property
    def _videos(self) -> int:
        """Videos of the batch that stands at this position, over all processes."""
        size = self.config.training.batch_size
        return min(size, self.samples - self.position.batch * size)

    def _loss(self, outputs: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """The loss of the batch of all processes, from the embeddings of this one's share."""
        position, fabric = self.position, self.fabric
        first, last = bounds(self._videos, fabric.global_rank, fabric.world_size)
        features = self.objective.needs_features
        everyone, whole = gather(fabric, outputs, batch, idle=first == last, features=features)
        self.clips = len(whole.ids)
        sampling = torch.Generator().manual_seed(self.config.seed * 1_000_003 + position.step)
        with shared_work():
            loss: Tensor = self.objective(everyone, whole, sampling)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise TrainingError(
                f"the loss is {value} at step {position.step} (epoch {position.epoch}); lower optimiser.learning_rate, "
                "set training.gradient_clip=1.0, or look at the data with `crossclr data check`"
            )
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights. All processes must call it together."""
        generator = torch.get_rng_state()
        generators = cast(Tensor, self.fabric.all_gather(generator))
        return {
            "position": asdict(self.position),
            "schedule": self.schedule.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "objective": self.objective.state_dict(),
            "random": random_state(),
            "random_of_processes": generators.cpu().reshape(-1, len(generator)),
        }

    def load_state_dict(self, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        states = state["random_of_processes"]
        if len(states) != self.fabric.world_size:
            raise TrainingError(
                f"this run was trained by {len(states)} processes and cannot be continued by {self.fabric.world_size}"
            )
        self.model.load_state_dict(dict(weights))
        self.objective.load_state_dict(state["objective"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.schedule.load_state_dict(state["schedule"])
        self.position = Position(**state["position"])
        set_random_state(state["random"])
        torch.set_rng_state(states[self.fabric.global_rank].clone())  # torch reads a view from its base's beginning


def inputs_of(source: Source, config: FitConfig) -> Source:
    """Where a run reads its samples: the source itself, or the source kept in memory in the form that encoders take."""
    varies = getattr(source, "vary", False)  # each reading gives something else, which cannot be kept
    if isinstance(source, MemorySource) or varies or not config.training.in_memory:
        return source
    return MemorySource(source, memory_form(config.model.encoder_a), memory_form(config.model.encoder_b))


def memory_form(encoder: MLPEncoderConfig | TransformerEncoderConfig) -> Form:
    """How sequences may be kept for an encoder: pooled where it pools them itself, and always in the same way."""
    if isinstance(encoder, MLPEncoderConfig) and not encoder.row_dropout:
        return encoder.sequence_pooling
    return "rows"


def fit(
    training: Training, recorder: Recorder, reporter: Reporter | None = None, validate: Validate | None = None
) -> None:
    """Train to the end of the schedule, from wherever ``training`` stands.

    Args:
        training: what is trained.
        recorder: keeps metrics and states.
        reporter: shows progress.
        validate: measures the model; its metrics choose the best epoch. None: the last epoch is the best.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when the state has been kept.
    """
    settings, checking, position = training.config.training, training.config.validation, training.position
    keep = _keeper(training, recorder)
    with stop_on_signal() as stop_asked:
        for epoch in range(position.epoch, settings.epochs):
            if training.schedule.stops_before(epoch):
                break
            stream = training.batches(epoch, start=position.batch)
            for batch in stream:
                record = {"kind": "step", "epoch": epoch, "step": position.step + 1, **training.step(batch)}
                if reporter is not None:
                    reporter.step(record, clips=training.clips)
                if position.step % settings.log_every == 0:
                    recorder.log(record)
                if stop_asked(training.fabric):
                    _close(stream)
                    keep(best=False)
                    recorder.flush()
                    raise Interrupted
                if settings.checkpoint_every is not None and position.step % settings.checkpoint_every == 0:
                    keep(best=False)
            means = {name: total / max(1, position.batch) for name, total in position.sums.items()}
            record = {"kind": "epoch", "epoch": epoch, "step": position.step, **means}
            record["learning_rate"] = training.optimiser.param_groups[0]["lr"]
            best = False
            due = epoch >= checking.first_epoch and (epoch - checking.first_epoch) % checking.every == 0
            wanted = due or epoch + 1 == settings.epochs  # the end of a schedule is often its best
            if validate is not None and wanted:
                metrics = _on_first_process(training, validate)
                score = selection_score(metrics, checking.select_by)
                best = training.schedule.observe(epoch, score)
                record.update(score=score, best=best, validation=metrics)
            recorder.log(record)
            if reporter is not None:
                reporter.epoch(record)
            position.epoch, position.batch, position.sums = epoch + 1, 0, {}
            keep(best=best)
            if stop_asked(training.fabric) and epoch + 1 < settings.epochs:
                recorder.flush()
                raise Interrupted
        if training.schedule.best_epoch is None:
            keep(best=True)
        recorder.flush()


def selection_score(metrics: Mapping[str, float], name: str) -> float:
    """The metric that picks the best epoch; ``level/metric`` is the mean over both directions.

    Example:
        >>> selection_score({"clip/a->b/R@1": 10.0, "clip/b->a/R@1": 20.0}, "clip/R@1")
        15.0
    """
    if name in metrics:
        return metrics[name]
    level, _, metric = name.partition("/")
    both = [value for key, value in metrics.items() if key.startswith(f"{level}/") and key.endswith(f"/{metric}")]
    if not both:
        raise TrainingError(f"validation.select_by is {name!r}, but validation gives only: {', '.join(metrics)}")
    return sum(both) / len(both)


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (whoever uses the global one shall be repeatable too)
    torch.manual_seed(seed)


def _keeper(training: Training, recorder: Recorder) -> Callable[..., None]:
    def keep(best: bool) -> None:
        state = training.state_dict()
        if training.fabric.is_global_zero:
            recorder.save(training.model.state_dict(), state, best)
        training.fabric.barrier()

    return keep


def _on_first_process(training: Training, validate: Validate) -> Metrics:
    metrics: Metrics = {}
    if training.fabric.is_global_zero:
        training.model.eval()
        with torch.no_grad():
            metrics = validate(training.model)
    return training.fabric.broadcast(metrics)


def _close(stream: Iterator[Batch]) -> None:
    close = getattr(stream, "close", None)
    if close is not None:
        close()
