"""A worker that dies does not lose the run: torchrun starts all anew, and the end is bit for bit the same."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from crossclr import api
from crossclr.training import Run
from crossclr.training.config_files import check_config
from tests.training.test_resume import everything

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="workers are found through /proc")


def start(config: Path | None, out: Path, processes: int = 2) -> subprocess.Popen:
    """Start a new run, or without a config resume one."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "--max-restarts=3"]
    wanted = ["--resume", str(out)] if config is None else [str(config), "--out", str(out)]
    command = ["-m", "crossclr", "train", "--no-baseline", *wanted]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, *launcher, *command],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> str:
    try:
        output, _ = process.communicate(timeout=240)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, output
    return output


def worker(launcher: int, rank: int) -> int | None:
    """Process id of a worker, known by what torchrun put into its environment."""
    for entry in Path("/proc").iterdir():
        try:
            known = entry.name.isdigit() and f"\nPPid:\t{launcher}\n" in (entry / "status").read_text()
            if known and f"RANK={rank}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                return int(entry.name)
        except OSError:  # it ended in the meantime
            continue
    return None


def lines(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def test_kill_of_a_worker(tiny, tmp_path):
    """The first one: it writes the checkpoints, and the others meet at its address."""
    tiny["training"].update(epochs=4, checkpoint_every=3)
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(start(config, whole))
    process = start(config, killed)
    deadline = time.monotonic() + 120
    while lines(killed) < 7:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(worker(process.pid, rank=0), signal.SIGKILL)
    assert "exitcode: -9" in finish(process)
    assert Run.open(killed).results is not None
    assert everything(killed) == everything(whole)


def test_another_launch_does_not_touch_a_run(tiny, tmp_path, monkeypatch):
    """Only the call of torchrun that began a run goes on with it; for others the folder is taken, as always."""
    from crossclr import api
    from crossclr.training.config_files import check_config

    tiny["training"]["epochs"] = 1
    config = check_config(tiny)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "first")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("WORLD_SIZE", "1")
    run = api.train(config, out=tmp_path / "run", baseline=False)
    before = everything(run.path)
    assert api.train(config, out=tmp_path / "run", baseline=False).path == run.path
    assert everything(run.path) == before
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "second")
    with pytest.raises(FileExistsError, match="already exists"):
        api.train(config, out=tmp_path / "run", baseline=False)


def test_a_launch_finds_its_run_also_without_a_name(tiny, tmp_path, monkeypatch):
    from crossclr import api
    from crossclr.training.config_files import check_config

    tiny["training"]["epochs"] = 1
    config = check_config(tiny)
    monkeypatch.chdir(tmp_path)
    runs = []
    for name in (None, "one", "one", "two"):
        if name is not None:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", name)
            monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
            monkeypatch.setenv("WORLD_SIZE", "1")
        runs.append(api.train(config, baseline=False).path.name)
    assert runs == ["tiny", "tiny-2", "tiny-2", "tiny-3"]
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "three")
    folders = [
        [run.path.parent.name for run in api.train_seeds(config, seeds, baseline=False)] for seeds in ([0], [0, 1])
    ]
    assert folders == [["tiny-4"], ["tiny-4", "tiny-4"]]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_processes_resumes_a_run(tiny, tmp_path, before, after):
    """Without dropout nothing depends on the number of processes but the order of sums."""
    tiny["model"]["encoder"]["dropout"] = tiny["model"]["global_encoder"]["dropout"] = 0.0
    tiny["training"].update(epochs=2, checkpoint_every=1)
    tiny["optimiser"] = {"name": "adamw", "learning_rate": 0.01, "epsilon": 1e-3}  # does not blow up rounding
    whole = api.train(check_config(tiny), out=tmp_path / "whole", baseline=False)
    config = tmp_path / "tiny.yaml"
    config.write_text(yaml.safe_dump(tiny))
    out = tmp_path / "run"
    process = start(config, out, before)
    deadline = time.monotonic() + 120
    while lines(out) < 3:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    finish(start(None, out, after))
    resumed = Run.open(out)
    for name, value in whole.load_model("last").state_dict().items():
        torch.testing.assert_close(resumed.load_model("last").state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert resumed.results["epochs"] == whole.results["epochs"]
