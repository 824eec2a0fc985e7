"""Sound to features with a transformers audio model: wav2vec 2, HuBERT, WavLM, Whisper, AST."""

from typing import Any

import numpy as np
import torch

from crossclr.experts.contract import FloatRows, Needs, SoundExpert
from crossclr.experts.networks.hub import load_network, load_pretrained, run_layer, version_of


class HubSound(SoundExpert):
    """One row for each window of sound from a transformers audio model.

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
        self.device = torch.device(device)
        rate = int(getattr(self._extractor, "sampling_rate", 16000))
        self.needs = Needs("sound", rate, round(window * rate), round(stride * rate))
        self.model, self.layer, self.batch_size = model, str(layer), batch_size
        self.version = version_of(self._network, model)
        self.dim = int(self.encode(np.zeros(self.needs.window, np.float32)).shape[1])

    def encode(self, samples: FloatRows) -> FloatRows:
        """(rows, dim)."""
        needs = self.needs
        windows = np.lib.stride_tricks.sliding_window_view(samples, needs.window)[:: needs.stride]  # (rows, window)
        parts = []
        for start in range(0, len(windows), self.batch_size):
            block = [np.array(window) for window in windows[start : start + self.batch_size]]
            inputs = self._extractor(block, sampling_rate=int(needs.rate), return_tensors="pt").to(self.device)
            parts.append(run_layer(self._network, self.layer, self.model, **inputs).float().cpu().numpy())
        return np.concatenate(parts)
