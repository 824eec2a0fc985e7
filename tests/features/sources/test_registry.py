from types import MappingProxyType

import numpy as np
import pytest

from crossclr.features import DataError, EmojiConfig, Source, check_data, check_source, open_source
from tests.support.pairs import pair_sample


class Unsplit(Source):
    """A source that does not list its splits."""

    dims = MappingProxyType({"video": 2, "text": 2})

    def keys(self, split):
        return {"train": ["0", "1", "2"], "val": ["3"]}[split]

    def read(self, key, rng=None):
        rows = np.full((1, 2), int(key), np.float32) + np.array([1, -1], np.float32)
        return pair_sample(key, [rows], [rows], texts=(f"thing {key}",), group="food")


def test_the_built_in_set_gets_its_options():
    source = open_source(EmojiConfig(modalities={"two": "fluent+noto", "one": "twemoji"}, two_level=True, vary=True))
    assert source.varies
    assert source.two_level
    assert source.modalities == ("two", "one")
    assert source.dims == {"two": 2560, "one": 1280}


def test_the_built_in_set_is_checked_without_its_union_and_its_classes():
    report = check_data(EmojiConfig(), limit=50)
    assert list(report.splits) == ["train", "val", "test"]
    assert report.faults == []
    assert not [finding for finding in report.warnings if finding.kind == "shared-group"]


def test_groups_that_are_parents_belong_in_one_split():
    report = check_source(Unsplit(), splits=["train", "val"])
    assert [finding.kind for finding in report.warnings].count("shared-group") == 1


def test_a_source_without_splits_needs_names():
    with pytest.raises(DataError, match="lists none in 'splits'"):
        check_source(Unsplit())
    assert check_source(Unsplit(), splits=["val"]).splits["val"].samples == 1
