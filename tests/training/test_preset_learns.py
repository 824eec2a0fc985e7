"""The paper's preset must learn: the two-level model with its loss, optimiser and schedule, on many near-copies."""

import pytest

from crossclr.data import open_data
from crossclr.evaluation.metrics import retrieval_validator
from crossclr.training import JointTraining, MemoryRecorder, fit, load_config
from crossclr.training.processes import make_fabric
from tests.support.simulated_cooking import write_cooking

VIDEOS, HELD_OUT, CLIPS = 175, 44, 8  # 1,400 clips, a tenth of YouCook2's 13,829
SMALL = [  # a narrower model and fewer videos a step, so that ten epochs take seconds and as many steps as on YouCook2
    "model.dim=64",
    "model.encoder.heads=4",
    "model.global_encoder.heads=4",
    "training.batch_size=8",
    "training.epochs=10",
    "training.workers=0",
    "training.in_memory=true",
    "training.threads=1",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_cooking(tmp_path_factory.mktemp("cooking") / "data", VIDEOS, HELD_OUT, CLIPS)


def train_preset(folder, *changes):
    data = [f"data.root={folder}", "data.text=text_feat_words.h5", "data.add_stop_frame=0"]
    config = load_config("youcook2-100m", [*data, *SMALL, *changes])
    source = open_data(config.data)
    training, recorder = JointTraining(config, source.where(split="train"), make_fabric("cpu")), MemoryRecorder()
    fit(training, recorder, validate=retrieval_validator(source.where(split="val"), 512))
    return training, recorder


def check_that_it_learns(training, recorder):
    first, last = recorder.epochs[3], recorder.epochs[-1]  # the first that is validated, and the last
    chance = 100 * 10 / (HELD_OUT * CLIPS)
    assert training.health.warning is None
    assert last["validation"]["clip/text->video/R@10"] > 10 * chance
    assert last["intra_share"] < 0.5
    assert last["loss"] < 0.6 * first["loss"]


@pytest.mark.parametrize("queue_size", [0, 5000], ids=["as shipped", "with the paper's queue"])
def test_the_preset_learns(folder, queue_size):
    check_that_it_learns(*train_preset(folder, f"loss.local.queue_size={queue_size}"))


def test_the_check_fails_with_a_loss_that_collapses(folder):
    training, recorder = train_preset(folder, "loss.local.intra_mode=sum", "loss.local.queue_size=5000")
    with pytest.raises(AssertionError):
        check_that_it_learns(training, recorder)
    assert "loss.local.intra_mode=logit" in training.health.warning
    assert [record["warning"] for record in recorder.epochs if "warning" in record] == [training.health.warning]
