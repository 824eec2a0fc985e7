"""Commands in processes that begin with everything imported, so that a kill hits their work and not their imports."""

import multiprocessing
import os
import sys
from pathlib import Path

import torch

import crossclr.api
import crossclr.captions.pipeline
import crossclr.cli
import crossclr.extract
import crossclr.search.create
import crossclr.studies.report

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])


def start(arguments, log: Path):
    """Start a command; its output goes to a file."""
    process = _PROCESSES.Process(target=_run, args=([str(word) for word in arguments], str(log)))
    process.start()
    return process


def finish(arguments, log: Path) -> None:
    """Run a command to its end."""
    process = start(arguments, log)
    process.join(600)
    assert process.exitcode == 0, f"{arguments}: {process.exitcode}\n{log.read_text()}"


def _run(arguments, log):
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.environ["COLUMNS"] = "120"
    torch.set_num_threads(1)
    sys.argv = ["crossclr", *arguments]
    crossclr.cli.main()
