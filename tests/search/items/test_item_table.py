from dataclasses import asdict

import pytest

from crossclr.search.items import Item, Items


def some(count):
    return [
        Item(number, f"a/{number}", "a", f"k{number // 2}", text=f"Text {number}", start=None)
        for number in range(count)
    ]


def test_what_is_put_in_comes_out(tmp_path):
    items = Items(tmp_path / "items.sqlite", writable=True)
    given = some(6)
    items.put(given)
    assert items.get([4, 99, 1]) == [given[4], given[1]]
    assert items.named("a/3") == given[3]
    assert items.named("a/33") is None
    assert items.of_clip("k1") == given[2:4]
    assert items.ids_of(["a/5", "none"]) == {"a/5": 5}
    assert items.columns("id", "text", where="a")[5] == (5, "Text 5")
    items.set_columns([0, 1], {"x": [0.25, 0.75], "y": [3.0, 4.0]})
    assert [(item.x, item.y) for item in items.get([0, 1])] == [(0.25, 3.0), (0.75, 4.0)]
    items.delete([2])
    assert len(items) == 5
    copy = items.copy_to(tmp_path / "copy.sqlite")
    copy.put([Item(2, "a/2", "a", "k1")])
    assert (len(copy), len(items)) == (6, 5)
    copy.close()
    items.close()
    again = Items(tmp_path / "copy.sqlite")
    assert asdict(again.get([0])[0])["y"] == 3.0
    again.close()


def test_names_from_outside_are_values_and_never_part_of_a_statement(tmp_path):
    items = Items(tmp_path / "items.sqlite", writable=True)
    items.put(some(2))
    assert items.named("' OR 1=1 --") is None
    assert items.of_clip("k0'; DROP TABLE items; --") == []
    assert len(items) == 2
    with pytest.raises(ValueError, match="no column id; DROP"):
        items.columns("id; DROP TABLE items")
    with pytest.raises(ValueError, match="items have no"):
        items.set_columns([0], {"x = 1; --": [1]})
    items.close()
