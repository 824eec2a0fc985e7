import numpy as np

from crossclr.data import Dataset, EmojiConfig, check_data, open_data
from tests.support.pairs import pair_sample


def unsplit():
    """Three samples to train on and one to validate with, of one group."""
    rows = [np.full((1, 2), number, np.float32) + np.array([1, -1], np.float32) for number in range(4)]
    return Dataset.from_samples(
        pair_sample(str(n), [rows[n]], [rows[n]], texts=(f"thing {n}",), group="food", split="val" if n == 3 else "")
        for n in range(4)
    )


def test_the_built_in_set_gets_its_options():
    data = open_data(EmojiConfig(modalities={"two": "fluent+noto", "one": "twemoji"}, two_level=True, vary=True))
    assert data.varies
    assert data.two_level
    assert data.modalities == ("two", "one")
    assert data.dims == {"two": 2560, "one": 1280}


def test_the_built_in_set_is_checked_without_its_union_and_its_classes():
    report = check_data(EmojiConfig(), limit=50)
    assert list(report.splits) == ["train", "val", "test"]
    assert report.faults == []
    assert not [finding for finding in report.warnings if finding.kind == "shared-group"]


def test_groups_that_are_parents_belong_in_one_split():
    report = check_data(unsplit())
    assert [finding.kind for finding in report.warnings].count("shared-group") == 1
    assert check_data(unsplit(), splits=["val"]).splits["val"].samples == 1
