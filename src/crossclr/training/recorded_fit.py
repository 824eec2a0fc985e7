"""`fit` into a run folder, with metrics, checkpoints, live progress and advice after an interruption."""

import contextlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from crossclr.storage import naming_full_disk
from crossclr.training.loop import Interrupted, fit
from crossclr.training.progress import live_progress
from crossclr.training.run_folder.folder import RunFolder
from crossclr.training.run_folder.recorder import RunRecorder
from crossclr.training.trainable import Trainable, Validate


def fit_run(
    run: RunFolder[Any],
    training: Trainable[Any],
    state: Mapping[str, Any] | None,
    *,
    validate: Validate | None = None,
    console: Console | None = None,
    command: str = "crossclr train",
) -> None:
    """Train from the current position to the end; only the first process writes and shows progress.

    Args:
        run: the run folder.
        training: what is trained.
        state: the state that training resumes from; None for a new run.
        validate: measures the model.
        console: where to show progress; None shows nothing.
        command: the command that resumes the run with ``--resume``.

    Raises:
        Interrupted: after Ctrl-C, with the path of the run.
        DiskFullError: the disk is full; the folder is complete up to its last checkpoint.
    """
    if not training.fabric.is_global_zero:
        fit(training, validate=validate)
        return
    recorder = RunRecorder(run, state)
    next_step = f"free some space, then run: {command} --resume {run.path}"
    try:
        with naming_full_disk(run.path, next_step), live_progress(training, console) as reporter:
            fit(training, recorder, reporter, validate)
    except Interrupted:
        raise Interrupted(run.path) from None
    finally:
        with contextlib.suppress(OSError):  # nothing is lost: what counts was synced with the last checkpoint
            recorder.close()
