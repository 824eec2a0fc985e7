"""A second device that needs no GPU: tensors that compute on the CPU, say that they are elsewhere, and refuse to mix.

Inside ``with SimulatedDevice():`` the device ``meta`` stands for a GPU. A tensor on it has values. An operation that
combines it with a CPU tensor of one or more dimensions fails, as it does with CUDA.
"""

from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
CROSSES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}  # operations that move between devices


class Elsewhere(torch.Tensor):
    """A tensor on the simulated device."""

    held: torch.Tensor
    is_meta = False  # it has values

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Elsewhere":
        found = torch.Tensor._make_wrapper_subclass(
            cls, held.size(), held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        found.held = held
        return found

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held})"

    def new_tensor(self, data: Any, **options: Any) -> torch.Tensor:  # type: ignore[override]
        """A tensor from numbers, on this device."""
        return torch.tensor(data, **{"dtype": self.dtype, "device": DEVICE, **options})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _run(func, args, kwargs or {})


class SimulatedDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes the device ``meta`` one with values; its autocast is that of the CPU."""

    def __enter__(self) -> "SimulatedDevice":
        self._own = torch.autocast, torch.tensor
        # These two never ask a dispatch mode about the device.
        torch.autocast, torch.tensor = _autocast, partial(_tensor, torch.tensor)  # type: ignore[misc, assignment]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        torch.autocast, torch.tensor = self._own  # type: ignore[misc]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _autocast(device_type: str, *args: Any, **kwargs: Any) -> Any:
    return torch.amp.autocast_mode.autocast("cpu" if device_type == DEVICE.type else device_type, *args, **kwargs)


def _tensor(make: Any, data: Any, *, device: Any = None, **options: Any) -> torch.Tensor:
    found: torch.Tensor = make(data, **options)
    return found if device is None else found.to(device)


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    away = [one for one in tensors if isinstance(one, Elsewhere)]
    here = [one for one in tensors if not isinstance(one, Elsewhere) and one.dim() > 0]
    if away and here and func not in CROSSES:
        raise RuntimeError(f"{func}: Expected all tensors to be on the same device")
    wanted = kwargs.get("device")
    if wanted is not None and torch.device(wanted).type == DEVICE.type:
        kwargs = {**kwargs, "device": torch.device("cpu")}
        target = True
    else:
        target = bool(away) and (wanted is None) and func is not torch.ops.aten._local_scalar_dense.default
    if func is torch.ops.aten.copy_.default:
        args[0].held.copy_(_plain(args[1])) if isinstance(args[0], Elsewhere) else args[0].copy_(_plain(args[1]))
        return args[0]
    result = func(*tree_map(_plain, args), **tree_map(_plain, kwargs))
    if not target:
        return result
    known = {id(one.held): one for one in away}  # an operation in place returns its argument

    def wrap(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return known[id(value)] if id(value) in known else Elsewhere(value)

    return tree_map(wrap, result)


def _plain(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value
