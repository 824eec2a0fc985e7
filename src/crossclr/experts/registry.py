"""Build an expert by its name, with its default model or another one."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from crossclr.experts.contract import Expert, ExpertError
from crossclr.experts.networks.hub import is_cached
from crossclr.experts.networks.network_file import ENDINGS
from crossclr.experts.presets import PRESETS, Preset
from crossclr.suggestions import suggest


@dataclass(frozen=True)
class Spec:
    """What a user writes for an expert.

    Example:
        >>> Spec.parse("text"), Spec.parse("appearance=openai/clip-vit-base-patch32").model
        (Spec(label='text', name='text', model=''), 'openai/clip-vit-base-patch32')
        >>> Spec.parse("vit=appearance:google/vit-base-patch16-224")
        Spec(label='vit', name='appearance', model='google/vit-base-patch16-224')
    """

    label: str  # what the expert and its feature file are called
    name: str  # the name of a preset
    model: str = ""  # the model to use; empty for the preset's own

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read ``name``, ``name=model``, ``name:model``, ``label=name`` or ``label=name:model``."""
        before, equals, after = text.strip().partition("=")
        if not equals or ":" in before:
            name, _, model = text.strip().partition(":")
            spec = cls(name, name, model)
        elif before in PRESETS and after.partition(":")[0] not in PRESETS:
            spec = cls(before, before, after)
        else:
            name, _, model = after.partition(":")
            spec = cls(before, name, model)
        if not spec.label or not all(letter.isalnum() or letter in "-_" for letter in spec.label):
            raise ExpertError(f"{spec.label!r} is not a name for an expert: use letters, digits, - and _")
        return spec


def load(spec: str, **options: Any) -> Expert:
    """Build an expert by name, ready to be called.

    Args:
        spec: a name of ``expert_names()``. ``name=model`` uses another model: a hub name, a local folder, or an ONNX or
            TorchScript file. ``label=name:model`` also renames the expert.
        options: arguments of its class, such as ``rate`` or ``batch_size``.

    Raises:
        ExpertError: there is no such expert, model or option.
        MissingExtraError: a package is missing; the message says which.

    Example:
        >>> import numpy as np
        >>> appearance = load("appearance")
        >>> appearance(np.zeros((2, 48, 64, 3), dtype=np.uint8)).shape
        (2, 1280)
    """
    parsed = Spec.parse(spec)
    name, model = parsed.name, parsed.model
    preset = find_preset(name)
    if not model and preset.weights == "file":
        raise ExpertError(
            f"expert {name!r} needs a file: write {name}=FILE.onnx (or TorchScript). The file must hold "
            f"{preset.model}, from {preset.source}"
        )
    is_file = model.lower().endswith(ENDINGS)
    path = preset.builder(preset.weights) if not model else preset.builder("file" if is_file else "hub")
    if not path:
        kind = "an ONNX or TorchScript file" if is_file else "a hub model"
        raise ExpertError(f"expert {name!r} cannot use {kind}, got {model!r}")
    module, _, attribute = path.rpartition(".")
    builder = getattr(importlib.import_module(f"crossclr.experts.networks.{module}"), attribute)
    known = inspect.signature(builder).parameters
    arguments = dict(options)
    if not model or preset.weights == "file":
        arguments = {key: value for key, value in preset.options.items() if key in known} | arguments
    if model or preset.weights == "hub":
        arguments["model"] = model or preset.model
    unknown = [option for option in arguments if option not in known]
    if unknown:
        raise ExpertError(f"expert {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}")
    expert: Expert = builder(**arguments)
    expert.name, expert.spec = parsed.label, spec
    expert.options = {key: value for key, value in options.items() if key != "device"}
    return expert


def load_experts(specs: Sequence[str], options: Mapping[str, Mapping[str, Any]] | None = None) -> list[Expert]:
    """Build several experts by their specs (see ``load``), with options by label.

    Raises:
        ExpertError: two experts have the same label, or options name an expert that is not there.
    """
    labels = [Spec.parse(spec).label for spec in specs]
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ExpertError(f"expert {twice[0]!r} is named twice; rename one of them: label={twice[0]}:model")
    unknown = set(options or {}) - set(labels)
    if unknown:
        raise ExpertError(f"an option is set for {sorted(unknown)[0]!r}, but the experts are {', '.join(labels)}")
    return [load(spec, **(options or {}).get(label, {})) for spec, label in zip(specs, labels, strict=True)]


def find_preset(name: str) -> Preset:
    """The preset of a name."""
    if name not in PRESETS:
        raise ExpertError(f"there is no expert {name!r}; {suggest(name, PRESETS)}")
    return PRESETS[name]


def expert_names() -> list[str]:
    """The names of all experts.

    Example:
        >>> expert_names()[:2]
        ['text', 'bert-paper']
    """
    return list(PRESETS)


def works_offline(name: str) -> str:
    """Whether an expert works on this machine without network access: ``yes``, or what is missing."""
    preset = find_preset(name)
    missing = [package for package in preset.packages if find_spec(package) is None]
    if missing:
        return f"no: {missing[0]} is not installed"
    if preset.weights == "file":
        return "with its file"
    if preset.weights == "hub":
        return "yes (cached)" if is_cached(preset.model) else "no: the first use downloads the model"
    return "yes"
