"""Many trainings on the cores of this machine: one process with one thread each, no leftovers after a kill."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from crossclr.storage import sweep
from crossclr.studies.trainings import RUNS, Job, keep_trainers, perform
from crossclr.training import Interrupted

Results = dict[str, Any]
Perform = Callable[[Job, Path], Results]  # trains one job and leaves its folder


class Pool:
    """Runs several jobs at the same time; a single one runs in this process."""

    def __init__(self, out: Path, jobs: int = 1, perform: Perform = perform) -> None:
        if jobs < 1:
            raise ValueError(f"jobs must be at least 1, got {jobs}")
        self.out, self.jobs, self.perform = out, jobs, perform
        self._executor: ProcessPoolExecutor | None = None
        self._running: dict[Future[Results], Callable[[Results], None]] = {}

    @property
    def free(self) -> bool:
        """Whether another job can start now."""
        return len(self._running) < self.jobs

    @property
    def busy(self) -> bool:
        """Whether any job is running."""
        return bool(self._running)

    def start(self, job: Job, done: Callable[[Results], None]) -> None:
        """Start a job; `wait` calls ``done`` with its results when it is finished."""
        if self.jobs == 1:
            done(self.perform(job, self.out))
            return
        if self._executor is None:
            self._executor = ProcessPoolExecutor(
                self.jobs, mp_context=get_context("spawn"), initializer=_prepare, initargs=(os.getpid(),)
            )
        self._running[self._executor.submit(self.perform, job, self.out)] = done

    def wait(self) -> None:
        """Wait until a job is finished."""
        finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
        for future in finished:
            self._running.pop(future)(future.result())

    def close(self) -> None:
        """Stop: running jobs are abandoned, idle workers exit."""
        if self._executor is not None:
            if self._running:
                for process in list((self._executor._processes or {}).values()):
                    process.terminate()
            self._executor.shutdown(wait=True, cancel_futures=True)
            self._executor = None
        self._running.clear()


@contextmanager
def open_pool(out: Path, jobs: int, perform: Perform = perform) -> Iterator[Pool]:
    """A pool that is closed at the end of the block; Ctrl-C and SIGTERM raise `Interrupted`."""
    pool = Pool(out, jobs, perform)

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    sweep(out / RUNS, recursive=True)
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, interrupt) if main else None
    try:
        yield pool
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(out) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)
        pool.close()


def _prepare(parent: int) -> None:
    """Prepare a worker: the parent handles Ctrl-C, and the worker exits when the parent is gone.

    SIGTERM raises an exception, so that unfinished files are removed.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    import torch

    torch.set_num_threads(1)
    keep_trainers(1)
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _leave(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)
