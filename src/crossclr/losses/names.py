"""Losses by name, and checks of their options. Reading a config needs both without loading PyTorch."""

import ast
import importlib
import inspect
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from crossclr.suggestions import suggest

if TYPE_CHECKING:
    from torch import nn

LOSS_PATHS = {
    "crossclr": "crossclr.losses.crossclr:CrossCLR",
    "clip": "crossclr.losses.clip:CLIP",
    "ntxent": "crossclr.losses.ntxent:NTXent",
    "maxmargin": "crossclr.losses.coot:MaxMargin",
    "milnce": "crossclr.losses.milnce:MILNCE",
    "dcl": "crossclr.losses.dcl:DCL",
    "siglip": "crossclr.losses.siglip:SigLIP",
    "coot": "crossclr.losses.coot:Coot",
}
"""``module:Class`` of every loss. A new loss is one file and one entry here."""

PAPER = {
    "youcook2": {
        "temperature": 0.03,
        "intra_weight": 0.8,
        "prune_threshold": 0.9,
        "weight_scale": 0.0035,
        "positive_weight": 0.15,
        "prune_by": "relative",
        "min_keep": 0.25,
        "min_effective": 0.5,
        "near_copies": 0.0,
        "shared_positives": 0.0,
    },
}
"""The paper's settings of CrossCLR, as far as they are clear and do no harm."""
PAPER["lsmdc"] = PAPER["youcook2"] | {
    "weight_scale": 0.0055,
    "intra_weight": 0.65,
    "queue_size": 3000,
    "positive_weight": 0.2,
}
READINGS: dict[str, dict[str, Any]] = {
    "equation": {
        "prune_by": "absolute",
        "weight_by": "absolute",
        "intra_mode": "sum",
        "self_connectivity": True,
        "positives_in": "numerator",
    },
    "pseudo-code": {"strict_threshold": True, "self_logit": "zero", "positives_in": "numerator", "queue_size": 0},
}
"""How the literal readings of the paper differ from its clear settings: see `CrossCLR.printed`."""
READINGS["algorithm"] = READINGS["equation"] | {"strict_threshold": True}


def printed_options(reading: str, dataset: str = "youcook2") -> dict[str, Any]:
    """The options of a literal reading of the paper for one of its data sets.

    Example:
        >>> printed_options("equation")["queue_size"], printed_options("equation", "lsmdc")["queue_size"]
        (5000, 3000)
    """
    own = READINGS[check_choice("reading", reading, tuple(READINGS))]
    options = {"queue_size": 5000, **PAPER[dataset], "min_keep": 0.0, "min_effective": 0.0, **own}
    if reading == "pseudo-code":  # one scale for λ and κ
        options["intra_weight"] = options["weight_scale"]
    return options


PairsOption = str | Mapping[str, Sequence[str] | Mapping[str, float]]
Choice = TypeVar("Choice", str, bool)
MAX_OPTION = 1e6  # limit of options without a natural bound; larger values overflow float32


def build_loss(name: str, **options: Any) -> "nn.Module":
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
    key, cls = loss_key(name), loss_class(name)
    known = inspect.signature(cls).parameters
    if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in known.values()):
        _check_names(key, options, known)
    try:
        return cls(**options)
    except TypeError as error:
        raise ValueError(f"{key}: {error}") from error


def loss_class(name: str) -> "type[nn.Module]":
    """The class of a loss, by its name or by ``package.module:Class``.

    Example:
        >>> loss_class("mil-nce").__name__
        'MILNCE'
    """
    from torch import nn

    path = LOSS_PATHS.get(loss_key(name), name)
    module, _, attribute = path.partition(":")
    try:
        cls = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"the loss {path!r} cannot be loaded: {error}. Write package.module:Class; the package must be installed "
            "or on PYTHONPATH"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise ValueError(f"the loss {path!r} is not a class that inherits from torch.nn.Module")
    return cls


def loss_key(name: str) -> str:
    """The key of a loss in `LOSS_PATHS`; ignores case, "-" and "_", and returns ``module:Class`` unchanged."""
    if ":" in str(name):
        return str(name)
    key = str(name).lower().replace("-", "").replace("_", "")
    if key not in LOSS_PATHS:
        raise ValueError(f"there is no loss {name!r}; {suggest(key, LOSS_PATHS)}")
    return key


def check_options(name: str, options: Iterable[str]) -> None:
    """Check the names of a loss and its options without importing it. Options of your own losses are not checked."""
    key = loss_key(name)
    if key in LOSS_PATHS:
        _check_names(key, options, loss_options(key))


@cache
def loss_options(key: str) -> tuple[str, ...]:
    """The options of a loss of this package, in the order of its constructor, read from its source."""
    module, _, name = LOSS_PATHS[key].partition(":")
    constructor = _constructor(module, name)
    return tuple(argument.arg for argument in [*constructor.args.args, *constructor.args.kwonlyargs][1:])


def _constructor(module: str, name: str) -> ast.FunctionDef:
    """The constructor of a class, or of its first base in `crossclr.losses.base`."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the source of {module} is missing; reinstall the package")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (cls,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            return node
    return _constructor("crossclr.losses.base", ast.unparse(cls.bases[0]))


def _check_names(key: str, options: Iterable[str], known: Iterable[str]) -> None:
    for option in options:
        if option not in known:
            raise ValueError(f"{key} has no option {option!r}; {suggest(option, known)}")


def check_number(name: str, value: object, low: float, high: float = MAX_OPTION, above: bool = False) -> float:
    """A number within [low, high], or within (low, high] if ``above`` is set; an error names the option."""
    truth = isinstance(value, bool)  # bool is a subclass of int
    if isinstance(value, numbers.Real) and not truth:
        try:
            number = float(value)
        except OverflowError:  # 10**400
            number = math.inf
        if low <= number <= high and not (above and number == low):
            return number
    least = "above" if above else "at least"
    raise ValueError(f"{name} must be a number {least} {low:g} and at most {high:g}, got {_short(value)}")


def check_count(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number within [low, high]."""
    truth = isinstance(value, bool)
    if isinstance(value, numbers.Integral) and not truth:
        number = int(value)
        if low <= number and (high is None or number <= high):
            return number
    most = "" if high is None else f" and at most {high:,}"
    raise ValueError(f"{name} must be a whole number of at least {low}{most}, got {_short(value)}")


def check_choice(name: str, value: Choice, choices: tuple[Choice, ...]) -> Choice:
    """One of a few values."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {_short(value)}")
    return value


def check_temperature(value: object) -> float:
    """A temperature: logits of 1 / temperature must fit into float32."""
    return check_number("temperature", value, 1e-5)


def check_pairs(pairs: PairsOption) -> dict[tuple[str, str], float] | None:
    """The option ``pairs`` as a weight for each pair; None stands for all pairs.

    Example:
        >>> check_pairs({"text": ["video", "audio"]})
        {('text', 'video'): 1.0, ('text', 'audio'): 1.0}
        >>> check_pairs({"text": {"video": 1.0, "audio": 0.5}})
        {('text', 'video'): 1.0, ('text', 'audio'): 0.5}
    """
    if isinstance(pairs, str) and pairs == "all":
        return None
    if not isinstance(pairs, Mapping) or not pairs:
        raise ValueError(f"pairs must be 'all' or a mapping such as {{'text': ['video', 'audio']}}, got {pairs!r}")
    weights: dict[tuple[str, str], float] = {}
    for x, partners in pairs.items():
        if isinstance(partners, str) or not isinstance(partners, Mapping | Sequence):
            raise ValueError(f"pairs[{x!r}] must list the partners of {x!r}, got {partners!r}")
        for y in partners:
            if x == y or (x, y) in weights or (y, x) in weights:
                raise ValueError(f"pairs has {x!r} with {y!r}: name two different modalities, and each pair once")
            weight = partners[y] if isinstance(partners, Mapping) else 1.0
            weights[x, y] = check_number(f"the weight of pair {x!r}, {y!r}", weight, 0, above=True)
    if not weights:
        raise ValueError("pairs names no pair of modalities")
    return weights


def _short(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**12:
        return f"a whole number of {math.floor(math.log10(abs(value))) + 1} digits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
