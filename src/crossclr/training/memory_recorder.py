"""A recorder without a folder, for trainings that are repeated rather than resumed."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from crossclr.training.run_folder.checkpoint import snapshot


class MemoryRecorder:
    """Keeps all records and the best weights in memory.

    Example:
        >>> recorder = MemoryRecorder()
        >>> recorder.log({"kind": "epoch", "epoch": 0, "step": 4, "loss": 1.5})
        >>> [record["loss"] for record in recorder.epochs]
        [1.5]
    """

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []
        self.best: dict[str, Tensor] = {}
        self.best_epoch = -1

    @property
    def epochs(self) -> list[dict[str, Any]]:
        """The records of epochs."""
        return [record for record in self.records if record["kind"] == "epoch"]

    def log(self, record: Mapping[str, Any]) -> None:
        """Keep a record."""
        self.records.append(dict(record))

    def save(self, weights: Mapping[str, Tensor], state: Mapping[str, Any], best: Mapping[str, Tensor] | None) -> None:
        """Keep the best weights."""
        if best is not None:
            self.best, self.best_epoch = snapshot(dict(best)), int(state["position"]["epoch"]) - 1

    def flush(self) -> None:
        """Nothing waits."""
