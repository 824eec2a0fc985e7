"""METEOR 1.5 through its Java program, which may be missing, crash or hang without stopping anything else."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from crossclr.errors import CrossCLRError

SECONDS = 300.0  # without an answer; a start takes about ten, and far more on a busy machine
HEAP = "2G"


class MeteorError(CrossCLRError, RuntimeError):
    """METEOR could not be computed; the message says why."""


class Meteor:
    """A METEOR process. Starting it takes seconds, so one process can score many corpora.

    A thread sends the texts, and a timer stops the process if it does not answer.

    Args:
        java: the program to start.
        seconds: how long to wait for an answer before the process is stopped.

    Raises:
        MeteorError: there is no Java or no jar.
    """

    def __init__(self, java: str = "java", seconds: float = SECONDS) -> None:
        jar = _jar()
        program = shutil.which(java)
        if program is None:
            raise MeteorError(f"METEOR needs Java, but there is no program {java!r}; install a Java runtime")
        self._seconds, self._late = seconds, False
        self._messages: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (a pipe without a reader would fill up and block)
        command = [program, f"-Xmx{HEAP}", "-jar", jar.name, "-", "-", "-stdio", "-l", "en", "-norm"]
        try:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603 (our own command line)
                command,
                cwd=jar.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._messages,
                start_new_session=True,  # its children stop with it, and Ctrl-C reaches only this process
            )
        except OSError as error:
            self._messages.close()
            raise MeteorError(f"{program} could not be started: {error}") from error

    def __enter__(self) -> Meteor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop the process."""
        self._end()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()
        self._messages.close()

    def score(self, predictions: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, list[float]]:
        """METEOR of a corpus and of each of its texts, as fractions of one.

        The corpus value comes from the summed statistics of all texts; it is not the mean of the single values. After a
        `MeteorError` (the process died, hung or returned invalid output) the process cannot be used any more.
        """
        if not predictions:
            return 0.0, []
        lines = [
            " ||| ".join(["SCORE", *map(_plain, several), _plain(text)])
            for text, several in zip(predictions, references, strict=True)
        ]
        statistics = self._answers(lines, len(lines))
        answers = self._answers([" ||| ".join(["EVAL", *statistics])], len(lines) + 1)
        try:
            numbers = [float(answer) for answer in answers]
        except ValueError:
            raise MeteorError(f"METEOR answered {answers[0]!r} where a number was expected") from None
        return numbers[-1], numbers[:-1]

    def _answers(self, lines: Sequence[str], count: int) -> list[str]:
        """Send lines and read ``count`` answers at the same time, so that no pipe can fill up."""
        threading.Thread(target=self._send, args=(lines,), daemon=True).start()
        return [self._answer() for _ in range(count)]

    def _send(self, lines: Sequence[str]) -> None:
        assert self._process.stdin is not None  # noqa: S101 (it was opened as a pipe)
        with contextlib.suppress(OSError, ValueError):  # reading the answer reports the crash
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self._process.stdin.flush()

    def _answer(self) -> str:
        assert self._process.stdout is not None  # noqa: S101 (it was opened as a pipe)
        timer = threading.Timer(self._seconds, self._stop_late)
        timer.daemon = True
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return line.decode(errors="replace").strip()
        if self._late:
            raise MeteorError(f"METEOR's Java program gave no answer for {self._seconds:g} s and was stopped")
        self._messages.seek(0)
        message = self._messages.read()[-300:].decode(errors="replace").strip() or "without a message"
        raise MeteorError(f"METEOR's Java program ended early: {' '.join(message.split())}")

    def _stop_late(self) -> None:
        self._late = True
        self._end()

    def _end(self) -> None:
        group: Any = getattr(os, "killpg", None)
        with contextlib.suppress(OSError):
            if group is not None:
                group(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()


def _plain(text: str) -> str:
    return " ".join(text.replace("|||", " ").split())


def _jar() -> Path:
    package = importlib.util.find_spec("pycocoevalcap")
    for location in (package.submodule_search_locations or []) if package else []:
        jar = Path(location) / "meteor" / "meteor-1.5.jar"
        if jar.is_file():
            return jar
    raise MeteorError("METEOR comes with pycocoevalcap, which is not installed: pip install 'crossclr[captions]'")
