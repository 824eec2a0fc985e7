"""Losses by name: those of this package, and your own by their place."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

from torch import nn

from crossclr.losses.base import Loss
from crossclr.losses.clip import CLIP
from crossclr.losses.coot import Coot
from crossclr.losses.crossclr import CrossCLR
from crossclr.losses.dcl import DCL
from crossclr.losses.maxmargin import MaxMargin
from crossclr.losses.milnce import MILNCE
from crossclr.losses.ntxent import NTXent
from crossclr.losses.siglip import SigLIP
from crossclr.suggestions import suggest

LOSSES: dict[str, type[Loss]] = {
    "crossclr": CrossCLR,
    "clip": CLIP,
    "ntxent": NTXent,
    "maxmargin": MaxMargin,
    "milnce": MILNCE,
    "dcl": DCL,
    "siglip": SigLIP,
    "coot": Coot,
}


def build_loss(name: str, **options: Any) -> nn.Module:
    """Build a loss by its name; case, "-" and "_" do not matter.

    Args:
        name: one of ``crossclr clip ntxent maxmargin milnce dcl siglip coot``, or ``my_package.my_module:MyLoss`` for
            an ``nn.Module`` of your own with the same call.
        **options: arguments of the loss's class.

    Raises:
        ValueError: for an unknown name or option (naming the known ones), or an option out of range.

    Example:
        >>> build_loss("NT-Xent", temperature=0.1).temperature
        0.1
        >>> build_loss("crossclr", tempreature=0.1)
        Traceback (most recent call last):
            ...
        ValueError: crossclr has no option 'tempreature'; did you mean 'temperature'?
        >>> type(build_loss("crossclr.losses.clip:CLIP")).__name__
        'CLIP'
    """
    if ":" in str(name):
        key, found = str(name), _own_class(str(name))
    else:
        key = str(name).lower().replace("-", "").replace("_", "")
        if key not in LOSSES:
            raise ValueError(f"there is no loss {name!r}; {suggest(key, LOSSES)}")
        found = LOSSES[key]
    known = inspect.signature(found).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                raise ValueError(f"{key} has no option {option!r}; {suggest(option, known)}")
    try:
        return found(**options)
    except TypeError as error:
        raise ValueError(f"{key}: {error}") from error


def _own_class(place: str) -> type[nn.Module]:
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the loss {place!r} cannot be loaded: {error}. Write package.module:Class; the package must be installed "
            "or on PYTHONPATH"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ValueError(f"the loss {place!r} is not a class that inherits from torch.nn.Module")
    return found
