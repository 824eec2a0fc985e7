"""A config for `crossclr train` that fits the size of an extracted data set."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from crossclr.experts.extraction.training_set import DataSet

SMALL = 2000  # training clips; below this the model is small


def coot_section(data: DataSet, out: Path) -> dict[str, Any]:
    """The section ``data`` of a config for COOT's layout."""
    files = {name: [f"{expert}.h5" for expert in own] for name, own in data.modalities.experts.items()}
    text = data.modalities.text
    names = [name for name in files if name != text]
    if text is not None:
        names.insert(1, text)
    section: dict[str, Any] = {
        "kind": "coot",
        "root": str(out.resolve()),
        "video": files[names[0]],
        "text": files[names[1]],
        "names": names[:2],
        "two_level": data.two_level,
        "add_stop_frame": 0,
        "expand_segments": 1,
    }
    if names[2:]:
        section["also"] = {name: files[name] for name in names[2:]}
    return section | ({"cut_text_by": "times"} if text is None else {})


def training_config(data: DataSet, section: Mapping[str, Any], name: str) -> str:
    """The text of a config whose model and loss follow from the number of training clips.

    The recipe is `best`: closed form and trained encoders, chosen by cross-fitting. Below 2,000 training clips the
    encoders are MLPs over pooled rows. From 2,000 on they are the paper's model, with the paper's loss.

    Args:
        data: the data set.
        section: the section ``data`` of the config.
        name: name of the run.
    """
    recordings, clips = data.count("train")
    two_level = data.two_level
    samples = recordings if two_level else clips
    batch = max(2, min(64, samples))
    clips_at_once = max(2, round(batch * clips / max(recordings, 1))) if two_level else batch
    epochs = min(40, max(20, math.ceil(400 / max(1, math.ceil(samples / batch)))))
    encoder = {"kind": "mlp", "sequence_pooling": "mean", "blocks": 1, "dropout": 0.2, "input_norm": "l2"}
    loss = _loss(clips, clips_at_once)
    validate = "val" if data.count("val")[0] else None
    values: dict[str, Any] = {
        "name": name,
        "recipe": "best",
        "data": dict(section),
        "splits": {"train": "train", "validate": validate, "test": "test" if data.count("test")[0] else None},
        "model": {"dim": 256, "encoder": encoder} if clips < SMALL else {"dim": 384},
        "loss": {"local": loss, "global": _without_queue(loss) if two_level else None},
        "optimiser": {"name": "adamw", "learning_rate": 1e-3, "betas": [0.9, 0.98], "weight_decay": 0.05},
        "schedule": {"name": "cosine", "warmup_epochs": 2},
        "training": {"epochs": epochs, "batch_size": batch},
    }
    if validate is not None:
        values["validation"] = {"every": 1}
    head = "# Written by `crossclr extract`. If you move the folder, change data.root.\n"
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _without_queue(loss: Mapping[str, Any]) -> dict[str, Any]:
    return {**loss, "queue_size": 0} if "queue_size" in loss else dict(loss)


def _loss(clips: int, clips_at_once: int) -> dict[str, Any]:
    if clips < SMALL:
        return {"name": "clip", "temperature": 0.1, "learnable": False}
    return {
        "name": "crossclr",
        "temperature": 0.03,
        "intra_weight": 0.8,
        "prune_threshold": 0.9,
        "prune_by": "quantile",
        # Weights are a softmax over the batch, so their effect depends on its size; the paper uses 0.0035 at 500 clips.
        "weight_scale": round(0.0035 * 500 / clips_at_once, 4),
        "queue_size": min(5000, clips // 2),
    }
