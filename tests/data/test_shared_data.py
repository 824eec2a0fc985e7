"""The real sets, where they are at hand."""

import numpy as np

from crossclr.data import ArraysConfig, CootConfig, batches, open_data
from tests.support.data_sets import real_data
from tests.support.pairs import keys_of, read


def test_youcook2_spoken_has_the_counts_of_youcook2():
    config = CootConfig(
        root=str(real_data("youcook2-spoken")),
        video="audio_feat_speech96.h5",
        text="audio_feat_speech96.h5",  # its text features are for a user to compute
        cut_text_by="times",
    )
    data = open_data(config)
    assert [len(keys_of(data, split)) for split in ("train", "val")] == [1333, 457]
    clips = [len(data.where(split=split).clips["video"]) for split in ("train", "val")]
    assert clips == [10337, 3492]
    batch = next(batches(data.where(split="train"), 64, seed=0, epoch=0))
    assert len(batch.keys) == 64
    assert 450 <= int(batch.clip_counts.sum()) <= 550
    assert int(batch.inputs["video"].context.lengths.max()) <= 80
    assert batch.inputs["video"].clips.dim == 96


def test_msvd_is_read_in_place():
    folder = real_data("msvd")
    feat = {"values": "msvd_vgg16_fc2_20x512.npz#feat", "ids": "#ids"}
    config = ArraysConfig(
        root=str(folder),
        modalities={"video": feat, "text": feat},
        splits="captions.json#split",
        groups="captions.json#youtube",
    )
    data = open_data(config)
    assert [len(keys_of(data, split)) for split in ("train", "val", "test")] == [1200, 100, 670]
    with np.load(folder / "msvd_vgg16_fc2_20x512.npz", allow_pickle=False) as file:
        row = file["ids"].tolist().index(keys_of(data, "test")[7])
        want = file["feat"][row].astype(np.float32)
    np.testing.assert_array_equal(read(data, keys_of(data, "test")[7])["video"].clips[0], want)
