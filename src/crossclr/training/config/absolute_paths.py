"""Data configs whose files can be found from any folder."""

from __future__ import annotations

from typing import Any

from crossclr.features import ArraysConfig, CootConfig
from crossclr.features.sources.data_config import ShardsConfig


def with_absolute_paths(data: Any) -> Any:
    """The data config with the places that its files were found at, so that the run can be opened from anywhere."""

    def found(place: str, option: str) -> str:
        file, mark, name = place.partition("#")
        return str(data.resolve(file, option).absolute()) + mark + name if file else place

    if isinstance(data, CootConfig):
        names = {"meta": found(data.meta, "meta")}
        lists = {side: [found(path, side) for path in getattr(data, side)] for side in ("video", "text")}
        return data.model_copy(update={**names, **lists})
    if isinstance(data, ArraysConfig):
        update: dict[str, Any] = {}
        for side in ("a", "b"):
            update[side] = [
                expert.model_copy(update={n: found(p, side) for n, p in expert if p is not None})
                for expert in getattr(data, side)
            ]
        for option in ("splits", "texts", "groups"):
            place = getattr(data, option)
            update[option] = None if place is None else found(place, option)
        return data.model_copy(update=update)
    if isinstance(data, ShardsConfig):
        return data.model_copy(
            update={"shards": {split: [str(place) for place in data.places(split)] for split in data.shards}}
        )
    return data
