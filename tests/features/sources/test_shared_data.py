"""The real sets, where they are at hand."""

import numpy as np

from crossclr.features import ArraysConfig, CootConfig, batches, open_source
from tests.support.data_sets import real_data


def test_youcook2_spoken_has_the_counts_of_youcook2():
    config = CootConfig(
        root=str(real_data("youcook2-spoken")),
        video="audio_feat_speech96.h5",
        text="audio_feat_speech96.h5",  # its text features are for a user to compute
        cut_text_by="times",
    )
    source = open_source(config)
    assert [len(source.keys(split)) for split in ("train", "val")] == [1333, 457]
    clips = [sum(len(source.entries[key].texts) for key in source.keys(split)) for split in ("train", "val")]
    assert clips == [10337, 3492]
    batch = next(batches(source, "train", 64, seed=0, epoch=0))
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
    source = open_source(config)
    assert [len(source.keys(split)) for split in ("train", "val", "test")] == [1200, 100, 670]
    with np.load(folder / "msvd_vgg16_fc2_20x512.npz", allow_pickle=False) as file:
        row = file["ids"].tolist().index(source.keys("test")[7])
        want = file["feat"][row].astype(np.float32)
    np.testing.assert_array_equal(source.read(source.keys("test")[7])["video"].clips[0], want)
