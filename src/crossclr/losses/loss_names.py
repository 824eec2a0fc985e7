"""The losses by name, with their locations and options, without importing them.

Reading a config needs the names and options of losses and must not load PyTorch. So the options are read from the
source of each constructor.
"""

import ast
from collections.abc import Iterable
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from crossclr.suggestions import suggest

PLACES = {
    "crossclr": "crossclr.losses.crossclr:CrossCLR",
    "clip": "crossclr.losses.clip:CLIP",
    "ntxent": "crossclr.losses.ntxent:NTXent",
    "maxmargin": "crossclr.losses.maxmargin:MaxMargin",
    "milnce": "crossclr.losses.milnce:MILNCE",
    "dcl": "crossclr.losses.dcl:DCL",
    "siglip": "crossclr.losses.siglip:SigLIP",
    "coot": "crossclr.losses.coot:Coot",
}
"""``module:Class`` of every loss. A new loss is one file and one entry here."""


def loss_key(name: str) -> str:
    """The key of a loss in `PLACES`; ignores case, "-" and "_", and returns ``module:Class`` unchanged."""
    if ":" in str(name):
        return str(name)
    key = str(name).lower().replace("-", "").replace("_", "")
    if key not in PLACES:
        raise ValueError(f"there is no loss {name!r}; {suggest(key, PLACES)}")
    return key


def check_options(name: str, options: Iterable[str]) -> None:
    """Check the names of a loss and its options without importing it. Options of your own losses are not checked."""
    key = loss_key(name)
    if key in PLACES:
        known = loss_options(key)
        for option in options:
            if option not in known:
                raise ValueError(f"{key} has no option {option!r}; {suggest(option, known)}")


@cache
def loss_options(key: str) -> tuple[str, ...]:
    """The options of a loss of this package, in the order of its constructor."""
    arguments = _constructor(*PLACES[key].split(":")).args
    return tuple(argument.arg for argument in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs][1:])


def _constructor(module: str, name: str) -> ast.FunctionDef:
    """The constructor of a class, or of its first base in `crossclr.losses.base`."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"the source of {module} is missing; reinstall the package")
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    own = [node for node in found.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return own[0] if own else _constructor("crossclr.losses.base", ast.unparse(found.bases[0]))
