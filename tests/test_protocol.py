"""The comparison of the default: what is measured, and that nothing runs twice."""

import numpy as np
import pytest

from crossclr import protocol
from crossclr.protocol import PairedSet, run_default


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(120, 4))
    arrays = {"video": hidden @ rng.normal(size=(4, 8)), "text": np.tanh(hidden), "sizes": [60, 20, 40]}
    np.savez(tmp_path / "tiny.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize("by_folds", [False, True])
def test_linear_cca_finds_a_linear_relation(folder, by_folds):
    found = protocol.linear(PairedSet.read(folder / "tiny.npz"), 2, by_folds)
    assert set(found) == {"text->video", "video->text", "text->video/R@1", "video->text/R@1"}
    assert min(found.values()) > 80


def test_the_table_shows_every_method_and_finished_results_are_kept(folder, monkeypatch):
    monkeypatch.setattr(protocol, "default", lambda data, split: protocol.linear(data, split, by_folds=True))
    monkeypatch.setattr(protocol, "_trained", lambda data, *rest: protocol.linear(data, 2, by_folds=False))
    lines = []
    (table,) = run_default(folder, folder / "out", draws=2, report=lines.append)
    assert len(lines) == 3 * 5 + 3 * (2 + 5)
    names = [str(row[0]) for row in table.rows]
    assert names[0] == "linear CCA, chosen on validation"
    assert names[-1] == "default"
    assert [str(cell) for cell in table.rows[1][1:]] == [str(cell) for cell in table.rows[-1][1:]]
    assert "clip, best of 2 draws" in table.caption
    run_default(folder, folder / "out", draws=2, report=lines.append)
    assert len(lines) == 36


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.npz files"):
        run_default(tmp_path, tmp_path / "out")
