"""Filters: which are of use, and which items pass them."""

import json
import os

import numpy as np
import pytest

from crossclr.search.filters import clip_fields, collect_filters, make_mask
from crossclr.search.items import Item, Items
from crossclr.search.query import QueryError

ROWS = [
    ("train", "a", {"place": "hall", "year": "2010", "shot": "2024-02-01", "number": "1"}),
    ("train", "b", {"place": "kitchen", "year": "2012", "shot": "2024-03-01", "number": "x2"}),
    ("val", "c", {"place": "hall", "year": "2015.5", "shot": "2025-01-01", "number": "x3"}),
    ("val", "d", {}),
]


@pytest.fixture
def items(tmp_path):
    found = Items(tmp_path / "items.sqlite", writable=True)
    for number, (split, group, values) in enumerate(ROWS):
        fields = json.dumps(values) if values else ""
        found.put([Item(2 * number, f"video/{number}", "video", str(number), split=split, group=group, fields=fields)])
    yield found
    found.close()


def test_kinds_and_use(items):
    filters, codes = collect_filters(items)
    about = {one["name"]: (one["kind"], one["useful"]) for one in filters}
    assert about == {
        "split": ("choice", True),
        "group": ("choice", False),  # each clip has its own
        "place": ("choice", True),
        "year": ("number", True),
        "shot": ("date", True),
        "number": ("choice", False),
    }
    assert [(one["low"], one["high"]) for one in filters if "low" in one] == [
        ("2010", "2015.5"),
        ("2024-02-01", "2025-01-01"),
    ]
    assert codes.shape == (7, 6)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({"split": ["val"]}, [2, 3]),
        ({"place": ["hall"]}, [0, 2]),
        ({"place": ["hall", "kitchen"], "year": ["2011.."]}, [1, 2]),
        ({"year": ["2010"]}, [0]),
        ({"year": ["..2012"]}, [0, 1]),
        ({"year": ["2010..2011", "2015..2016"]}, [0, 2]),
        ({"shot": ["2024-02-02..2024-12-31"]}, [1]),
        ({"shot": ["2025-01-01"]}, [2]),
        ({"group": ["d"]}, [3]),  # also where the page does not offer it
        ({"place": ["hall"], "split": ["train"]}, [0]),
    ],
)
def test_what_passes(items, where, expected):
    filters, codes = collect_filters(items)
    mask = make_mask(filters, codes, where)
    assert np.flatnonzero(mask).tolist() == [2 * number for number in expected]


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"colour": ["red"]}, "no filter 'colour'; the index has split, group, place"),
        ({"place": ["attic"]}, "no place 'attic'"),
        ({"year": ["soon"]}, "year must be a number or a range such as 10..20"),
        ({"year": [".."]}, "year must be a number"),
        ({"shot": ["2024-99-01.."]}, "shot must be a date"),
    ],
)
def test_a_wrong_filter_is_reported(items, where, message):
    with pytest.raises(QueryError, match=message):
        make_mask(*collect_filters(items), where)


def test_nothing_to_filter(items):
    assert make_mask(*collect_filters(items), {"split": [], "group": ()}) is None


def test_duration_and_date_of_a_clip(tmp_path):
    path = tmp_path / "a.mp4"
    path.touch()
    os.utime(path, (86400 * 365.25 * 30, 86400 * 365.25 * 30))
    found = json.loads(clip_fields(str(path), "video", 2.0, 5.5, {"place": "hall"}))
    assert found == {"duration": 3.5, "date": found["date"], "place": "hall"}
    assert found["date"].startswith(("1999-12-3", "2000-01-0"))
    assert json.loads(clip_fields("gone.png", "image", 0.0, 1.0, {"date": "2020-01-01"})) == {"date": "2020-01-01"}
