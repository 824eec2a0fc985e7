from crossclr.search.items import Item, remarks


def labels(hub, influence=0.5, tried=100, usual=5.0):
    return [remark.label for remark in remarks(Item(0, "a/x", "a", "x", hub=hub, influence=influence), tried, usual)]


def test_an_ordinary_item_has_no_remarks():
    assert labels(hub=5) == []
    assert labels(hub=19) == []


def test_remarks_about_unusual_items():
    assert labels(hub=20) == ["common result"]
    assert labels(hub=0) == ["hard to find"]
    assert labels(hub=5, influence=0.97) == ["typical"]
    assert labels(hub=50, influence=0.97) == ["common result", "typical"]


def test_nothing_is_said_about_queries_that_were_not_tried():
    assert labels(hub=0, tried=0, usual=0.0) == []
