from pathlib import Path

import pytest
import yaml

from crossclr.extract.training_set import DataSet, Modalities, coot_section, training_config
from crossclr.training.config_files import check_config


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
    return DataSet(Modalities({"video": ["colour"], "text": ["letters"]}, "text"), meta)


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
