import sys
import types

import numpy as np
import pytest

from crossclr.features import DataError, EmojiConfig, Sample, check_data, check_source, open_source


class FakeEmoji:
    """Stands for the built-in set: its groups are classes, and its split ``all`` is a union."""

    dims = (2, 2)

    def __init__(self, a, b, two_level, vary=False):
        self.options, self.two_level, self.vary = (a, b), two_level, vary

    def keys(self, split):
        return {"train": ["0", "1", "2"], "val": ["3"], "test": ["4"], "all": list("01234")}[split]

    def read(self, key, rng=None):
        rows = np.full((1, 2), int(key), np.float32) + np.array([1, -1], np.float32)
        return Sample(key, [rows], [rows], texts=(f"emoji {key}",), group="food")


@pytest.fixture
def emoji(monkeypatch):
    module = types.ModuleType("crossclr.features.sources.emoji")
    module.EmojiSource = FakeEmoji
    monkeypatch.setitem(sys.modules, "crossclr.features.sources.emoji", module)


def test_the_built_in_set_gets_its_options(emoji):
    source = open_source(EmojiConfig(a="fluent+noto", b="twemoji", two_level=True, vary=True))
    assert source.vary
    assert source.options == ("fluent+noto", "twemoji")
    assert source.two_level


def test_the_built_in_set_is_checked_without_its_union_and_its_classes(emoji):
    report = check_data(EmojiConfig())
    assert list(report.splits) == ["train", "val", "test"]
    assert report.faults == []
    assert not [finding for finding in report.warnings if finding.kind == "shared-group"]


def test_a_source_without_splits_needs_names():
    with pytest.raises(DataError, match="no attribute 'splits'"):
        check_source(FakeEmoji("a", "b", False))
    assert check_source(FakeEmoji("a", "b", False), splits=["val"]).splits["val"].samples == 1
