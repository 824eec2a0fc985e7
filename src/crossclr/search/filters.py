"""Filters: values of items that a search can be restricted to, such as a group, a date or a column of the captions."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crossclr.search.index import Mask
from crossclr.search.items import Items
from crossclr.search.query import QueryError

MOST_FILTERS = 20
CHOICE, NUMBER, DATE = "choice", "number", "date"
OWN = ("split", "group")  # every index has these
Codes = npt.NDArray[np.float64]  # (ids, filters) the number of a choice, a number, or a date in days; NaN: none


def clip_fields(file: str, media: str, start: float | None, stop: float | None, given: Mapping[str, Any]) -> str:
    """What is known of a clip besides its sentences, as JSON: duration, date of its file, columns of the captions."""
    found: dict[str, Any] = {}
    if media in ("video", "audio") and start is not None and stop is not None:
        found["duration"] = round(stop - start, 3)
    with contextlib.suppress(OSError, ValueError, OverflowError):
        found["date"] = str(datetime.date.fromtimestamp(Path(file).stat().st_mtime))
    return json.dumps(found | dict(given), ensure_ascii=False)


def collect_filters(items: Items) -> tuple[list[dict[str, Any]], Codes]:
    """The filters of an index, and what each item has for them."""
    rows = items.columns("id", "key", "split", "group", "fields")
    values: dict[str, list[Any]] = {"split": [row[2] for row in rows], "group": [row[3] for row in rows]}
    for place, row in enumerate(rows):
        for name, value in (json.loads(row[4]) if row[4] else {}).items():
            if name not in OWN and (name in values or len(values) < MOST_FILTERS):
                values.setdefault(name, [""] * len(rows))[place] = value
    keys = [row[1] for row in rows]
    codes = np.full((max((row[0] for row in rows), default=-1) + 1, len(values)), np.nan)
    ids, filters = [row[0] for row in rows], []
    for column, (name, own) in enumerate(values.items()):
        about, numbers = _describe(name, own)
        values_of = {(key, value) for key, value in zip(keys, own, strict=True) if value != ""}
        several = len({value for _, value in values_of}) > 1
        shared = about["kind"] != CHOICE or name == "split" or len(about["values"]) < len({key for key, _ in values_of})
        filters.append({"name": name, **about, "useful": several and shared})
        codes[ids, column] = numbers
    return filters, codes


def make_mask(filters: Sequence[Mapping[str, Any]], codes: Codes, where: Mapping[str, Sequence[str]]) -> Mask | None:
    """Which items pass; None: all.

    Several values of one filter are alternatives. A number or date may be a range, such as ``10..20`` or
    ``2024-01-31..``.

    Raises:
        QueryError: there is no such filter or value.
    """
    mask: Mask | None = None
    columns = {about["name"]: column for column, about in enumerate(filters)}
    for name, wanted in where.items():
        if not wanted:
            continue
        if name not in columns:
            raise QueryError(f"there is no filter {name!r}; the index has {', '.join(columns)}")
        column = columns[name]
        found = [_passing(filters[column], codes[:, column], value) for value in wanted]
        passing = np.any(found, axis=0)
        mask = passing if mask is None else mask & passing
    return mask


def _passing(about: Mapping[str, Any], codes: Codes, value: str) -> Mask:
    if about["kind"] == CHOICE:
        if value not in about["values"]:
            raise QueryError(f"the index has no {about['name']} {value!r}")
        chosen: Mask = codes == about["values"].index(value)
        return chosen
    low, dots, high = value.partition("..")
    edges = [_parse(about["kind"], edge) for edge in (low, high if dots else low)]
    if any(edge is None for edge, text in zip(edges, (low, high), strict=True) if text) or value in ("", ".."):
        example = "10..20" if about["kind"] == NUMBER else "2024-01-31..2024-12-31"
        raise QueryError(f"{about['name']} must be a {about['kind']} or a range such as {example}, got {value!r}")
    first, last = (-math.inf if edges[0] is None else edges[0]), (math.inf if edges[1] is None else edges[1])
    inside: Mask = (codes >= first) & (codes <= last)
    return inside


def _describe(name: str, values: Sequence[Any]) -> tuple[dict[str, Any], list[float]]:
    """The kind of a filter and its values, and the number of each item."""
    for kind in () if name in OWN else (NUMBER, DATE):
        numbers = [math.nan if value == "" else _parse(kind, value) for value in values]
        known = [number for number in numbers if number is not None]
        if len(known) == len(numbers):
            texts = [str(value) for value in values if value != ""]
            edges = [str(pick(texts, key=lambda text: _parse(kind, text) or 0.0)) for pick in (min, max)]
            return {"kind": kind, "low": edges[0], "high": edges[1]}, known
    names = sorted({str(value) for value in values if value != ""})
    place = {text: float(number) for number, text in enumerate(names)}
    return {"kind": CHOICE, "values": names}, [place.get(str(value), math.nan) for value in values]


def _parse(kind: str, value: Any) -> float | None:
    """A number, or a date as a number of days."""
    try:
        number = float(value) if kind == NUMBER else float(datetime.date.fromisoformat(str(value)[:10]).toordinal())
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
