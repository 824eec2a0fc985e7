import os
import subprocess
import sys

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.data import batches, open_data
from crossclr.data.order import bounds
from crossclr.training import JointTraining, Run
from crossclr.training.config_files import check_config
from crossclr.training.processes import launch, make_fabric, part


@given(videos=st.integers(1, 40), world=st.integers(1, 9))
def test_every_video_is_worked_on_once(videos, world):
    parts = [range(*bounds(videos, rank, world)) for rank in range(world)]
    assert [video for part in parts for video in part] == list(range(videos))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def picked(one):
    return [
        one.ids,
        one.video_ids,
        one.clip_counts,
        one.pooled["video"],
        one.pooled_context["text"],
        one.present["text"],
        one.inputs["video"].clips.values,
        one.inputs["text"].clips.lengths,
        one.inputs["text"].context.values,
    ]


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 9), world=st.integers(1, 4))
def test_shares_and_parts_join_to_the_batch(coot_folder, size, world):
    config = check_config({"data": {"kind": "coot", "root": str(coot_folder), "video": "video.h5", "text": "text.h5"}})
    source = open_data(config.data)
    for number, batch in enumerate(batches(source.where(split="train"), size, workers=0)):
        ranges = [bounds(len(batch.keys), rank, world) for rank in range(world)]
        busy = [rank for rank, (first, last) in enumerate(ranges) if first < last]
        read = [
            next(batches(source.where(split="train"), size, start=number, workers=0, share=(r, world))) for r in busy
        ]
        for shares in (read, [part(batch, *ranges[rank]) for rank in busy]):
            assert sum((share.keys for share in shares), ()) == batch.keys
            for whole, *pieces in zip(picked(batch), *map(picked, shares), strict=True):
                assert torch.equal(torch.cat(pieces), whole)


def test_a_process_without_work_takes_the_first_video(coot_folder):
    config = check_config({"data": {"kind": "coot", "root": str(coot_folder), "video": "video.h5", "text": "text.h5"}})
    shares = [
        next(batches(open_data(config.data).where(split="train"), 1, workers=0, share=(rank, 2))) for rank in range(2)
    ]
    assert shares[0].keys == shares[1].keys
    assert len(shares[0].keys) == 1


def test_several_machines_need_to_know_each_other(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"training\.nodes is 2: set MASTER_ADDR, MASTER_PORT and NODE_RANK"):
        make_fabric("cpu", devices=1, nodes=2)


@pytest.mark.slow
def test_one_process_trains_as_fabric_does(tiny):
    """The same numbers, bit for bit, with clipped gradients and a loss that has weights of its own."""
    from lightning_fabric import Fabric

    tiny["loss"] = {"local": {"name": "clip", "learnable": True}}
    tiny["training"] |= {"gradient_clip": 0.1, "micro_batch": 2}
    config = check_config(tiny)
    found = []
    for processes in (make_fabric("cpu"), Fabric(accelerator="cpu", devices=1)):
        training = JointTraining(config, open_data(config.data).where(split="train"), processes)
        found.append([training.step(batch)["loss"] for batch in training.batches(0)])
        found[-1] += [*training.model.state_dict().values(), *training.objective.state_dict().values()]
        found[-1].append(training.state_dict()["random_of_processes"])
    assert all(torch.equal(torch.as_tensor(one), torch.as_tensor(other)) for one, other in zip(*found, strict=True))


def test_a_launch_keeps_its_name(monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert launch() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "one")
    assert launch() == "one"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun's default says nothing, so its process id must
    assert launch() == f"none {os.getppid()}"


def test_two_processes_train_like_one(tiny, tmp_path):
    """Without dropout the whole-batch gradient is the same, so weights agree up to rounding; also for a last batch
    of fewer videos than processes.
    """
    tiny["training"].update(epochs=3, batch_size=13)  # 14 videos: batches of 13 and 1
    tiny["optimiser"] = {"name": "adamw", "learning_rate": 0.01, "epsilon": 1e-3}  # moves from the first step on
    for encoder in (tiny["model"]["encoder"], tiny["model"]["global_encoder"]):
        encoder["dropout"] = 0.0
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    for devices in (1, 2):
        command = [sys.executable, "-m", "crossclr", "train", str(path), "--no-baseline"]
        command += ["--out", str(tmp_path / f"run{devices}"), "--devices", str(devices)]
        if devices == 2:
            command += ["--set", "training.micro_batch=3"]  # also in parts, of which the processes have 2 and 3
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr
    one, two = (Run.open(tmp_path / f"run{devices}") for devices in (1, 2))
    losses = [[record["loss"] for record in run.metrics() if record["kind"] == "step"] for run in (one, two)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert abs(losses[0][0] - losses[0][4]) > 1e-2
    other = two.load_model("last").state_dict()
    for name, weight in one.load_model("last").state_dict().items():
        torch.testing.assert_close(weight, other[name], rtol=1e-3, atol=1e-5, msg=name)


def test_one_of_the_processes_speaks(tiny, tmp_path):
    tiny["training"].update(epochs=1)
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    command = [
        sys.executable,
        "-m",
        "crossclr",
        "train",
        str(path),
        "--no-baseline",
        "--seeds",
        "0,1",
        "--devices",
        "2",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "runs")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"seed {seed}\n") for seed in (0, 1)] == [1, 1]
    assert done.stdout.count("2 seeds, mean") == 1
    assert (tmp_path / "runs" / "summary.json").is_file()
