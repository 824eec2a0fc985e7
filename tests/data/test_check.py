import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from crossclr.data import ArraysConfig, CootConfig, DataError, check_data
from crossclr.data.check import BLOCK, PooledSpool
from crossclr.data.report import summarise_connectivity
from crossclr.losses.influence import connectivity, influential
from tests.support.pairs import pair_data
from tests.support.vectors import cosine


def kinds(findings):
    return sorted(finding.kind for finding in findings)


def connectivity_by_loops(rows):
    scores = []
    for i, one in enumerate(rows):
        scores.append(np.mean([cosine(one, other) for j, other in enumerate(rows) if j != i]))
    return np.array(scores)


@given(count=st.integers(2, 12), dim=st.integers(1, 6), seed=st.integers(0, 100))
def test_connectivity_against_loops(count, dim, seed):
    rows = np.random.default_rng(seed).standard_normal((count, dim)) + 0.5
    want = connectivity_by_loops(rows)
    spool = PooledSpool()
    for part in np.array_split(rows.astype(np.float32), 3):
        if len(part):
            spool.add(part)
    np.testing.assert_allclose(spool.connectivity(), want, atol=1e-5)


def test_connectivity_of_more_than_one_block_and_of_one_row():
    rows = np.random.default_rng(0).standard_normal((BLOCK + 100, 4)).astype(np.float32)
    spool = PooledSpool()
    spool.add(rows)
    of_the_loss = connectivity(normalize(torch.from_numpy(rows).double(), dim=1))
    np.testing.assert_allclose(spool.connectivity(), of_the_loss, atol=1e-6)
    lonely = PooledSpool()
    lonely.add(rows[:1])
    assert lonely.connectivity().tolist() == [0]
    assert connectivity(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).tolist() == [0, 0]


def test_shares_that_would_be_pruned():
    scores = np.array([-0.1, 0.2, 0.4, 0.5, 0.8])
    summary = summarise_connectivity(scores, thresholds=[0.5, 0.6, 1.0])
    assert summary.relative == {0.5: 0.4, 0.6: 0.4, 1.0: 0.0}  # 0.5 and 0.8 of a maximum of 0.8; 0.4 / 0.8 is not above
    assert summary.absolute == {0.5: 0.2, 0.6: 0.2, 1.0: 0.0}
    assert summary.quantile == {0.5: 0.4, 0.6: 0.4, 1.0: 0.0}
    assert summarise_connectivity(-np.abs(scores), thresholds=[0.5]).relative == {0.5: 0.0}


def test_the_rule_is_the_one_that_training_uses():
    scores = torch.rand(200, generator=torch.Generator().manual_seed(0))
    summary = summarise_connectivity(scores.double().numpy(), thresholds=[0.7])
    for rule, shares in (
        ("relative", summary.relative),
        ("absolute", summary.absolute),
        ("quantile", summary.quantile),
    ):
        mask, _ = influential(scores, 0.7, rule, 0.0)
        assert shares[0.7] == pytest.approx(float(mask.float().mean()))


def test_a_clean_set_is_described(coot):
    calls = []
    report = check_data(CootConfig(**coot.config), progress=lambda done, total: calls.append((done, total)))
    assert report.faults == []
    assert report.warnings == []
    assert report.dims == {"video": 6, "text": 4}
    assert report.two_level
    train = report.splits["train"]
    assert (train.samples, train.clips, train.sequences["text"]) == (5, 2 + 3 + 4 + 2 + 3, 14)
    assert train.present == {"video": 14, "text": 14, "video + text": 14}
    assert report.splits["val"].samples == 2
    videos = [len(coot.video[f"video{n}"]) for n in range(5)]  # all rows, whatever the limit
    assert train.lengths["video, whole"].least == min(videos)
    assert train.lengths["video, whole"].most == max(videos)
    assert train.lengths["video, whole"].mean == np.mean(videos)
    assert train.lengths["video, whole"].median == np.median(videos)
    assert train.lengths["video, whole"].over_limit == sum(count > 80 for count in videos)
    counts = [count for n in range(5) for count in coot.splits[f"video{n}"]]
    assert train.lengths["text"].mean == pytest.approx(np.mean(counts))
    assert set(report.connectivity) == {"video", "text", "video, whole", "text, whole"}
    pooled = np.stack([coot.video[f"video{n}"].astype(np.float64).mean(0) for n in range(5)])
    want = connectivity_by_loops(pooled)
    assert report.connectivity["video, whole"].mean == pytest.approx(want.mean(), abs=1e-5)
    assert report.connectivity["video, whole"].quantiles[1.0] == pytest.approx(want.max(), abs=1e-5)
    assert calls[-1] == (7, 7)
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


def test_every_fault_is_named(coot):
    coot.video["video0"][3] = np.nan
    del coot.video["video2"]
    coot.meta["video3"]["segments"][0].update(start_sec=500.0, stop_sec=600.0)
    coot.splits["video4"][0] += 1
    report = check_data(CootConfig(**coot.write().config))
    messages = [finding.message for finding in report.faults]
    assert [finding.keys for finding in report.faults] == [("video0",), ("video2",), ("video3",), ("video4",)]
    for message, words in zip(
        messages,
        [("video.h5", "NaN", "row 3"), ("video.h5", "no entry"), ("has no rows",), ("splits.json", "sum to")],
        strict=True,
    ):
        assert all(word in message for word in words)
    assert report.splits["train"].unreadable == 4
    assert kinds(report.warnings) == ["outside"]
    assert report.to_dict()["ok"] is False


def test_leaks_and_repeats(coot):
    for key in ("video5", "video6"):  # both are in val
        coot.meta[key]["data_key"] = "video1"
        coot.meta[key]["duration_sec"] = coot.meta["video1"]["duration_sec"]
        coot.meta[key]["segments"] = coot.meta["video1"]["segments"]
        coot.splits[key], coot.text[key] = coot.splits["video1"], coot.text["video1"] + int(key[-1])
    report = check_data(CootConfig(**coot.write().config))
    assert report.faults == []
    found = {finding.kind: finding for finding in report.warnings}
    assert sorted(found) == [
        "repeated-features",
        "repeated-sentences",
        "shared-features",
        "shared-group",
        "shared-sentence",
        "unused",
    ]
    assert found["shared-group"].count == 1
    assert found["shared-features"].count == 3  # the clips of video1
    assert found["repeated-features"].count == 3  # those of video6 repeat those of video5
    assert found["unused"].keys == ("video5", "video6")
    assert "video.h5" in found["unused"].message


def test_keys_in_two_splits_and_in_none():
    data = pair_data(np.eye(5), np.eye(5), splits={"train": ["0", "1", "1"], "val": ["1", "2"], "test": []})
    report = check_data(data)
    assert kinds(report.faults) == ["shared-key", "shared-key"]
    assert report.faults[0].keys == ("1",)
    assert "no-split" in kinds(report.warnings)
    assert "empty-split" in kinds(report.warnings)


def test_missing_experts_zeros_and_unpaired(tmp_path):
    values = np.eye(4)
    values[2] = 0
    data = pair_data(values, np.eye(4), owners=["0", "1", "2", "5"], unpaired="drop")
    report = check_data(data)
    found = {finding.kind: finding for finding in report.warnings}
    assert found["all-zero"].keys == ("2",)
    assert found["unpaired"].keys == ("3", "5")


def test_a_caption_that_stands_twice_at_one_clip_is_no_false_negative():
    texts = ["A cat", "a  cat", "a dog", "a cat"]
    data = pair_data(np.eye(3), np.eye(4), owners=["0", "0", "1", "2"], texts=texts)
    (finding,) = check_data(data).warnings
    assert (finding.kind, finding.keys) == ("repeated-sentences", ("2",))


def test_large_row_groups_are_slow(tmp_path):
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24_000.0)), 2)})
    pq.write_table(table, tmp_path / "x.parquet")
    side = {"values": "x.parquet"}
    report = check_data(ArraysConfig(root=str(tmp_path), modalities={"video": side, "text": side}), limit=10)
    (finding,) = [finding for finding in report.warnings if finding.kind == "large-row-groups"][:1]
    assert "12,000 rows" in finding.message


def test_missing_expert_is_counted(coot):
    import h5py

    with h5py.File(coot.path / "second.h5", "w") as file:
        for number in range(5):
            file[f"video{number}"] = np.ones((4, 2), np.float32)
    report = check_data(CootConfig(**{**coot.config, "video": ["video.h5", "second.h5"]}))
    (finding,) = [finding for finding in report.warnings if finding.kind == "missing-expert"]
    assert finding.count == 2
    assert finding.keys == ("video5", "video6")
    assert "second.h5" in finding.message


def test_similar_features_get_advice():
    rng = np.random.default_rng(0)
    alike = 1 + 0.01 * rng.standard_normal((50, 8))
    report = check_data(pair_data(alike, rng.standard_normal((50, 8))))
    (finding,) = [finding for finding in report.warnings if finding.kind == "narrow-connectivity"]
    assert "all samples are similar in a " in finding.message
    assert "quantile" in finding.message


def test_limit_and_unreadable_files(coot):
    assert check_data(CootConfig(**coot.config), limit=2).splits["train"].samples == 2
    (coot.path / "video.h5").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"video\.h5: cannot be read as HDF5"):
        check_data(CootConfig(**coot.config))


def test_memory_grows_by_a_few_numbers_for_each_clip():
    def held(count):
        """Bytes that a check needs at most, besides its data."""
        data = pair_data(np.eye(8)[np.arange(count) % 8] + np.arange(count)[:, None], np.ones((count, 2)))
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        check_data(data)
        peak = tracemalloc.get_traced_memory()[1] - before
        tracemalloc.stop()
        return peak

    assert (held(6000) - held(2000)) / 4000 < 200  # bytes; a million clips stay below 200 MB
