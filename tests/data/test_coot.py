import json
import math
import os
import threading

import h5py
import numpy as np
import pytest

from crossclr.data import CootConfig, DataError, open_data
from tests.support.pairs import keys_of, read


def data_of(coot, **options):
    return open_data(CootConfig(**{**coot.config, **options}))


def test_whole_sample_against_a_loop(coot):
    data = data_of(coot)
    assert data.dims == {"video": 6, "text": 4}
    assert data.two_level
    assert keys_of(data, "train") == [f"video{n}" for n in range(5)]
    for key in [*keys_of(data, "train"), *keys_of(data, "val")]:
        sample = read(data, key)
        video = coot.video[key].astype(np.float32)
        entry = coot.meta[key]

        def used(rows):
            count = len(rows)
            return rows if count <= 80 else rows[[(2 * i + 1) * count // 160 for i in range(80)]]

        np.testing.assert_array_equal(sample["video"].whole, used(video))
        rate = len(video) / entry["duration_sec"]
        for segment, clip in zip(entry["segments"], sample["video"].clips, strict=True):
            start = math.floor(rate * segment["start_sec"])
            stop = min(math.ceil(rate * segment["stop_sec"]) + 2, len(video))
            np.testing.assert_array_equal(clip, used(video[start:stop]))
            assert clip.dtype == np.float32
        np.testing.assert_array_equal(sample["text"].whole, coot.text[key])
        assert [len(rows) for rows in sample["text"].clips] == coot.splits[key]
        np.testing.assert_array_equal(np.concatenate(sample["text"].clips), coot.text[key])
        assert sample["text"].texts == tuple(segment["text"] for segment in entry["segments"])
        assert sample.group == key


def test_training_draws_frames_of_the_video_and_of_each_clip(coot):
    data = data_of(coot, max_frames=10)
    one = read(data, "video4", seed=0)
    same = read(data, "video4", seed=0)
    other = read(data, "video4", seed=1)
    centres = read(data, "video4")
    np.testing.assert_array_equal(one["video"].whole, same["video"].whole)
    assert (one["video"].whole != other["video"].whole).any()
    assert (one["video"].clips[0] != centres["video"].clips[0]).any()
    stored = {row.tobytes() for row in coot.video["video4"].astype(np.float32)}
    for rows in [one["video"].whole, *one["video"].clips]:
        assert len(rows) == 10
        assert all(row.tobytes() in stored for row in rows)


def test_noise_is_for_training_only(coot):
    noisy, plain = data_of(coot, frames_noise=0.01), data_of(coot)
    np.testing.assert_array_equal(read(noisy, "video0")["video"].whole, read(plain, "video0")["video"].whole)
    difference = read(noisy, "video0", seed=0)["video"].whole - coot.video["video0"]
    assert 0 < np.abs(difference).max() <= 0.0201
    # the text is left alone
    np.testing.assert_array_equal(read(noisy, "video0", seed=0)["text"].whole, coot.text["video0"])


def test_one_level_gives_each_clip_as_a_sample(coot):
    whole, flat = data_of(coot), data_of(coot, two_level=False)
    assert len(keys_of(flat, "val")) == sum(len(read(whole, key)["video"].clips) for key in keys_of(whole, "val"))
    sample = read(flat, "video1/2")
    assert sample["video"].whole is None
    assert sample.group == "video1"
    np.testing.assert_array_equal(sample["video"].clips[0], read(whole, "video1")["video"].clips[2])
    np.testing.assert_array_equal(sample["text"].clips[0], read(whole, "video1")["text"].clips[2])
    assert sample["text"].texts == ("step 1 2",)


def test_several_datapoints_share_one_video(coot):
    coot.meta["again"] = {**coot.meta["video1"], "split": "val"}
    coot.text["again"], coot.splits["again"] = coot.text["video1"] * 2, coot.splits["video1"]
    coot.write()
    sample = read(data_of(coot), "again")
    np.testing.assert_array_equal(sample["video"].clips[0], read(data_of(coot), "video1")["video"].clips[0])
    assert sample.group == "video1"


def test_old_names_of_entries(coot):
    key = "abcdefghijk_val_1"
    coot.meta[key] = {**coot.meta["video1"], "data_key": key}
    coot.video["v_abcdefghijk"], coot.text["v_abcdefghijk"] = coot.video["video1"], coot.text["video1"]
    coot.splits["v_abcdefghijk"] = coot.splits["video1"]
    coot.write()
    np.testing.assert_array_equal(read(data_of(coot), key)["video"].whole, read(data_of(coot), "video1")["video"].whole)


def test_activitynet_folder(coot):
    folder = coot.path / "features"
    folder.mkdir()
    for key, rows in coot.video.items():
        np.savez(folder / f"v_{key}.npz", frame_scores=rows[:, None, :, None, None])
        coot.meta[key]["data_key"] = key
    for number, key in enumerate(list(coot.meta)):  # the files have the old names only where the key is 11 long
        long = f"{number:011d}"
        (folder / f"v_{key}.npz").rename(folder / f"v_{long}.npz")
        coot.meta[key]["data_key"] = f"{long}_train"
    coot.write()
    data = data_of(coot, video="features", expand_segments=10, add_stop_frame=1)
    assert data.dims == {"video": 6, "text": 4}
    np.testing.assert_array_equal(read(data, "video0")["video"].whole, coot.video["video0"].astype(np.float32))


def test_experts_are_joined_and_may_be_missing(coot):
    rng = np.random.default_rng(1)
    second = {key: rng.standard_normal((11, 3)).astype(np.float32) for key in coot.video if key != "video2"}
    with h5py.File(coot.path / "second.h5", "w") as file:
        for key, rows in second.items():
            file[key] = rows
    data = data_of(coot, video=["video.h5", "second.h5"], max_frames=None)
    assert data.dims == {"video": 9, "text": 4}
    sample = read(data, "video1")
    first = coot.video["video1"].astype(np.float32)
    np.testing.assert_array_equal(sample["video"].whole[:, :6], first)
    at, known = (np.arange(len(first)) + 0.5) / len(first), (np.arange(11) + 0.5) / 11
    want = np.stack([np.interp(at, known, second["video1"][:, c]) for c in range(3)], axis=1)
    np.testing.assert_allclose(sample["video"].whole[:, 6:], want, atol=1e-5)
    assert data.where(keys=["video1"]).missing_experts(0) == []
    lacking = read(data, "video2")
    assert not lacking["video"].whole[:, 6:].any()
    assert lacking["video"].whole[:, :6].any()
    assert data.where(keys=["video2"]).missing_experts(0) == [coot.path / "second.h5"]


def test_a_sample_without_the_first_expert_takes_the_rows_of_the_next(coot):
    with h5py.File(coot.path / "first.h5", "w") as file:
        file["video0"] = np.ones((5, 2), np.float32)
    sample = read(data_of(coot, video=["first.h5", "video.h5"], max_frames=None), "video1")
    assert not sample["video"].whole[:, :2].any()
    np.testing.assert_array_equal(sample["video"].whole[:, 2:], coot.video["video1"].astype(np.float32))


def test_joined_text_experts_keep_the_sentences(coot):
    other = {key: [count + 1 for count in counts] for key, counts in coot.splits.items()}
    (coot.path / "more_sentence_splits.json").write_text(json.dumps(other))
    with h5py.File(coot.path / "more.h5", "w") as file:
        for key, counts in other.items():
            file[key] = np.repeat(np.arange(len(counts)), counts)[:, None].astype(np.float32)
    sample = read(data_of(coot, text=["text.h5", "more.h5"]), "video3")
    assert [len(rows) for rows in sample["text"].clips] == coot.splits["video3"]
    for number, rows in enumerate(sample["text"].clips):
        assert (rows[:, 4] == number).all()
    np.testing.assert_array_equal(np.concatenate(sample["text"].clips), sample["text"].whole)


def test_second_video_as_modality_b(coot):
    data = data_of(coot, text="video.h5", cut_text_by="times")
    sample = read(data, "video3")
    for clip, other in zip(sample["video"].clips, sample["audio"].clips, strict=True):
        np.testing.assert_array_equal(clip, other)


def test_first_datapoints_and_split_names(coot):
    assert len(keys_of(data_of(coot, max_datapoints=3), "train")) == 3
    data = data_of(coot, split_names={"all": ["train", "val"]})
    assert len(keys_of(data, "all")) == 7
    assert data.splits == ("train", "val")
    with pytest.raises(DataError, match=r"no split 'test'.*train, val, all"):
        keys_of(data, "test")


def test_split_parts_keep_videos_whole(coot):
    parts = {"train": {"fit": 0.5, "dev": 0.5}}
    data = data_of(coot, two_level=False, split_parts=parts, split_names={"x": ["fit"]})
    fit, dev = set(keys_of(data, "fit")), set(keys_of(data, "dev"))
    assert fit | dev == set(keys_of(data, "train"))
    assert fit
    assert dev
    assert not {key.split("/")[0] for key in fit} & {key.split("/")[0] for key in dev}
    assert keys_of(data, "x") == keys_of(data, "fit")
    whole = data_of(coot, split_parts=parts)
    assert {key.split("/")[0] for key in dev} == set(keys_of(whole, "dev"))  # the same at both levels


def test_threads_read_the_same(coot):
    data = data_of(coot)
    want = {key: read(data, key)["video"].whole.copy() for key in keys_of(data, "train")}
    wrong = []

    def work():
        for _ in range(20):
            wrong.extend(key for key, rows in want.items() if not np.array_equal(read(data, key)["video"].whole, rows))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_process_opens_the_files_anew(coot):
    data = data_of(coot)
    want = read(data, "video1")["video"].whole.copy()
    child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(read(data, "video1")["video"].whole, want) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    np.testing.assert_array_equal(read(data, "video1")["video"].whole, want)


def break_nan(coot):
    coot.video["video1"][4, 2] = np.nan


def break_missing(coot):
    del coot.video["video1"]


def break_empty(coot):
    coot.video["video1"] = np.zeros((0, 6), np.float32)


def break_clip(coot):
    coot.meta["video1"]["segments"][1].update(start_sec=99.0, stop_sec=120.0)


def break_dim(coot):
    coot.video["video1"] = np.zeros((10, 5), np.float32)


def break_split_count(coot):
    coot.splits["video1"] = [*coot.splits["video1"], 3]


def break_split_sum(coot):
    coot.splits["video1"][0] += 1


def break_split_zero(coot):
    counts = coot.splits["video1"]
    coot.splits["video1"] = [0, counts[0] + counts[1], *counts[2:]]


def break_split_missing(coot):
    del coot.splits["video1"]


def break_text_missing(coot):
    del coot.text["video1"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_nan, r"video\.h5: entry 'video1' has NaN or infinite values in 1 of 70 rows \(first: row 4\)"),
        (break_missing, r"video\.h5: no entry for key 'video1'"),
        (break_empty, r"video\.h5: entry 'video1' is empty"),
        (break_clip, r"video\.h5: clip 1 of 'video1' has no rows: 99 to 120 s of 23 s with 70 rows"),
        (break_dim, r"video\.h5: entry 'video1' has 5 channels but the first entry has 6"),
        (break_split_count, r"_sentence_splits\.json: 'video1' has 4 sentences but the meta file has 3 segments"),
        (break_split_sum, r"_sentence_splits\.json: the sentences of 'video1' sum to \d+ tokens but text\.h5 has"),
        (break_split_zero, r"_sentence_splits\.json: sentence 0 of 'video1' has 0 tokens"),
        (break_split_missing, r"_sentence_splits\.json: no entry for key 'video1'"),
        (break_text_missing, r"text\.h5: no entry for key 'video1'"),
    ],
)
def test_bad_samples_name_file_and_key(coot, damage, message):
    damage(coot)
    data = data_of(coot.write())
    read(data, "video0")
    with pytest.raises(DataError, match=message):
        read(data, "video1")


def test_truncated_hdf5(coot):
    path = coot.path / "video.h5"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DataError, match=r"video\.h5: cannot be read as HDF5 .*truncated"):
        _ = data_of(coot).dims


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"segments": []}, "has no segments"),
        ({"duration_sec": 0}, "duration_sec must be above 0"),
        ({"duration_sec": "long"}, "could not convert"),
        ({"segments": [{"text": "x", "start_sec": 0}]}, "no field 'stop_sec'"),
    ],
)
def test_bad_meta(coot, change, message):
    coot.meta["video1"].update(change)
    with pytest.raises(DataError, match=rf"meta_all\.json: entry 'video1'.*{message}"):
        data_of(coot.write())


def test_key_that_stands_twice_in_the_meta_file(coot):
    path = coot.path / "meta_all.json"
    path.write_text(path.read_text()[:-1] + ', "video1": {}}')
    with pytest.raises(DataError, match=r"meta_all\.json: line 1: key 'video1' occurs twice"):
        data_of(coot)


def test_group_in_place_of_a_data_set(coot):
    with h5py.File(coot.path / "video.h5", "a") as file:
        del file["video1"]
        file["video1/rows"] = np.ones((3, 6))
    with pytest.raises(DataError, match="'video1' is a group"):
        read(data_of(coot), "video1")
