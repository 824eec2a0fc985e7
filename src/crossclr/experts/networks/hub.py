"""Loading transformers models: from the hub, from its cache, or from a local folder, by one code path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossclr.experts.contract import ExpertError
from crossclr.extras import requires_extra


def load_pretrained(loader: str, model: str, revision: str | None = None, **options: Any) -> Any:
    """``transformers.<loader>.from_pretrained(model)``, with faults in words.

    Args:
        loader: a class of transformers, as ``AutoModel``.
        model: a hub name or a local folder.
        revision: of the hub.
        options: further arguments of ``from_pretrained``.

    Raises:
        ImportError: transformers is not installed.
        ExpertError: the model is neither a folder nor can it be fetched, or it is of another kind.
    """
    with requires_extra("experts", f"The model {model!r}"):
        import transformers
    if _looks_like_path(model) and not Path(model).is_dir():
        raise ExpertError(f"there is no folder {model}; a local folder with config.json or a hub name is needed")
    arguments = options if Path(model).is_dir() else {**options, "revision": revision or "main"}
    try:
        with quiet():
            return getattr(transformers, loader).from_pretrained(model, **arguments)
    except (OSError, ValueError, ImportError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ExpertError(
            f"the model {model!r} cannot be loaded as {loader} ({first}); a hub model needs the network once (or a "
            "filled cache), a local one the folder that `save_pretrained` wrote"
        ) from error


def version_of(network: Any, model: str) -> str:
    """The revision of the hub that a network came from, or a digest of a local folder's config and weights' sizes."""
    commit = getattr(getattr(network, "config", None), "_commit_hash", None)
    if commit:
        return str(commit)
    folder = Path(model)
    return digest_of(*sorted(path for path in folder.iterdir() if path.is_file())) if folder.is_dir() else "unknown"


def digest_of(*files: Path) -> str:
    """A short digest of the content of files, for large ones of their beginning and end."""
    import hashlib

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
    """Whether a hub model can be loaded without the network, or is a local folder."""
    if Path(model).is_dir():
        return True
    try:
        from huggingface_hub import try_to_load_from_cache

        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except (ImportError, ValueError):
        return False


@contextmanager
def quiet() -> Iterator[None]:
    """Transformers without its bars and its remarks on unused weights."""
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


def picture_processor(model: str, revision: str | None) -> Callable[[Any], Any]:
    """A model's own preparation of one picture: (3, height, width) of an RGB picture."""
    processor = load_pretrained("AutoImageProcessor", model, revision)
    video = "videos" in _arguments_of(processor.preprocess)

    def prepare(picture: Any) -> Any:
        if video:
            return processor([picture], return_tensors="pt")["pixel_values"][0, 0]
        return processor(images=picture, return_tensors="pt")["pixel_values"][0]

    return prepare


def _arguments_of(function: Any) -> list[str]:
    import inspect

    return list(inspect.signature(function).parameters)


def _looks_like_path(model: str) -> bool:
    return model.startswith((".", "/", "~")) or model.count("/") > 1
