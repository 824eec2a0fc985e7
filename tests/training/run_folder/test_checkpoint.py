import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.storage import restore_folder
from crossclr.training import recorder as run_file
from crossclr.training.checkpoint import (
    MODEL,
    CheckpointError,
    load_checkpoint,
    load_weights,
    random_state,
    save_checkpoint,
    set_random_state,
    snapshot,
)
from crossclr.training.recorder import RunRecorder
from crossclr.training.run_folder import RunFolder

leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5)
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
        st.dictionaries(st.integers(0, 9), inner, max_size=3),
    ),
    max_leaves=12,
)


@given(tree=trees)
@settings(max_examples=60, deadline=None)
def test_any_nesting_comes_back_with_its_types(tmp_path_factory, tree):
    folder = tmp_path_factory.mktemp("run") / "last"
    save_checkpoint(folder, {}, {"tree": tree})
    assert load_checkpoint(folder)[1] == {"tree": tree}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_tensors_come_back_bit_equal(tmp_path, dtype):
    value = (torch.randn(3, 4) * 3).to(dtype)
    state = {"optimiser": {"state": {0: {"m": value, "step": 3}}}, "queue": [value.T, value[:1]]}
    save_checkpoint(tmp_path / "last", {"w": value}, state)
    weights, loaded = load_checkpoint(tmp_path / "last")
    assert torch.equal(weights["w"], value)
    assert torch.equal(loaded["queue"][0], value.T)
    assert loaded["optimiser"]["state"][0]["step"] == 3
    assert loaded["queue"][0].dtype == dtype


def test_no_pickle_is_written(tmp_path):
    save_checkpoint(tmp_path / "last", {"w": torch.ones(2)}, {"rng": random_state()})
    assert sorted(path.name for path in (tmp_path / "last").iterdir()) == [
        "checksums.json",
        "model.safetensors",
        "state.json",
        "state.safetensors",
    ]
    json.loads((tmp_path / "last" / "state.json").read_text())


def test_objects_that_would_need_pickle_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"Path.*at /where"):
        save_checkpoint(tmp_path / "last", {}, {"where": Path()})
    assert list(tmp_path.iterdir()) == []


def test_random_states_continue(tmp_path):
    save_checkpoint(tmp_path / "last", {}, random_state())

    def draw():
        legacy = (np.random.rand(), np.random.randn())  # noqa: NPY002 (the global generator is what is tested)
        return torch.rand(3), *legacy, random.random(), random.gauss(0, 1)

    expected = draw()
    set_random_state(load_checkpoint(tmp_path / "last")[1])
    again = draw()
    assert torch.equal(expected[0], again[0])
    assert expected[1:] == again[1:]


@pytest.mark.parametrize("present", [("last",), ("last.previous",), ("last", "last.previous")])
def test_every_state_between_two_renames_can_be_read_and_restored(tmp_path, present):
    save_checkpoint(tmp_path / "whole", {"w": torch.ones(2)}, {"epoch": 1})
    for name in present:
        shutil.copytree(tmp_path / "whole", tmp_path / name)
    shutil.rmtree(tmp_path / "whole")
    assert load_checkpoint(tmp_path / "last")[1] == {"epoch": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(present)  # reading changes nothing
    restore_folder(tmp_path / "last")
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert load_weights(tmp_path / "last")["w"].tolist() == [1.0, 1.0]


def test_a_failed_write_keeps_the_last_good_one(tmp_path, monkeypatch):
    folder = tmp_path / "last"
    save_checkpoint(folder, {"w": torch.zeros(1)}, {"epoch": 1})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(folder, {"w": torch.ones(1)}, {"epoch": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert load_checkpoint(folder)[1] == {"epoch": 1}


WRITER = """
import sys
from pathlib import Path
import torch
from crossclr.training.checkpoint import save_checkpoint
step = 0
while True:
    step += 1
    value = torch.full((50_000,), float(step))
    save_checkpoint(Path(sys.argv[1]), {"w": value}, {"step": step, "m": value})
    print(step, flush=True)
"""


def test_kill_at_random_moments_always_leaves_a_whole_checkpoint(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    delays = random.Random(0)
    process = None
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "last")], stdout=subprocess.PIPE, env=environment, text=True
        )
        process.stdout.readline()  # at least one is complete
        time.sleep(delays.random() * 0.2)
        process.send_signal(signal.SIGKILL)
        announced = [int(line) for line in process.communicate()[0].split()]
        weights, state = load_checkpoint(tmp_path / "last")
        assert state["step"] >= max(announced, default=1)
        assert torch.equal(weights["w"], torch.full((50_000,), float(state["step"])))
        assert torch.equal(state["m"], weights["w"])


def test_absent_and_broken_checkpoints_are_named(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint in"):
        load_weights(tmp_path / "last")
    save_checkpoint(tmp_path / "last", {"w": torch.ones(100)}, {})
    content = (tmp_path / "last" / MODEL).read_bytes()
    (tmp_path / "last" / MODEL).write_bytes(content[:-50])
    with pytest.raises(CheckpointError, match=r"model\.safetensors.*(: cannot be read|was changed)"):
        load_weights(tmp_path / "last")


# In the background


def test_training_does_not_wait_for_the_disk(tmp_path, tiny, monkeypatch):
    """Steps go on while a checkpoint is being written; the next one waits for it; what is written is the old state."""
    import threading

    from crossclr import api
    from crossclr.training.config_files import check_config

    gate, begun, behind = threading.Event(), threading.Event(), []
    plain = run_file.save_checkpoint

    def slow(folder, weights, state):
        if folder.parent.name == "run" and state["position"]["step"] == 2:
            begun.set()
            assert gate.wait(60)
            behind.append((state["position"]["step"], training_step()))
        plain(folder, weights, state)

    steps = []
    from crossclr.training import JointTraining

    step = JointTraining.step

    def stepping(self, batch):
        record = step(self, batch)
        steps.append(self.position.step)
        if begun.is_set() and self.position.step == 3:
            gate.set()  # a third step was taken while the second's checkpoint stood half written
        return record

    def training_step():
        return steps[-1]

    monkeypatch.setattr(run_file, "save_checkpoint", slow)
    monkeypatch.setattr(JointTraining, "step", stepping)
    tiny["training"].update(epochs=1, checkpoint_every=2)
    api.train(check_config(tiny), out=tmp_path / "run", baseline=False)
    assert behind == [(2, 3)]


def test_a_fault_in_the_background_comes_up_once(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(run_file, "save_checkpoint", fail)
    recorder = RunRecorder(RunFolder(tmp_path, None))
    state = {"position": {"step": 1}, "schedule": {}}
    recorder.save({}, state, None)
    with pytest.raises(OSError, match="no room"):
        recorder.save({}, state, None)
    recorder.flush()
    recorder.close()


def test_a_snapshot_shares_nothing():
    moments = {0: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(3)}}
    taken = snapshot({"optimiser": {"state": moments}, "pair": (torch.ones(1), None)})
    moments[0]["exp_avg"].add_(1)
    assert taken["optimiser"]["state"][0]["exp_avg"].tolist() == [0, 0, 0]
    assert taken["pair"][1] is None
