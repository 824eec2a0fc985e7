import os
import subprocess
import sys

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.features import batches, open_source
from crossclr.training import Run
from crossclr.training.config_files import check_config
from crossclr.training.processes import bounds, share


@given(videos=st.integers(1, 40), world=st.integers(1, 9))
def test_every_video_is_worked_on_once(videos, world):
    parts = [range(*bounds(videos, rank, world)) for rank in range(world)]
    assert [video for part in parts for video in part] == list(range(videos))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 9), world=st.integers(1, 4))
def test_shares_join_to_the_batch(coot_folder, size, world):
    config = check_config({"data": {"kind": "coot", "root": str(coot_folder), "video": "video.h5", "text": "text.h5"}})
    batch = next(batches(open_source(config.data), "train", size, workers=0))
    parts = [
        share(batch, rank, world)
        for rank in range(world)
        if bounds(size, rank, world)[0] < bounds(size, rank, world)[1]
    ]
    assert sum((part.keys for part in parts), ()) == batch.keys
    for pick in (
        lambda one: one.ids,
        lambda one: one.video_ids,
        lambda one: one.clip_counts,
        lambda one: one.pooled_a,
        lambda one: one.pooled_context_b,
        lambda one: one.a.clips.values,
        lambda one: one.b.clips.lengths,
        lambda one: one.b.context.values,
    ):
        assert torch.equal(torch.cat([pick(part) for part in parts]), pick(batch))


def test_a_process_without_work_takes_the_first_video(coot_folder):
    config = check_config({"data": {"kind": "coot", "root": str(coot_folder), "video": "video.h5", "text": "text.h5"}})
    batch = next(batches(open_source(config.data), "train", 1, workers=0))
    assert share(batch, 0, 2).keys == share(batch, 1, 2).keys == batch.keys


def test_two_processes_train_like_one(tiny, tmp_path):
    """Without dropout the whole-batch gradient is the same, so weights agree up to rounding; also for a last batch
    of fewer videos than processes.
    """
    tiny["training"].update(epochs=3, batch_size=13)  # 14 videos: batches of 13 and 1
    tiny["optimiser"] = {"name": "adamw", "learning_rate": 0.01, "epsilon": 1e-3}  # moves from the first step on
    for encoder in (tiny["model"]["encoder_a"], tiny["model"]["encoder_b"], tiny["model"]["global_encoder"]):
        encoder["dropout"] = 0.0
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    for devices in (1, 2):
        command = [sys.executable, "-m", "crossclr", "train", str(path), "--no-floor"]
        command += ["--out", str(tmp_path / f"run{devices}"), "--set", f"training.devices={devices}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (Run.open(tmp_path / f"run{devices}") for devices in (1, 2))
    losses = [[record["loss"] for record in run.metrics() if record["kind"] == "step"] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert abs(losses[0][0] - losses[0][4]) > 1e-2
    other = two.load_model("last").state_dict()
    for name, weight in one.load_model("last").state_dict().items():
        torch.testing.assert_close(weight, other[name], rtol=1e-3, atol=1e-5, msg=name)
