"""One embedding space for video, text, sound and images, learned from features you already have."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from crossclr.api import embed, evaluate, resume, train, train_seeds
    from crossclr.estimator import JointEmbedding
    from crossclr.training import Run, RunConfig, load_config

__version__ = "0.1.0"

# Imported when they are used, so that `import crossclr` costs nothing.
_LAZY = {
    "JointEmbedding": "crossclr.estimator",
    "Run": "crossclr.training",
    "RunConfig": "crossclr.training",
    "embed": "crossclr.api",
    "evaluate": "crossclr.api",
    "load_config": "crossclr.training",
    "resume": "crossclr.api",
    "train": "crossclr.api",
    "train_seeds": "crossclr.api",
}

__all__ = [
    "JointEmbedding",
    "Run",
    "RunConfig",
    "__version__",
    "embed",
    "evaluate",
    "load_config",
    "resume",
    "train",
    "train_seeds",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'crossclr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
