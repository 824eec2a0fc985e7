"""Which process owns a temporary file or a lock, and whether that process still runs."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Owner:
    """A process: its host, its id, and its start time, which tells it from a later process with the same id."""

    host: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> "Owner":
        """This process."""
        return cls(socket.gethostname(), os.getpid(), start_time(os.getpid()))

    def alive(self) -> bool:
        """Whether the process still runs. A process on another host counts as running, because nobody can check."""
        if self.host != socket.gethostname():
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # it runs and belongs to another user
            pass
        return start_time(self.pid) == self.started


def start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process, or 0 on systems without ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[19])
