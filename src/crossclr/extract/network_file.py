"""Networks for images from an ONNX or TorchScript file, and the preparation of their images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from crossclr.devices import usable_device
from crossclr.extract.contract import ExpertError, ImageNetwork
from crossclr.extract.hub import digest_of, repeat_last
from crossclr.extract.media import as_rgb
from crossclr.extras import requires_extra

# Mean and deviation of each channel, on a scale of 0 to 255.
IMAGENET = ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
KINETICS = ((110.2008, 100.63983, 95.99475), (58.14765, 56.46975, 55.332195))


@dataclass(frozen=True)
class Preparation:
    """Scale, crop and normalise images.

    Example:
        >>> import numpy as np
        >>> ready = Preparation(8, 8, (0, 0, 0), (255, 255, 255))(np.full((20, 30, 3), 255, np.uint8))
        >>> ready.dtype, ready.shape
        (torch.uint8, torch.Size([3, 8, 8]))
    """

    shorter: int  # length of the shorter side after scaling, in pixels
    crop: int  # side of the central square that is kept, in pixels
    mean: Sequence[float]  # mean of each channel, on a scale of 0 to 255
    deviation: Sequence[float]  # standard deviation of each channel, on the same scale
    filter: str = "bicubic"  # Pillow's resampling filter, ``bicubic`` or ``bilinear``

    def __call__(self, image: Any) -> Tensor:
        """(3, crop, crop) uint8, a quarter of the size of the float input, so that queues stay small."""
        opaque = as_rgb(image)
        import PIL.Image

        width, height = opaque.size
        scale = self.shorter / min(width, height)
        scaled = (max(self.shorter, round(width * scale)), max(self.shorter, round(height * scale)))
        resized = opaque.resize(scaled, PIL.Image.Resampling[self.filter.upper()])
        left, top = (scaled[0] - self.crop) // 2, (scaled[1] - self.crop) // 2
        pixels = np.array(resized.crop((left, top, left + self.crop, top + self.crop)))  # (crop, crop, 3)
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()

    def normalise(self, prepared: Sequence[Tensor], device: torch.device) -> Tensor:
        """(images, ..., 3, crop, crop) float32 from prepared images, or from windows of them."""
        pixels = torch.stack(list(prepared)).to(device, torch.float32)
        mean = torch.tensor(self.mean, device=device).view(3, 1, 1)
        return pixels.sub_(mean).div_(torch.tensor(self.deviation, device=device).view(3, 1, 1))


TORCHSCRIPT = (".pt", ".ts", ".torchscript", ".pth")
ENDINGS = (".onnx", *TORCHSCRIPT)


class FileNetwork(ImageNetwork):
    """A network in a file. Its input is (images, 3, crop, crop), or (windows, 3, frames, crop, crop) for windows.

    An output with positions, (images, dim, height, width), is averaged over them.

    Args:
        model: the file.
        layer: the name of the output; default: the first output.
        shorter: length of the shorter side after scaling, in pixels.
        crop: side of the central square that is kept, in pixels.
        mean: mean of each channel, on a scale of 0 to 255; default: ImageNet's, and 0 for windows.
        deviation: standard deviation of each channel, on the same scale; default: ImageNet's, and 255 for windows.
        filter: Pillow's resampling filter; default: ``bicubic``, and ``bilinear`` for windows.
        device: where the network runs; ONNX runs on the CPU.
    """

    hint = "set crop (and window) to the size it was exported for, and export it with a free first axis"

    def __init__(
        self,
        model: str,
        layer: str | None = None,
        shorter: int = 256,
        crop: int = 224,
        mean: Sequence[float] = IMAGENET[0],
        deviation: Sequence[float] = IMAGENET[1],
        filter: str = "bicubic",
        device: torch.device | str = "cpu",
    ) -> None:
        self.device, self._preparation = usable_device(device), Preparation(shorter, crop, mean, deviation, filter)
        self._run = open_network(model, layer, self.device)
        self.model, self.layer = Path(model).name, layer or "first output"
        self.version = digest_of(Path(model).expanduser())

    def prepare(self, image: Any) -> Tensor:
        """(3, crop, crop) uint8."""
        return self._preparation(image)

    def images(self, prepared: Sequence[Tensor]) -> Tensor:
        """(images, dim)."""
        return self._run(self._preparation.normalise(prepared, self.device))

    def windows(self, prepared: Sequence[Tensor], length: int) -> Tensor:
        """(windows, dim); only windows of equal length share a batch."""
        windows = [repeat_last(window, max(length // 2, 1)) for window in prepared]
        rows: dict[int, Tensor] = {}
        for frames in sorted({len(window) for window in windows}):
            indices = [index for index, window in enumerate(windows) if len(window) == frames]
            pixels = self._preparation.normalise([windows[index] for index in indices], self.device)
            # the network takes (windows, 3, frames, crop, crop)
            rows.update(zip(indices, self._run(pixels.transpose(1, 2).contiguous()), strict=True))
        return torch.stack([rows[index] for index in range(len(windows))])


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
        output = run(inputs)
        return (output.flatten(2).mean(2) if output.ndim > 2 else output).float().cpu()

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
