"""Several items of one thing are one result, and overlapping moments are one moment."""

import numpy as np

from crossclr.search.items import Item
from crossclr.search.results import Hit, group_hits


def moment(number, start, stop, score, file="/films/a.mp4"):
    return Hit(Item(number, f"a/{number}", "a", f"film/{number}", file=file, start=start, stop=stop), score)


def test_moments_of_a_file_are_one_thing_and_overlapping_ones_are_merged():
    hits = [
        moment(1, 10.0, 20.0, 0.9),
        moment(2, 5.0, 15.0, 0.8),  # overlaps the best: joined
        moment(9, 0.0, 10.0, 0.75, file="/films/b.mp4"),
        moment(3, 40.0, 50.0, 0.7),  # another moment
        moment(4, 0.0, 10.0, 0.6),  # overlaps only what was joined, not the best itself
        moment(5, 45.0, 55.0, 0.5),  # joins the other moment
    ]
    first, second = group_hits(hits, 5)
    assert (first.best.item.id, first.best.item.start, first.best.item.stop) == (1, 5.0, 20.0)
    spans = [(hit.item.id, hit.item.start, hit.item.stop) for hit in first.others]
    assert spans == [(3, 40.0, 55.0), (4, 0.0, 10.0)]
    assert second.best.item.id == 9
    assert len(group_hits(hits, 1)) == 1


def test_drawings_of_one_clip_are_one_thing_and_texts_stay_apart():
    hits = [
        Hit(Item(0, "a/x@noto", "a", "x", file="emoji:noto/x"), 0.9),
        Hit(Item(1, "a/y@noto", "a", "y", file="emoji:noto/y"), 0.8),
        Hit(Item(2, "a/x@fluent", "a", "x", file="emoji:fluent/x"), 0.7),
    ]
    assert [(thing.best.item.id, len(thing.others)) for thing in group_hits(hits, 9)] == [(0, 1), (1, 0)]


def test_files_that_look_the_same_are_counted_once():
    photos = [
        Hit(Item(n, f"image/{n}", "image", str(n), media="image", file=f"/p/{n}.jpg"), 1 - n / 10) for n in range(5)
    ]
    rows = np.random.default_rng(0).integers(0, 200, (2, 768), dtype=np.uint8)
    looks = {0: rows[0].tobytes(), 1: rows[1].tobytes(), 2: (rows[0] + 9).tobytes(), 3: (rows[1] // 2).tobytes()}
    looks[4] = bytes([120] * 768)  # of one colour, like nothing
    things = group_hits(photos, 5, looks)
    assert [(thing.best.item.id, thing.copies) for thing in things] == [(0, 1), (1, 1), (4, 0)]
    assert [(thing.best.item.id, thing.copies) for thing in group_hits(photos, 1, looks)] == [(0, 1)]
    assert [thing.copies for thing in group_hits(photos, 5)] == [0] * 5
