from pathlib import Path

import pytest
import yaml

from crossclr.data.order import draw_splits
from crossclr.extract.contract import ExpertError
from crossclr.extract.recordings import Datapoint
from crossclr.extract.segments import Segment
from crossclr.extract.training_set import (
    FeatureSet,
    ModalityExperts,
    build_dataset,
    choose_modalities,
    coot_section,
    media_table,
    segments_within,
    training_config,
)
from crossclr.training.config_files import check_config
from tests.support.fake_experts import Colour, Letters, Loudness, Motion


@pytest.mark.parametrize(
    ("experts", "named", "modalities", "text"),
    [
        ([Colour(), Letters()], {}, {"video": ["colour"], "text": ["letters"]}, "text"),
        (
            [Letters(), Loudness(), Colour(), Motion()],
            {},
            {"audio": ["loudness"], "video": ["colour", "motion"], "text": ["letters"]},
            "text",
        ),
        ([Colour(), Loudness()], {}, {"video": ["colour"], "audio": ["loudness"]}, None),
        ([Colour(), Motion()], {}, {"colour": ["colour"], "motion": ["motion"]}, None),
        ([Colour()], {}, {"video": ["colour"]}, None),
        (
            [Colour(), Motion(), Letters()],
            {"action": ["motion"], "words": ["letters"]},
            {"action": ["motion"], "video": ["colour"], "words": ["letters"]},
            "words",
        ),
        ([Colour(), Loudness()], {"both": ["colour", "loudness"]}, {"both": ["colour", "loudness"]}, None),
    ],
)
def test_which_expert_is_which_modality(experts, named, modalities, text):
    found = choose_modalities(experts, named)
    assert list(found.experts.items()) == list(modalities.items())
    assert found.text == text


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"action": ["flow"]}, "modality 'action': expert 'flow' is not among colour, loudness, letters"),
        ({"mixed": ["colour", "letters"]}, "sentences must be one modality of their own"),
        ({"video": ["loudness"]}, "modality 'video' is also the one of colour; choose another name"),
    ],
)
def test_names_of_modalities_that_cannot_be(named, message):
    with pytest.raises(ExpertError, match=message):
        choose_modalities([Colour(), Loudness(), Letters()], named)


def test_segments_without_length_are_left_out_one_by_one():
    point = Datapoint(
        "a", "a", None, (Segment("x", 1, 1), Segment("y", 2, 3), Segment("z", 9, 10), Segment("w", 3, 99))
    )
    kept, problems = segments_within(point, 4.0, "a.mp4")
    assert [(part["text"], part["start_sec"], part["stop_sec"]) for part in kept] == [("y", 2, 3), ("w", 3, 4)]
    assert [problem.what.split(" was")[0] for problem in problems] == ["segment 0", "segment 2"]


def test_equal_keys_get_the_splits_that_data_sets_give_them():
    fractions = {"train": 0.6, "val": 0.3, "test": 0.1}
    keys = [f"video{number}" for number in range(300)]
    points = [Datapoint(f"{key}/{n}", key, None, (Segment("x"),)) for key in keys for n in range(2)]
    segments = {point.key: [{"text": "x", "start_sec": 0.0, "stop_sec": 1.0}] for point in points}
    modalities = ModalityExperts({"video": ["colour"]})
    data = build_dataset(points, dict.fromkeys(keys, 1.0), segments, {"colour": set(keys)}, modalities, fractions)
    expected = {keys[place]: split for split, places in draw_splits(keys, fractions).items() for place in places}
    assert {key: entry["split"] for key, entry in data.meta.items()} == {
        point.key: expected[point.recording] for point in points
    }


def test_the_media_table_has_the_fields_of_the_captions(tmp_path):
    points = [Datapoint("a", "a", "train", (Segment("x", 0, 1, {"place": "Rome"}), Segment("y", 1, 2)))]
    segments = {"a": segments_within(points[0], 2.0, "a.mp4")[0]}
    data = build_dataset(points, {"a": 2.0}, segments, {"colour": {"a"}}, ModalityExperts({"video": ["colour"]}))
    table = media_table(data, {"a": tmp_path / "a.mp4"})
    assert [table[key].get("fields") for key in ("a/0", "a/1")] == [{"place": "Rome"}, None]


def dataset(recordings, clips, splits=("train", "val", "test")):
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
    return FeatureSet(ModalityExperts({"video": ["colour"], "text": ["letters"]}, "text"), meta)


def config_of(data):
    return check_config(yaml.safe_load(training_config(data, coot_section(data, Path("out")), "mine")))


@pytest.mark.parametrize(("recordings", "clips"), [(1, 1), (2, 1), (3, 2), (40, 1), (100, 5), (900, 1)])
def test_configs_of_small_sets_can_be_built(recordings, clips):
    config = config_of(dataset(recordings, clips, splits=("train",)))
    assert config.splits.validate_ is None
    assert config.model.encoder.kind == "mlp"
    assert config.data.two_level == (clips > 1)
    assert (config.loss.global_ is not None) == (clips > 1)
    assert 2 <= config.training.batch_size <= 64
    assert config.recipe == "best"
    assert config.loss.local.name == "clip"


def test_a_large_set_gets_the_papers_model():
    config = config_of(dataset(3000, 4))
    assert config.model.encoder.kind == "transformer"
    assert (config.splits.validate_, config.splits.test) == ("val", "test")
    assert config.loss.local.options["queue_size"] == 2000
    # the paper's 0.0035 at 500 clips, here at 64 videos of 4
    assert config.loss.local.options["weight_scale"] == pytest.approx(0.0035 * 500 / 256, abs=1e-4)
