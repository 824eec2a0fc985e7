"""Caption files: predictions in MART's JSON, references as paragraphs or several captions of a clip."""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crossclr.storage import write_file
from crossclr.storage.json_files import read_json_object


@dataclass(frozen=True)
class Caption:
    """One written sentence and the seconds of its clip.

    Args:
        text: the sentence.
        start: first second of the clip.
        stop: last second.
    """

    text: str
    start: float = 0.0
    stop: float = 0.0


Predictions = dict[str, list[Caption]]  # sentences of each video
References = dict[str, list[str]]  # one or more paragraphs (or captions of a clip) of each video


def paragraph(captions: Sequence[Caption]) -> str:
    """The sentences of a video in the order of their start, each closed with a full stop.

    Example:
        >>> paragraph([Caption("stir", 9, 12), Caption("cut the onion", 1, 4)])
        'cut the onion. stir. '
    """
    return "".join(f"{caption.text}. " for caption in sorted(captions, key=lambda caption: caption.start))


def save_predictions(predictions: Mapping[str, Sequence[Caption]], path: str | os.PathLike[str]) -> Path:
    """Write predictions in MART's format; the file appears complete or not at all."""
    results = {
        key: [{"sentence": item.text, "timestamp": [item.start, item.stop]} for item in captions]
        for key, captions in predictions.items()
    }
    content = {"version": "VERSION 1.0", "results": results, "external_data": {"used": "false", "details": ""}}
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps(content, indent=1))
    return path


def load_predictions(path: str | os.PathLike[str]) -> Predictions:
    """Read predictions.

    MART's format is ``{"results": {video: [{"sentence": ..., "timestamp": [start, stop]}, ...]}}``. The outer
    ``results`` is optional. A video may also have ``{"sentences": [...], "timestamps": [[start, stop], ...]}``, a list
    of sentences or one sentence.

    Raises:
        ValueError: the file holds something else; the message names the video.
    """
    content = _read_object(path, "predictions")
    if isinstance(content.get("results"), dict):
        content = content["results"]
    return {key: _captions(value, f"{path}: the prediction of {key!r}") for key, value in content.items()}


def load_references(paths: Sequence[str | os.PathLike[str]]) -> References:
    """Read references; several files give several references for each video.

    A video has a paragraph (MART's ``captioning_val_para.json``), a list of alternative captions, or
    ``{"captions": [...]}`` (alternatives) or ``{"sentences": [...]}`` (one paragraph).

    Raises:
        ValueError: a file holds something else, or the files name different videos.
    """
    if not paths:
        raise ValueError("name at least one file of references")
    joined: References = {}
    for number, path in enumerate(paths):
        content = _read_object(path, "references")
        if number and set(content) != set(joined):
            odd = sorted(set(content) ^ set(joined))
            raise ValueError(f"{path} and {paths[0]} name different videos, for example {odd[0]!r}")
        for key, value in content.items():
            joined.setdefault(key, []).extend(_references(value, f"{path}: the reference of {key!r}"))
    return joined


def _read_object(path: str | os.PathLike[str], what: str) -> dict[str, Any]:
    content = read_json_object(Path(path))
    if not content:
        raise ValueError(f"{path} has no {what}; an entry for each video is needed")
    return content


def _captions(value: Any, where: str) -> list[Caption]:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, dict) and "sentences" in value:
        texts = value["sentences"]
        times = value.get("timestamps") or [[0.0, 0.0]] * len(texts)
        if len(texts) != len(times):
            raise ValueError(f"{where} has {len(texts)} sentences but {len(times)} timestamps")
        value = [{"sentence": text, "timestamp": time} for text, time in zip(texts, times, strict=True)]
    if isinstance(value, list):
        with contextlib.suppress(TypeError, KeyError, ValueError):
            return [_caption(item) for item in value]
    raise ValueError(
        f'{where} must be a list of {{"sentence": text, "timestamp": [start, stop]}}, or sentences, '
        f"found {json.dumps(value)[:80]}"
    )


def _caption(item: Any) -> Caption:
    if isinstance(item, str):
        return Caption(item)
    text, (start, stop) = item["sentence"], item.get("timestamp") or (0.0, 0.0)
    if not isinstance(text, str):
        raise TypeError
    return Caption(text, float(start), float(stop))


def _references(value: Any, where: str) -> list[str]:
    if isinstance(value, dict) and "captions" in value:
        value = value["captions"]
    elif isinstance(value, dict) and "sentences" in value:
        value = [" ".join(value["sentences"])] if all(isinstance(s, str) for s in value["sentences"]) else None
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
        return value
    raise ValueError(f"{where} must be a paragraph or a list of captions, found {json.dumps(value)[:80]}")
