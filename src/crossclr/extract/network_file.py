"""Networks from an ONNX or TorchScript file, for images and for windows of frames."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.extract.contract import ExpertError, FloatRows, FrameExpert, Needs, WindowExpert
from crossclr.extract.efficientnet import IMAGENET, Preparation
from crossclr.extract.hub import count_channels, digest_of
from crossclr.extract.hub_models import repeat_last
from crossclr.extras import requires_extra

TORCHSCRIPT = (".pt", ".ts", ".torchscript", ".pth")
ENDINGS = (".onnx", *TORCHSCRIPT)
HINT = "set crop (and window) to the size it was exported for, and export it with a free first axis"


class NetworkFile(FrameExpert):
    """What experts with a network in a file share: opening it and preparing images."""

    def _open(self, model: str, layer: str | None, device: torch.device | str, preparation: Preparation) -> None:
        self.device, self._preparation = torch.device(device), preparation
        self._network = open_network(model, layer, self.device)
        self.model, self.layer = Path(model).name, layer or "first output"
        self.version = digest_of(Path(model).expanduser())

    def prepare(self, image: Any) -> Tensor:
        """(3, crop, crop) uint8."""
        return self._preparation(image)


class FileImages(NetworkFile):
    """One row for each image from a network in a file, whose input is (images, 3, crop, crop).

    An output with positions, (images, dim, height, width), is averaged over them.

    Args:
        model: the file.
        layer: the name of the output; default: the first output.
        shorter: length of the shorter side after scaling, in pixels.
        crop: side of the central square that is kept, in pixels.
        mean: mean of each channel, on a scale of 0 to 255; default: ImageNet's.
        deviation: standard deviation of each channel, on the same scale.
        rate: frames per second.
        batch_size: images encoded at once.
        device: where the network runs; ONNX runs on the CPU.
    """

    name = "appearance"

    def __init__(
        self,
        model: str,
        layer: str | None = None,
        shorter: int = 256,
        crop: int = 224,
        mean: Sequence[float] = IMAGENET[0],
        deviation: Sequence[float] = IMAGENET[1],
        rate: float = 1.0,
        batch_size: int = 16,
        device: torch.device | str = "cpu",
    ) -> None:
        self._open(model, layer, device, Preparation(shorter, crop, mean, deviation))
        self.needs, self.batch_size = Needs("frames", rate), batch_size
        self.dim = count_channels(lambda: self._network(torch.zeros(1, 3, crop, crop)), model, HINT)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(images, dim)."""
        rows: FloatRows = self._network(self._preparation.normalise(prepared, self.device)).numpy()
        return rows


class FileWindows(NetworkFile, WindowExpert):
    """One row for each window of frames from a network in a file, whose input is (windows, 3, frames, crop, crop).

    Args:
        model: the file.
        layer: the name of the output; default: the first output.
        rate: frames per second; the paper uses 10.
        window: frames of a window.
        stride: frames from one window to the next.
        shorter: length of the shorter side after scaling, in pixels.
        crop: side of the central square that is kept, in pixels.
        mean: mean of each channel, on a scale of 0 to 255.
        deviation: standard deviation of each channel, on the same scale.
        batch_size: windows encoded at once.
        device: where the network runs; ONNX runs on the CPU.
    """

    name = "action"

    def __init__(
        self,
        model: str,
        layer: str | None = None,
        rate: float = 10.0,
        window: int = 32,
        stride: int = 16,
        shorter: int = 224,
        crop: int = 224,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        deviation: Sequence[float] = (255.0, 255.0, 255.0),
        batch_size: int = 4,
        device: torch.device | str = "cpu",
    ) -> None:
        self._open(model, layer, device, Preparation(shorter, crop, mean, deviation, "bilinear"))
        self.needs, self.batch_size = Needs("windows", rate, window, stride), batch_size
        self.dim = count_channels(lambda: self._network(torch.zeros(1, 3, window, crop, crop)), model, HINT)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(windows, dim); only windows of equal length share a batch."""
        shortest = max(self.needs.window // 2, 1)
        windows = [repeat_last(window, shortest) for window in prepared]
        rows = np.empty((len(windows), self.dim), dtype=np.float32)
        for length in sorted({len(window) for window in windows}):
            chosen = [index for index, window in enumerate(windows) if len(window) == length]
            pixels = self._preparation.normalise([windows[index] for index in chosen], self.device)
            rows[chosen] = self._network(
                pixels.transpose(1, 2).contiguous()
            ).numpy()  # (windows, 3, frames, crop, crop)
        return rows


def open_network(path: str | Path, layer: str | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from the input tensor to the rows of the chosen output, averaged over positions, on the CPU.

    ``layer`` is the name of the output, or the key if TorchScript returns a dictionary; None takes the first. Loading
    runs no Python code of the file.
    """
    path = Path(path).expanduser()
    if path.suffix not in ENDINGS:
        raise ExpertError(f"{path}: an .onnx or a TorchScript file ({', '.join(TORCHSCRIPT)}) is needed")
    if not path.is_file():
        raise ExpertError(f"there is no file {path}; an .onnx or TorchScript file is needed")
    run = _open_onnx(path, layer) if path.suffix == ".onnx" else _open_torchscript(path, layer, device)

    def rows(inputs: Tensor) -> Tensor:
        found = run(inputs)
        return (found.flatten(2).mean(2) if found.ndim > 2 else found).float().cpu()

    return rows


def _open_torchscript(path: Path, layer: str | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    try:
        network: Any = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        network.eval()
    except (RuntimeError, ValueError) as error:
        raise ExpertError(
            f"{path} is not TorchScript ({str(error).splitlines()[0]}); weights alone are not enough: trace the "
            "network with torch.jit.trace and save the result"
        ) from error

    def run(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            outputs = network(inputs.to(device))
        if isinstance(outputs, dict):
            _check_output(path, layer, list(outputs))
            return torch.as_tensor(outputs[layer or next(iter(outputs))])
        return torch.as_tensor(outputs[0] if isinstance(outputs, tuple | list) else outputs)

    return run


def _open_onnx(path: Path, layer: str | None) -> Callable[[Tensor], Tensor]:
    with requires_extra("experts", f"The network {path}"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the exceptions of onnxruntime have no base class of their own
        raise ExpertError(f"{path} cannot be read as ONNX ({str(error).splitlines()[0]})") from error
    outputs = [output.name for output in session.get_outputs()]
    _check_output(path, layer, outputs)
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run([layer or outputs[0]], {name: inputs.cpu().numpy()})[0])


def _check_output(path: Path, layer: str | None, outputs: Sequence[str]) -> None:
    if layer is not None and layer not in outputs:
        raise ExpertError(f"{path} has no output {layer!r}; it has {', '.join(outputs)}")
