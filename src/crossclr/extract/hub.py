"""Transformers models from the hub, from its cache or from a local folder, and networks for images among them."""

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from crossclr.devices import usable_device
from crossclr.extract.contract import ExpertError, ImageNetwork
from crossclr.extract.media import as_rgb
from crossclr.extras import requires_extra

LOADING_ERRORS = (OSError, ValueError, ImportError, KeyError)


def load_pretrained(loader: str, model: str, revision: str | None = None) -> Any:
    """``transformers.<loader>.from_pretrained(model)``, with one-line errors.

    Models of sentence-transformers load too, also those that keep their network in a sub-folder.
    """
    with requires_extra("experts", f"The model {model!r}"):
        import transformers
    local = Path(model).is_dir()
    if not local and (model.startswith((".", "/", "~")) or model.count("/") > 1):
        raise ExpertError(f"there is no folder {model}; name a folder with config.json, or a model of the hub")
    options = {} if local else {"revision": revision or "main"}
    load = getattr(transformers, loader).from_pretrained
    with _quiet():
        try:
            return load(model, **options)
        except LOADING_ERRORS as error:
            folder = _sentence_transformers_folder(model, options)
            if folder:
                return load(model, subfolder=folder, **options)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ExpertError(
                f"the model {model!r} cannot be loaded as {loader} ({reason}); a hub model needs the network once, or "
                "a filled cache; a local model needs the folder that `save_pretrained` wrote"
            ) from error


def load_network(model: str, revision: str | None, device: torch.device | str, loader: str = "AutoModel") -> Any:
    """A transformers network in float32, ready to encode on a device."""
    return load_pretrained(loader, model, revision).float().eval().to(device)


def run_layer(network: Any, layer: str, model: str, **inputs: Tensor) -> Tensor:
    """(samples, dim): one row for each sample from a transformers vision or sound model.

    The layer is ``mean`` (of the last state over its positions), ``first`` (its first token), ``pooled`` (the model's
    own pooler), or the number of a hidden state, such as ``-2``, which is averaged.
    """
    with torch.inference_mode():
        outputs = network(**inputs, output_hidden_states=layer.lstrip("-").isdigit())
    if layer == "pooled":
        return pooler_output(outputs, model)
    try:
        states = outputs.last_hidden_state if layer in ("mean", "first") else outputs.hidden_states[int(layer)]
    except (ValueError, IndexError, TypeError):
        raise ExpertError(
            f"{model!r} has no layer {layer!r}; use mean, first, pooled or the number of a hidden state"
        ) from None
    if layer == "first":
        if states.ndim != 3:
            raise ExpertError(f"{model!r} has no tokens, so there is no first one; use layer=mean")
        return torch.as_tensor(states[:, 0])
    return torch.as_tensor(states.mean(1) if states.ndim == 3 else states.flatten(2).mean(2))


def pooler_output(outputs: Any, model: str) -> Tensor:
    """(samples, dim) of the model's own pooler."""
    pooled = outputs if isinstance(outputs, Tensor) else getattr(outputs, "pooler_output", None)
    if pooled is None:
        raise ExpertError(f"{model!r} has no pooler; use layer=mean")
    return torch.as_tensor(pooled).flatten(1)


def count_channels(encode: Callable[[], Tensor], model: str, hint: str) -> int:
    """Run a network once on a blank input and return the channels of its rows."""
    try:
        rows = encode()
    except ExpertError:
        raise
    except Exception as error:  # any network of a user: whatever it raises, it cannot take this input
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        raise ExpertError(f"{model} cannot be used here ({reason}); {hint}") from error
    if rows.ndim != 2:
        raise ExpertError(f"{model} returns shape {tuple(rows.shape)}, but one row for each input is needed")
    return int(rows.shape[1])


def version_of(network: Any, model: str) -> str:
    """The hub revision of a network, or a digest of a local folder."""
    commit = getattr(getattr(network, "config", None), "_commit_hash", None)
    if commit:
        return str(commit)
    folder = Path(model)
    return digest_of(*sorted(path for path in folder.rglob("*") if path.is_file())) if folder.is_dir() else "unknown"


def digest_of(*files: Path) -> str:
    """A short digest of files; only the first and last MiB of a large file count."""
    digest = hashlib.blake2b(digest_size=8)
    edge = 1 << 20
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name}:{size};".encode())
        with file.open("rb") as opened:
            digest.update(opened.read(edge))
            if size > 2 * edge:
                opened.seek(-edge, 2)
            digest.update(opened.read(edge))
    return digest.hexdigest()


def is_cached(model: str) -> bool:
    """Whether a model loads without network access: it is a local folder or in the hub's cache."""
    if Path(model).is_dir():
        return True
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except (ImportError, ValueError):
        return False


def image_processor(model: str, revision: str | None) -> Callable[[Any], Tensor]:
    """A model's own preparation of one RGB image: (3, height, width)."""
    processor = load_pretrained("AutoImageProcessor", model, revision)
    takes_videos = "videos" in inspect.signature(processor.preprocess).parameters

    def prepare(image: Any) -> Tensor:
        if takes_videos:
            pixels: Tensor = processor([image], return_tensors="pt")["pixel_values"][0, 0]
        else:
            pixels = processor(images=image, return_tensors="pt")["pixel_values"][0]
        return pixels

    return prepare


class HubNetwork(ImageNetwork):
    """A transformers vision model: CLIP, SigLIP, DINO, ViT, ConvNeXt or ResNet; VideoMAE, TimeSformer or ViViT.

    A video model takes a fixed number of frames (16 for VideoMAE), which are picked evenly from each window.

    Args:
        model: hub name or local folder.
        layer: ``mean`` (of the last hidden state over its positions), ``first`` (its first token, for models with a
            class token), ``pooled`` (the model's own pooler), or the number of a hidden state, such as ``-2``, which is
            averaged. For ``mean``, a model that embeds images and texts (CLIP, SigLIP) returns its image embedding.
        device: where the network runs.
        revision: revision of the hub.
    """

    hint = "use an image model such as CLIP, DINO or ViT, or for windows of frames a video model such as VideoMAE"

    def __init__(
        self, model: str, layer: str = "mean", device: torch.device | str = "cpu", revision: str | None = None
    ) -> None:
        self._prepare = image_processor(model, revision)
        self._network = load_network(model, revision, device)
        self.device = usable_device(device)
        self.model, self.layer, self.version = model, str(layer), version_of(self._network, model)
        if self.layer == "mean" and hasattr(self._network, "get_text_features"):
            self.space = f"{model} {self.version}"

    def prepare(self, image: Any) -> Tensor:
        """The model's own preparation."""
        return self._prepare(as_rgb(image))

    def images(self, prepared: Sequence[Tensor]) -> Tensor:
        """(images, dim)."""
        pixels = torch.stack(list(prepared)).to(self.device)
        if self.layer == "mean" and hasattr(self._network, "get_image_features"):
            with torch.inference_mode():
                return pooler_output(self._network.get_image_features(pixel_values=pixels), self.model)
        return run_layer(self._network, self.layer, self.model, pixel_values=pixels)

    def windows(self, prepared: Sequence[Tensor], length: int) -> Tensor:
        """(windows, dim)."""
        config = self._network.config
        frames = int(getattr(getattr(config, "vision_config", config), "num_frames", length))
        picked = torch.stack([pick_frames(window, frames) for window in prepared])
        if self.layer == "mean" and hasattr(self._network, "get_video_features"):  # X-CLIP
            with torch.inference_mode():
                embedded = self._network.get_video_features(pixel_values=picked.to(self.device))
            return pooler_output(embedded, self.model)
        return run_layer(self._network, self.layer, self.model, pixel_values=picked.to(self.device))


def pick_frames(window: Tensor, frames: int) -> Tensor:
    """Pick frames at even distances, the centres of equal parts; a shorter window repeats its last frame.

    Example:
        >>> pick_frames(torch.arange(32), 4).tolist(), pick_frames(torch.arange(2), 4).tolist()
        ([4, 12, 20, 28], [0, 1, 1, 1])
    """
    if len(window) <= frames:
        return repeat_last(window, frames)
    centres = (2 * torch.arange(frames) + 1) * len(window) // (2 * frames)
    return window[centres]


def repeat_last(window: Tensor, frames: int) -> Tensor:
    """A window of at least ``frames`` frames, in which the last frame is repeated.

    Example:
        >>> repeat_last(torch.arange(3), 5).tolist()
        [0, 1, 2, 2, 2]
    """
    missing = frames - len(window)
    return window if missing <= 0 else torch.cat([window, window[-1:].expand(missing, *window.shape[1:])])


def _sentence_transformers_folder(model: str, options: dict[str, Any]) -> str:
    """The sub-folder of a sentence-transformers model that holds its network; empty for all other models."""
    from transformers.utils.hub import cached_file

    try:
        modules = json.loads(Path(str(cached_file(model, "modules.json", **options))).read_text(encoding="utf-8"))
        return str(modules[0]["path"])
    except (*LOADING_ERRORS, IndexError, TypeError):
        return ""


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide transformers' progress bars and its warnings about unused weights."""
    from transformers.utils import logging

    library: Any = logging
    bars, level = library.is_progress_bar_enabled(), library.get_verbosity()
    library.disable_progress_bar()
    library.set_verbosity_error()
    try:
        yield
    finally:
        library.set_verbosity(level)
        if bars:
            library.enable_progress_bar()
