"""The paper's loss settings must learn at a scale where they are used: with a queue and with near-copies."""

import pytest

from crossclr.evaluation.retrieval.validation import retrieval_validator
from crossclr.training import FitConfig, JointTraining, MemoryRecorder, fit, load_config, make_fabric
from tests.support.pairs import pair_source
from tests.support.simulated_cooking import cooking_clips

CLIPS, HELD_OUT = 1400, 350  # about a tenth of YouCook2's 13,829 clips


def train_preset(epochs=8, **loss):
    """Pooled clips and small MLPs in place of the two-level model; loss, optimiser and schedule are the preset's."""
    preset = load_config("youcook2-100m")
    data = cooking_clips(CLIPS)
    keys = [str(number) for number in range(CLIPS)]
    source = pair_source(data.video, data.text, splits={"train": keys[HELD_OUT:], "val": keys[:HELD_OUT]})
    local = {**preset.loss.local.model_dump(), **loss}
    config = FitConfig.model_validate(
        {
            "splits": {"train": "train", "validate": "val", "test": None},
            "model": {"dim": 64, "encoder": {"kind": "mlp"}},
            "loss": {"local": local},
            "optimiser": preset.optimiser.model_dump(),
            "schedule": preset.schedule.model_dump(),
            "training": {"epochs": epochs, "batch_size": 64, "workers": 0, "in_memory": True, "threads": 1},
            "validation": {"first_epoch": 3},
        }
    )
    training, recorder = JointTraining(config, source, make_fabric("cpu")), MemoryRecorder()
    fit(training, recorder, validate=retrieval_validator(source, "val", 512))
    return training, recorder


def check_that_it_learns(training, recorder):
    last = recorder.epochs[-1]
    chance = 100 * 10 / HELD_OUT
    assert training.health.warning is None
    assert last["validation"]["clip/b->a/R@10"] > 10 * chance
    assert last["intra_share"] < 0.5
    assert last["loss"] < 0.5 * recorder.epochs[3]["loss"]


def test_the_preset_learns():
    check_that_it_learns(*train_preset())


def test_the_check_fails_with_a_loss_that_collapses():
    training, recorder = train_preset(intra_mode="sum", queue_size=5000)
    with pytest.raises(AssertionError):
        check_that_it_learns(training, recorder)
    assert "loss.local.intra_mode=logit" in training.health.warning
    assert [record["warning"] for record in recorder.epochs if "warning" in record] == [training.health.warning]
