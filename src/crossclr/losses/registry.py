"""Build losses by name: those of this package, and your own by ``module:Class``."""

import importlib
import inspect
from typing import Any

from torch import nn

from crossclr.losses.base import Loss
from crossclr.losses.loss_names import PLACES, loss_key
from crossclr.suggestions import suggest


def build_loss(name: str, **options: Any) -> nn.Module:
    """Build a loss by its name, ignoring case, "-" and "_".

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
    key = loss_key(name)
    found = LOSSES[key] if key in LOSSES else class_at(key)
    known = inspect.signature(found).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        for option in options:
            if option not in known:
                raise ValueError(f"{key} has no option {option!r}; {suggest(option, known)}")
    try:
        return found(**options)
    except TypeError as error:
        raise ValueError(f"{key}: {error}") from error


def class_at(place: str) -> type[nn.Module]:
    """The class at ``package.module:Class``."""
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


def _known_losses() -> dict[str, type[Loss]]:
    classes = {name: class_at(place) for name, place in PLACES.items()}
    return {name: found for name, found in classes.items() if issubclass(found, Loss)}


LOSSES = _known_losses()
"""Name -> class of every loss of this package."""
