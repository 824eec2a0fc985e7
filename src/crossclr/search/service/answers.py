"""Results as plain values, the same in the JSON of the command and in the answers of the service."""

import json
from pathlib import Path
from typing import Any

from crossclr.experts.media.file_types import media_type
from crossclr.features.sources.emoji import count_images, is_built_in
from crossclr.search.items.item_table import Item
from crossclr.search.items.things import Hit


def plain_item(item: Item) -> dict[str, Any]:
    """An item as JSON values.

    Example:
        >>> plain_item(Item(3, "text/x", "text", "x", text="a cat"))["text"]
        'a cat'
    """
    media = None
    if item.media:
        media = {"kind": item.media, "start": item.start, "stop": item.stop, "parts": count_images(item.file)}
        built_in = is_built_in(item.file)
        media |= {"preview": not built_in, "playable": built_in or media_type(Path(item.file)) is not None}
    return {
        "id": item.name,
        "modality": item.modality,
        "key": item.key,
        "text": item.text,
        "split": item.split,
        "group": item.group,
        "variant": item.variant,
        "media": media,
        "fields": json.loads(item.fields) if item.fields else {},
    }


def plain_together(hit: Hit) -> dict[str, Any]:
    """The items of a result that is a whole sample; nothing for other results."""
    return {"together": [plain_item(item) for item in hit.together]} if hit.together else {}


def plain_hit(hit: Hit) -> dict[str, Any]:
    """A result with its score and, for programs on this machine, the path of its file."""
    chance = None if hit.probability is None else round(hit.probability, 4)
    values = {"score": round(hit.score, 5), "probability": chance, **plain_item(hit.item), **plain_together(hit)}
    if values["media"] is not None and not is_built_in(hit.item.file):
        values["media"] = {**values["media"], "file": hit.item.file}
    return values
