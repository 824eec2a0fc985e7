"""The comparison of the default: what is measured, and that nothing runs twice."""

from functools import partial

import numpy as np
import pytest

from benchmarks import protocol
from benchmarks.protocol import PairedSet, run_default
from crossclr import JointEmbedding
from crossclr.models.cross_fit import Grid


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(120, 4))
    arrays = {"video": hidden @ rng.normal(size=(4, 8)), "text": np.tanh(hidden), "sizes": [60, 20, 40]}
    np.savez(tmp_path / "tiny.npz", **arrays)
    return tmp_path


@pytest.mark.parametrize(("grid", "by_folds"), [(None, False), (None, True), (Grid(), True)])
def test_closed_forms_find_a_simple_relation(folder, grid, by_folds):
    found = protocol.closed_form(PairedSet.read(folder / "tiny.npz"), 2, grid, by_folds)
    assert set(found) == {"text->video", "video->text", "text->video/R@1", "video->text/R@1"}
    assert min(found.values()) > 80


def test_the_table_shows_every_method_and_finished_results_are_kept(folder, monkeypatch):
    monkeypatch.setattr(protocol, "default", lambda data, split: protocol.closed_form(data, split))
    monkeypatch.setattr(protocol, "_trained", lambda data, *rest: protocol.closed_form(data, 2, by_folds=False))
    lines = []
    (table,) = run_default(folder, folder / "out", draws=2, report=lines.append)
    assert len(lines) == 4 * 5 + 3 * (2 + 5)
    names = [str(row[0]) for row in table.rows]
    assert names[0] == "linear CCA, chosen on validation"
    assert names[-1] == "default"
    assert [str(cell) for cell in table.rows[1][1:]] == [str(cell) for cell in table.rows[-1][1:]]
    assert "clip, best of 2 draws" in table.caption
    run_default(folder, folder / "out", draws=2, report=lines.append)
    assert len(lines) == 41


def test_with_concepts_the_default_runs_told_and_not_told(folder, monkeypatch):
    arrays = dict(np.load(folder / "tiny.npz"))
    concepts, units = np.arange(120) // 4, np.arange(120) // 20
    np.savez(folder / "tiny.npz", **arrays, concepts=concepts, units=units, metric="map")
    data = PairedSet.read(folder / "tiny.npz")
    train, val, test = data.resplit(3)
    assert not set(units[test]) & set(units[train]) | set(units[test]) & set(units[val])
    assert set(data.at(train)) == {"X", "concepts"}  # units are for the split alone
    calls = []

    class Estimator(JointEmbedding):
        def fit(self, X, **labels):
            calls.append(sorted(labels))
            return super().fit(X, **labels)

    monkeypatch.setattr(protocol, "JointEmbedding", partial(Estimator, "closed-form"))
    monkeypatch.setattr(protocol, "RESULT_SPLITS", (2, 3))
    (table,) = run_default(folder, folder / "out", draws=0, report=lambda line: None)
    assert [str(row[0]) for row in table.rows][2:] == [
        "kernel CCA, chosen by folds",
        "default, not told of concepts",
        "default",
    ]
    assert calls == [["concepts"], []] * 2
    assert "mAP" in table.caption


def test_a_folder_without_data_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no \.npz files"):
        run_default(tmp_path, tmp_path / "out")
