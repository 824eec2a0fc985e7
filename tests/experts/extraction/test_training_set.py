from pathlib import Path

import pytest
import yaml

from crossclr.experts.extraction.recordings import Datapoint
from crossclr.experts.extraction.training_set import (
    DataSet,
    choose_sides,
    coot_section,
    segments_within,
    training_config,
)
from crossclr.experts.texts.segments import Segment
from crossclr.training.config_files import check_config
from tests.support.fake_experts import Colour, Letters, Loudness, Motion


def dataset(recordings, clips, splits=("train", "val", "test"), **options):
    meta = {}
    for number in range(recordings):
        segments = [{"text": "x", "start_sec": float(n), "stop_sec": n + 1.0} for n in range(clips)]
        split = splits[number % len(splits)]
        meta[f"v{number}"] = {
            "data_key": f"v{number}",
            "duration_sec": float(clips),
            "split": split,
            "segments": segments,
        }
    return DataSet(meta, ["colour"], ["letters"], **{"by_times": False, **options})


def config_of(data):
    return check_config(yaml.safe_load(training_config(data, coot_section(data, Path("out")), "mine")))


@pytest.mark.parametrize(("recordings", "clips"), [(1, 1), (2, 1), (3, 2), (40, 1), (100, 5), (900, 1)])
def test_configs_of_small_sets_can_be_built(recordings, clips):
    config = config_of(dataset(recordings, clips, splits=("train",)))
    assert config.splits.validate_ is None
    assert config.model.encoder_a.kind == "mlp"
    assert config.data.two_level == (clips > 1)
    assert (config.loss.global_ is not None) == (clips > 1)
    assert 2 <= config.training.batch_size <= 64
    within = config.loss.local.options["intra_weight"]
    assert (within == 0) == (recordings * clips < 200)  # negatives within a modality harm a handful of clips


def test_a_large_set_gets_the_papers_model():
    config = config_of(dataset(3000, 4))
    assert config.model.encoder_a.kind == "transformer"
    assert (config.splits.validate_, config.splits.test) == ("val", "test")
    assert config.loss.local.options["queue_size"] == 2000
    # the paper's 0.0035 at 500 clips, here at 64 videos of 4
    assert config.loss.local.options["weight_scale"] == pytest.approx(0.0035 * 500 / 256, abs=1e-4)


@pytest.mark.parametrize(
    ("experts", "captioned", "sides"),
    [
        ([Colour(), Letters()], True, (["colour"], ["letters"], False)),
        ([Loudness(), Colour(), Letters()], True, (["colour", "loudness"], ["letters"], False)),
        ([Colour(), Loudness()], False, (["colour"], ["loudness"], True)),
        ([Colour(), Motion()], False, (["colour"], ["motion"], True)),
        ([Colour()], False, (["colour"], [], True)),
    ],
)
def test_which_expert_is_which_modality(experts, captioned, sides):
    assert choose_sides(experts, captioned) == sides


def test_segments_without_length_are_left_out_one_by_one():
    point = Datapoint(
        "a", "a", None, (Segment("x", 1, 1), Segment("y", 2, 3), Segment("z", 9, 10), Segment("w", 3, 99))
    )
    kept, problems = segments_within(point, 4.0, "a.mp4")
    assert [(part["text"], part["start_sec"], part["stop_sec"]) for part in kept] == [("y", 2, 3), ("w", 3, 4)]
    assert [problem.what.split(" was")[0] for problem in problems] == ["segment 0", "segment 2"]
