"""Seeds and states of all random generators.

Checkpoints that survive a kill and a full disk, without pickle.

A checkpoint is a folder with ``model.safetensors`` (the weights), ``state.safetensors`` and ``state.json`` (optimiser,
schedule, queue, random states, position). `crossclr.storage` replaces it as a whole.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from crossclr.errors import ReadError
from crossclr.storage import complete_folder, new_folder
from crossclr.storage.manifest import check_sealed
from crossclr.storage.reading import read_json_object, reading


def seed_everything(seed: int) -> None:
    """Seed torch, numpy and Python."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (code that uses numpy's global generator must be repeatable too)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """States of the generators of torch (CPU and every CUDA device), numpy and Python."""
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # noqa: NPY002 (the global one)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), [int(key) for key in keys], int(position), int(has_gauss), float(cached)),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Put the generators back into the states that ``random_state`` returned."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))  # noqa: NPY002
    random.setstate(state["python"])


MODEL, TENSORS, REST = "model.safetensors", "state.safetensors", "state.json"
ADVICE = "restore the run folder from a copy, or train it again"


class CheckpointError(ReadError):
    """A checkpoint is absent or cannot be read."""


def save_checkpoint(folder: Path, weights: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Replace the checkpoint in ``folder``; ``load_checkpoint`` finds a complete one at every moment.

    Args:
        folder: the checkpoint, for example ``run/last``.
        weights: a model's ``state_dict()``.
        state: any nesting of dicts, lists and tuples of tensors, numbers, strings and None.

    Example:
        >>> import tempfile, torch
        >>> folder = Path(tempfile.mkdtemp()) / "last"
        >>> save_checkpoint(folder, {"w": torch.ones(2)}, {"epoch": 3, "queue": {0: torch.zeros(1)}})
        >>> weights, state = load_checkpoint(folder)
        >>> weights["w"].tolist(), state["epoch"], state["queue"][0].tolist()
        ([1.0, 1.0], 3, [0.0])
    """
    tensors: dict[str, Tensor] = {}
    rest = _encode(state, tensors, "")
    with new_folder(folder, replace=True) as partial:
        (partial / MODEL).write_bytes(save(_plain(weights)))
        (partial / TENSORS).write_bytes(save(_plain(tensors)))
        (partial / REST).write_text(json.dumps(rest))


def snapshot(value: Any) -> Any:
    """A copy of weights or of a state on the CPU that later steps do not change."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: snapshot(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(snapshot(item) for item in value)
    return value


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and state of the last complete checkpoint; the reverse of ``save_checkpoint``."""
    folder = complete_folder(folder)
    weights = load_weights(folder)
    check_sealed(folder, ADVICE, CheckpointError)
    rest, tensors = read_json_object(folder / REST, kind=CheckpointError), load_tensors(folder / TENSORS)
    with reading(folder / REST, "state of a training", advice=ADVICE, kind=CheckpointError):
        state: dict[str, Any] = _decode(rest, tensors)
    return weights, state


def load_weights(folder: Path) -> dict[str, Tensor]:
    """The weights alone."""
    folder = complete_folder(folder)
    if not (folder / MODEL).is_file():
        raise CheckpointError(f"there is no checkpoint in {folder} ({MODEL} is absent)")
    check_sealed(folder, ADVICE, CheckpointError)
    return load_tensors(folder / MODEL)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    with reading(path, "safetensors", advice=ADVICE, kind=CheckpointError):
        return load_file(path)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    # safetensors wants contiguous tensors that share no memory
    return {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}


def _encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """JSON for everything but tensors, which go to ``tensors`` under their path."""
    if isinstance(value, Tensor):
        tensors[path] = value
        return {"$tensor": path}
    if isinstance(value, Mapping):
        pairs = [[key, _encode(item, tensors, f"{path}/{key}")] for key, item in value.items()]
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return dict(pairs)
        return {"$pairs": pairs}  # JSON would turn the integer keys of an optimiser's state into strings
    if isinstance(value, list | tuple):
        items = [_encode(item, tensors, f"{path}/{index}") for index, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__} (at {path or 'the top'})")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return tensors[value["$tensor"]]
    if "$pairs" in value:
        return {key: _decode(item, tensors) for key, item in value["$pairs"]}
    if "$tuple" in value:
        return tuple(_decode(item, tensors) for item in value["$tuple"])
    return {key: _decode(item, tensors) for key, item in value.items()}
