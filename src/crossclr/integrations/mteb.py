"""A run or an export in MTEB: ``mteb.evaluate(MTEBEncoder(run), tasks)``."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from crossclr.extras import requires_extra
from crossclr.integrations.run_encoder import AcceptedInputs, RunEncoder, Task
from crossclr.training import Run

ORDER = ("video", "image", "audio", "text")  # the first that an input has is encoded
Vectors = npt.NDArray[np.float32]


class MTEBEncoder:
    """MTEB's protocol of an encoder. Queries and documents are encoded as in the index; `similarity` compares them.

    Args:
        run: a run, or its folder.
        name: of the model in MTEB's results, ``owner/name``.

    Raises:
        MissingExtraError: mteb is not installed.
    """

    def __init__(self, run: Run | str | Path, name: str | None = None) -> None:
        with requires_extra("mteb", "A benchmark of MTEB"):
            from mteb.models import ModelMeta
        run = run if isinstance(run, Run) else Run.open(run)
        self.encoder = RunEncoder(run.load_space(), AcceptedInputs.of_run(run))
        facts = {"name": name or f"crossclr/{run.path.name}", "revision": run.digest(), "similarity_fn_name": "dot"}
        modalities = [kind for kind in ORDER if kind in self.encoder.space.dims or kind == "text"]
        self.mteb_model_meta = ModelMeta.create_empty({**facts, "modalities": modalities})

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any) -> Vectors:
        """(inputs, dim) vectors of batches, each a mapping from ``text``, ``image`` or ``video`` to a list."""
        task: Task = None
        if prompt_type is not None:
            task = "query" if getattr(prompt_type, "value", prompt_type) == "query" else "document"
        parts = [self.encoder.encode(list(_samples(batch)), task) for batch in inputs]
        return torch.cat(parts).numpy() if parts else np.zeros((0, self.encoder.dim), np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(first, second) inner products: cosine plus correction of hubs for queries and documents."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(pairs,) inner products of equal rows."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(dim=1)


def _samples(batch: Mapping[str, Any]) -> Iterator[Any]:
    """What to encode of each input of a batch: its video, else its image, its sound or its text."""
    kinds = [kind for kind in ORDER if kind in batch]
    if not kinds:
        raise ValueError(f"MTEB gives {', '.join(batch)}, but a run encodes {', '.join(ORDER)}")
    for number in range(len(batch[kinds[0]])):
        kind, value = next((kind, batch[kind][number]) for kind in kinds if batch[kind][number] is not None)
        yield value if kind == "text" else {kind: value}
