"""Losses by name."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from crossclr.losses.clip import CLIP
from crossclr.losses.crossclr import CrossCLR
from crossclr.losses.dcl import DCL
from crossclr.losses.maxmargin import MaxMargin
from crossclr.losses.milnce import MILNCE
from crossclr.losses.ntxent import NTXent
from crossclr.losses.siglip import SigLIP
from crossclr.suggestions import suggest

LOSSES: dict[str, type[nn.Module]] = {
    "crossclr": CrossCLR,
    "clip": CLIP,
    "ntxent": NTXent,
    "maxmargin": MaxMargin,
    "milnce": MILNCE,
    "dcl": DCL,
    "siglip": SigLIP,
}


def build_loss(name: str, **options: Any) -> nn.Module:
    """A loss by its name; case, "-" and "_" do not matter.

    Args:
        name: one of ``crossclr clip ntxent maxmargin milnce dcl siglip``.
        **options: what the loss's class takes.

    Raises:
        ValueError: for an unknown name or option (naming the known ones), or an option out of range.

    Example:
        >>> build_loss("NT-Xent", temperature=0.1).temperature
        0.1
        >>> build_loss("crossclr", tempreature=0.1)
        Traceback (most recent call last):
            ...
        ValueError: crossclr has no option 'tempreature'; did you mean 'temperature'?
    """
    key = str(name).lower().replace("-", "").replace("_", "")
    if key not in LOSSES:
        raise ValueError(f"there is no loss {name!r}; {suggest(key, LOSSES)}")
    known = list(inspect.signature(LOSSES[key]).parameters)
    for option in options:
        if option not in known:
            raise ValueError(f"{key} has no option {option!r}; {suggest(option, known)}")
    return LOSSES[key](**options)
