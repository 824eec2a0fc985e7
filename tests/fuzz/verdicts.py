"""What became of a broken input: refused with one clear line, accepted, or a failure."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from crossclr.extras import MissingExtraError

ALL = os.environ.get("CROSSCLR_FUZZ") == "all"  # `make fuzz`; otherwise a small share
LONGEST = 60  # seconds
LONGEST_MESSAGE = 2_000  # characters


def share(cases: int, batches: int) -> tuple[range, int]:
    """Seeds of the batches to run, and the cases of each: everything in `make fuzz`, a twentieth otherwise."""
    return (range(batches), -(-cases // batches)) if ALL else (range(1), max(6, cases // 20))


@dataclass(frozen=True)
class Verdict:
    """The end of one case.

    Args:
        refused: whether the input was refused with one clear line.
        result: what the call returned, if it was accepted.
        message: the line.
    """

    refused: bool
    result: Any = None
    message: str = ""


def judge(call: Callable[[], Any], case: str, must_refuse: bool | None = None) -> Verdict:
    """Run a case within the time limit.

    Args:
        call: reads the broken input.
        case: its description, for messages.
        must_refuse: True if accepting it would be silently wrong, False if refusing it would be wrong.

    Raises:
        AssertionError: a traceback, a hang, an unclear message, or the wrong end.
    """
    try:
        with _time_limit(case):
            verdict = Verdict(False, call())
    except (ValueError, OSError, MissingExtraError) as error:  # what the command line turns into one line
        message = str(error)
        assert message.strip(), f"{case}: refused without a word"
        assert len(message) < LONGEST_MESSAGE, f"{case}: a message of {len(message)} characters: {message[:300]}"
        verdict = Verdict(True, message=message)
    except Exception as error:
        raise AssertionError(f"{case}: a traceback: {type(error).__name__}: {error}") from error
    if must_refuse is not None:
        words = "accepted, but it is wrong" if must_refuse else f"refused, but it is fine: {verdict.message}"
        assert verdict.refused == must_refuse, f"{case}: {words}"
    return verdict


@contextmanager
def _time_limit(case: str) -> Iterator[None]:
    def late(number: int, frame: object) -> None:
        raise TimeoutError(f"{case}: not finished after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST)
    try:
        yield
    except TimeoutError as error:
        raise AssertionError(str(error)) from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def broken_bytes(content: bytes, rng: random.Random) -> tuple[str, bytes]:
    """A name and a damaged copy of some bytes."""
    place = rng.randrange(max(len(content), 1))
    end = min(len(content), place + rng.randrange(1, 64))
    flipped = bytearray(content or b"x")
    flipped[min(place, len(flipped) - 1)] ^= 1 << rng.randrange(8)
    kinds = {
        "truncated": content[:place],
        "flipped bit": bytes(flipped),
        "cut out": content[:place] + content[end:],
        "zeroed": content[:place] + bytes(end - place) + content[end:],
        "doubled": content[:end] + content[place:],
        "random bytes": content[:place] + rng.randbytes(end - place) + content[end:],
        "empty": b"",
        "longer": content + rng.randbytes(rng.randrange(1, 64)),
    }
    name = rng.choice(list(kinds))
    return f"{name} at {place} of {len(content)}", kinds[name]
