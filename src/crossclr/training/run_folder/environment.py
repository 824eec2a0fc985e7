"""The environment of a run: everything except its config that may affect its results."""

import platform
import sys
from importlib import metadata
from typing import Any

import torch

from crossclr.training.processes import launch

PACKAGES = ("torch", "numpy", "scipy", "pydantic", "safetensors", "lightning-fabric")


def environment() -> dict[str, Any]:
    """Versions, machine, devices and command."""
    return {
        "crossclr": metadata.version("crossclr"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        "threads": torch.get_num_threads(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
        "command": sys.argv,
        "launch": launch(),
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"
