"""The training loop: read a batch, take a step; validate, select the best epoch, save."""

from collections.abc import Mapping
from typing import Any, Protocol, cast

from torch import Tensor

from crossclr.allocator import return_freed_memory
from crossclr.training.stopping import StopRequested, stop_on_signal
from crossclr.training.trainable import Trainable, Validate, Validation

MOST_FREED = 2 << 30  # bytes that freed blocks may take before they are returned


class Interrupted(Exception):  # noqa: N818 (a request of the user, not an error)
    """The user stopped the training; its state has been saved."""


class Recorder(Protocol):
    """Keeps the results of training: a run folder, or memory."""

    def log(self, record: Mapping[str, Any]) -> None:
        """Keep one record of metrics."""

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Keep a state to resume from, and ``best``, the weights of the best epoch so far, if this is it.

        A recorder may write later but must copy at once, because training changes the tensors.
        """

    def flush(self) -> None:
        """Wait until everything is written; raises the errors of writing."""


class Reporter(Protocol):
    """Shows progress to the user."""

    def step(self, record: Mapping[str, Any], items: int) -> None:
        """One step was taken."""

    def validation(self, done: int, total: int) -> None:
        """Validation has finished ``done`` of ``total`` samples."""

    def epoch(self, record: Mapping[str, Any]) -> None:
        """An epoch is over."""


def fit(
    training: Trainable[Any],
    recorder: Recorder | None = None,
    reporter: Reporter | None = None,
    validate: Validate | None = None,
) -> None:
    """Train from the current position of ``training`` to its last epoch.

    Args:
        training: the joint embedding, the captioner or anything else that is `Trainable`.
        recorder: keeps metrics and states; None keeps nothing. Only the first process needs one.
        reporter: shows progress.
        validate: measures the model; its metrics select the best epoch. None: the last epoch is the best.

    Raises:
        Interrupted: after Ctrl-C or SIGTERM, when the state has been saved.
    """
    position, epochs = training.position, training.settings.epochs
    with stop_on_signal() as stop_requested:
        for epoch in range(position.epoch, epochs):
            if training.schedule.stops_before(epoch):
                break
            _run_batches(training, recorder, reporter, stop_requested)
            record = _epoch_record(training)
            best = (
                validate is not None
                and training.settings.validates(epoch)
                and _validate(training, reporter, validate, record)
            )
            warning = training.health.observe(record)
            if warning is not None:
                record["warning"] = warning
            if recorder is not None:
                recorder.log(record)
            if reporter is not None:
                reporter.epoch(record)
            position.next_epoch()
            _save(training, recorder, best)
            if stop_requested(training.fabric) and epoch + 1 < epochs:
                _interrupt(recorder)
        if training.schedule.best_epoch is None:
            _save(training, recorder, best=True)
        if recorder is not None:
            recorder.flush()


def _run_batches(
    training: Trainable[Any], recorder: Recorder | None, reporter: Reporter | None, stop_requested: StopRequested
) -> None:
    """The rest of an epoch."""
    position, settings = training.position, training.settings
    stream = training.batches(position.epoch, start=position.batch)
    for batch in stream:
        record = {"kind": "step", "epoch": position.epoch, "step": position.step + 1, **training.step(batch)}
        if reporter is not None:
            reporter.step(record, training.items)
        if position.step % settings.log_every == 0:
            return_freed_memory(above=MOST_FREED)
            if recorder is not None:
                recorder.log(record)
        if stop_requested(training.fabric):
            stream.close()
            _save(training, recorder, best=False)
            _interrupt(recorder)
        if settings.checkpoint_every is not None and position.step % settings.checkpoint_every == 0:
            _save(training, recorder, best=False)


def _epoch_record(training: Trainable[Any]) -> dict[str, Any]:
    position = training.position
    means = {name: total / max(1, position.batch) for name, total in position.sums.items()}
    rate = training.optimiser.param_groups[0]["lr"]
    return {"kind": "epoch", "epoch": position.epoch, "step": position.step, **means, "learning_rate": rate}


def _validate(training: Trainable[Any], reporter: Reporter | None, validate: Validate, record: dict[str, Any]) -> bool:
    """Measure on the first process and share the result; True if this epoch is the best so far."""
    measured = None
    if training.fabric.is_global_zero:
        with training.evaluating() as model:
            measured = validate(model, None if reporter is None else reporter.validation)
    found = cast(Validation, training.fabric.broadcast(measured))
    score = training.score(found.metrics)
    best = training.schedule.observe(record["epoch"], score)
    record.update(score=score, best=best, validation=found.metrics, **found.facts)
    return best


def _save(training: Trainable[Any], recorder: Recorder | None, best: bool) -> None:
    state = training.state_dict()
    if recorder is not None:
        recorder.save(training.model.state_dict(), state, training.best_weights() if best else None)
    training.fabric.barrier()


def _interrupt(recorder: Recorder | None) -> None:
    if recorder is not None:
        recorder.flush()
    raise Interrupted
