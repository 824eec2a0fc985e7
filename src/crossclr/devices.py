"""Where torch computes: the device that a person names, checked before any work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def usable_device(name: str | torch.device) -> torch.device:
    """The device with a name; a `torch.device` is taken as it is.

    Raises:
        ValueError: torch knows no such device, or this machine does not have it.

    Example:
        >>> usable_device("cpu")
        device(type='cpu')
        >>> usable_device("toaster")
        Traceback (most recent call last):
        ...
        ValueError: this machine has no device 'toaster'; use one of cpu...
    """
    import torch

    if isinstance(name, torch.device):
        return name
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    kind, _, number = str(name).partition(":")
    if (not number or number.isdecimal()) and int(number or 0) < counts.get(kind, 0):
        return torch.device(name)
    usable = [f"{kind}:{place}" if count > 1 else kind for kind, count in counts.items() for place in range(count)]
    raise ValueError(f"this machine has no device {name!r}; use one of {', '.join(usable)}")
