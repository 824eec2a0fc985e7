"""Networks that are given as a file, ONNX or TorchScript: for pictures and for windows of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.experts.contract import ExpertError, FloatRows, FrameExpert, Needs, WindowExpert
from crossclr.experts.media.images import IMAGENET, Preparation
from crossclr.experts.networks.hub import digest_of
from crossclr.extras import requires_extra

Triple = tuple[float, float, float]


def open_network(path: str | Path, layer: str | None, device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function from the input tensor to the chosen output.

    Args:
        path: ``.onnx``, or TorchScript (``.pt``, ``.ts``, ``.torchscript``). Loading either runs no Python of the file.
        layer: the name of the output; left out, the first. TorchScript that gives a dictionary is asked for this key.
        device: where TorchScript runs; ONNX runs on the CPU.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ExpertError(f"there is no file {path}; an .onnx or TorchScript file is needed")
    if path.suffix == ".onnx":
        return _open_onnx(path, layer)
    if path.suffix not in (".pt", ".ts", ".torchscript", ".pth"):
        raise ExpertError(f"{path}: an .onnx or a TorchScript file (.pt, .ts, .torchscript) is needed")
    try:
        network: Any = torch.jit.load(str(path), map_location=device)  # type: ignore[no-untyped-call]
        network.eval()
    except (RuntimeError, ValueError) as error:
        raise ExpertError(
            f"{path} is no TorchScript ({str(error).splitlines()[0]}); weights alone are not enough: trace the network "
            "with torch.jit.trace and save that"
        ) from error

    def run(inputs: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.as_tensor(_chosen(network(inputs), layer, path))

    return run


def _open_onnx(path: Path, layer: str | None) -> Callable[[Tensor], Tensor]:
    with requires_extra("experts", f"The network {path}"):
        import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has exceptions of its own, all of them straight from Exception
        raise ExpertError(f"{path} cannot be read as ONNX ({str(error).splitlines()[0]})") from error
    names = [output.name for output in session.get_outputs()]
    if layer is not None and layer not in names:
        raise ExpertError(f"{path} has no output {layer!r}; there are {', '.join(names)}")
    name = session.get_inputs()[0].name

    def run(inputs: Tensor) -> Tensor:
        return torch.from_numpy(session.run([layer or names[0]], {name: inputs.cpu().numpy()})[0])

    return run


def _chosen(outputs: Any, layer: str | None, path: Path) -> Any:
    if isinstance(outputs, dict):
        if layer is not None and layer not in outputs:
            raise ExpertError(f"{path} has no output {layer!r}; there are {', '.join(outputs)}")
        return outputs[layer] if layer is not None else next(iter(outputs.values()))
    return outputs[0] if isinstance(outputs, tuple | list) else outputs


class FileImages(FrameExpert):
    """One row for each picture from a network in a file, which takes (pictures, 3, crop, crop).

    An output with positions, (pictures, dim, height, width), is averaged over them.

    Args:
        model: the file.
        layer: the name of the output; left out, the first.
        shorter: pixels of the shorter side after scaling.
        crop: pixels of the square that is cut out of the centre.
        mean: of each channel, in the scale of 0 to 255; ImageNet's unless given.
        deviation: of each channel, likewise.
        rate: frames a second.
        batch_size: pictures encoded at once.
        device: where the network runs.
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
        self.device = torch.device(device)
        self._network = open_network(model, layer, self.device)
        self._preparation = Preparation(shorter, crop, _triple(mean), _triple(deviation))
        self.needs = Needs("frames", rate)
        self.model, self.layer, self.batch_size = Path(model).name, layer or "first output", batch_size
        self.version = digest_of(Path(model).expanduser())
        self.dim = _dim_of(self._rows, torch.zeros(1, 3, crop, crop), model)

    def prepare(self, picture: Any) -> Tensor:
        """(3, crop, crop) uint8."""
        return self._preparation(picture)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(pictures, dim)."""
        rows: FloatRows = self._rows(self._preparation.normalise(prepared, self.device)).float().cpu().numpy()
        return rows

    def _rows(self, pixels: Tensor) -> Tensor:
        found = self._network(pixels.to(self.device))
        return found.flatten(2).mean(2) if found.ndim > 2 else found


class FileWindows(WindowExpert):
    """One row for each window of frames from a network in a file, which takes (windows, 3, frames, crop, crop).

    Args:
        model: the file.
        layer: the name of the output; left out, the first.
        rate: frames a second; 10 is the paper's.
        window: frames of a window.
        stride: frames from one window to the next.
        shorter: pixels of the shorter side after scaling.
        crop: pixels of the square that is cut out of the centre.
        mean: of each channel, in the scale of 0 to 255.
        deviation: of each channel, likewise.
        batch_size: windows encoded at once.
        device: where the network runs.
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
        self.device = torch.device(device)
        self._network = open_network(model, layer, self.device)
        self._preparation = Preparation(shorter, crop, _triple(mean), _triple(deviation), "bilinear")
        self.needs = Needs("windows", rate, window, stride)
        self.model, self.layer, self.batch_size = Path(model).name, layer or "first output", batch_size
        self.version = digest_of(Path(model).expanduser())
        self.dim = _dim_of(self._rows, torch.zeros(1, window, 3, crop, crop), model)

    def prepare(self, picture: Any) -> Tensor:
        """(3, crop, crop) uint8."""
        return self._preparation(picture)

    def encode(self, prepared: Sequence[Tensor]) -> FloatRows:
        """(windows, dim); windows of different lengths go through the network apart."""
        shortest = max(self.needs.window // 2, 1)
        windows = [fill_up(window, shortest) for window in prepared]
        rows = np.empty((len(windows), self.dim), dtype=np.float32)
        for length in sorted({len(window) for window in windows}):
            chosen = [index for index, window in enumerate(windows) if len(window) == length]
            pixels = self._preparation.normalise([windows[index] for index in chosen], self.device)
            rows[chosen] = self._rows(pixels).float().cpu().numpy()
        return rows

    def _rows(self, pixels: Tensor) -> Tensor:
        found = self._network(pixels.to(self.device).transpose(1, 2).contiguous())  # (windows, 3, frames, crop, crop)
        return found.flatten(2).mean(2) if found.ndim > 2 else found


def fill_up(window: Tensor, frames: int) -> Tensor:
    """A window of at least so many frames: the last one is repeated.

    Example:
        >>> fill_up(torch.arange(3), 5).tolist()
        [0, 1, 2, 2, 2]
    """
    missing = frames - len(window)
    return window if missing <= 0 else torch.cat([window, window[-1:].expand(missing, *window.shape[1:])])


def _dim_of(rows: Callable[[Tensor], Tensor], blank: Tensor, model: str) -> int:
    try:
        found = rows(blank)
    except ExpertError:
        raise
    except Exception as error:  # the file's own network: whatever it raises, it cannot take this input
        raise ExpertError(
            f"{model} cannot take an input of shape {tuple(blank.shape)} ({str(error).strip().splitlines()[-1]}); set "
            "crop (and window) to what it was exported for, with a free first axis"
        ) from error
    if found.ndim != 2:
        raise ExpertError(f"{model} gives shape {tuple(found.shape)}; one row for each input is needed")
    return int(found.shape[1])


def _triple(values: Sequence[float]) -> Triple:
    first, second, third = (float(value) for value in values)
    return first, second, third
