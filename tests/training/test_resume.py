"""A run that was stopped, however, ends like one that never was: equal bytes of weights, state and metrics."""

import io
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from rich.console import Console

from crossclr import api
from crossclr.data import DataError
from crossclr.training import Interrupted, JointTraining, Run, TrainingError
from crossclr.training.config_files import check_config

STEPS_PER_EPOCH = 4  # 14 videos in batches of 4


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class PowerCut(BaseException):
    pass


def everything(run: Path) -> dict:
    names = [f"{kind}/{name}" for kind in ("last", "best") for name in ("model.safetensors", "state.safetensors")]
    names += ["last/state.json", "best/state.json", "metrics.jsonl", "results.json"]
    return {name: (run / name).read_bytes() for name in names}


def stop_at(monkeypatch, step: int, how) -> None:
    plain = JointTraining.step

    def stepping(self, batch):
        record = plain(self, batch)
        if self.position.step == step:
            how()
        return record

    monkeypatch.setattr(JointTraining, "step", stepping)


def power_cut() -> None:
    raise PowerCut


@pytest.fixture(scope="module")
def whole(tmp_path_factory, coot_folder):
    from tests.support.tiny_runs import tiny_values

    folder = tmp_path_factory.mktemp("whole") / "run"
    api.train(check_config(tiny_values(coot_folder)), out=folder)
    return everything(folder)


def test_one_seed_one_result(tiny, whole, tmp_path):
    api.train(check_config(tiny), out=tmp_path / "again")
    assert everything(tmp_path / "again") == whole
    tiny["seed"] = 4
    api.train(check_config(tiny), out=tmp_path / "other")
    assert everything(tmp_path / "other")["last/model.safetensors"] != whole["last/model.safetensors"]


@pytest.mark.parametrize("step", [1, STEPS_PER_EPOCH, 3 * STEPS_PER_EPOCH + 3])
def test_power_cut_then_resume_from_the_last_epoch(tiny, whole, tmp_path, monkeypatch, step):
    with monkeypatch.context() as patch:
        stop_at(patch, step, power_cut)
        with pytest.raises(PowerCut):
            api.train(check_config(tiny), out=tmp_path / "run")
    api.resume(tmp_path / "run")
    assert everything(tmp_path / "run") == whole


@pytest.mark.parametrize("step", [3, 2 * STEPS_PER_EPOCH + 3])
def test_resume_from_within_an_epoch(tiny, tmp_path, monkeypatch, step):
    tiny["training"]["checkpoint_every"] = 2
    api.train(check_config(tiny), out=tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, step, power_cut)
        with pytest.raises(PowerCut):
            api.train(check_config(tiny), out=tmp_path / "run")
    position = Run.open(tmp_path / "run").load_state()[1]["position"]
    assert (position["epoch"], position["batch"]) == (step // STEPS_PER_EPOCH, 2)
    api.resume(tmp_path / "run")
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_finishes_the_step_and_keeps_it(tiny, whole, tmp_path, monkeypatch, number):
    with monkeypatch.context() as patch:
        stop_at(patch, STEPS_PER_EPOCH + 2, lambda: os.kill(os.getpid(), number))
        with pytest.raises(Interrupted, match="run"):
            api.train(check_config(tiny), out=tmp_path / "run")
    assert Run.open(tmp_path / "run").load_state()[1]["position"]["step"] == STEPS_PER_EPOCH + 2
    api.resume(tmp_path / "run")
    assert everything(tmp_path / "run") == whole


def test_a_second_interrupt_ends_at_once(tiny, tmp_path, monkeypatch):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    stop_at(monkeypatch, 2, twice)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            api.train(check_config(tiny), out=tmp_path / "run")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_metrics_have_no_line_twice(tiny, tmp_path, monkeypatch):
    for step in (3, STEPS_PER_EPOCH + 1, 3 * STEPS_PER_EPOCH):
        with monkeypatch.context() as patch:
            stop_at(patch, step, power_cut)
            with pytest.raises(PowerCut):
                api.resume(tmp_path / "run") if (tmp_path / "run").exists() else api.train(
                    check_config(tiny), out=tmp_path / "run"
                )
    run = api.resume(tmp_path / "run")
    records = run.metrics()
    assert [r["step"] for r in records if r["kind"] == "step"] == list(range(1, 4 * STEPS_PER_EPOCH + 1))
    assert [r["epoch"] for r in records if r["kind"] == "epoch"] == [0, 1, 2, 3]


def test_a_finished_run_is_left_alone(tiny, tmp_path):
    api.train(check_config(tiny), out=tmp_path / "run", baseline=False)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    shown = io.StringIO()
    api.resume(tmp_path / "run", console=Console(file=shown, width=200))
    assert f"{tmp_path / 'run'} is finished; nothing was trained" in shown.getvalue()
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before
    video = Path(tiny["data"]["root"], "video.h5")
    video.rename(tmp_path / "elsewhere.h5")
    try:
        with pytest.raises(DataError, match=r"video\.h5"):
            api.resume(tmp_path / "run", console=Console(file=shown))
    finally:
        (tmp_path / "elsewhere.h5").rename(video)  # other tests share the data


def in_child(function, *arguments, **options) -> multiprocessing.process.BaseProcess:
    """Run in a forked process, which has everything imported already; the exit code is 3 for an expected error."""

    def body():
        torch.set_num_threads(1)
        try:
            function(*arguments, **options)
        except (TrainingError, OSError) as error:
            sys.stderr.write(str(error))
            os._exit(3)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=body)
    process.start()
    return process


def no_file_beyond(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def lines_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else -1


def test_kill_at_random_moments_then_resume(tiny, whole, tmp_path):
    tiny["training"]["checkpoint_every"] = 3
    draws = random.Random(1)
    run = tmp_path / "run"
    for attempt in range(4):
        known = max(0, lines_of(run))
        process = in_child(api.resume, run) if attempt else in_child(api.train, check_config(tiny), out=run)
        wanted, deadline = known + draws.randrange(4), time.monotonic() + 60
        while process.is_alive() and lines_of(run) <= wanted and time.monotonic() < deadline:
            time.sleep(0.001)
        process.kill()
        process.join()
        assert Run.open(run).load_model("last") is not None
    api.resume(run)
    assert everything(run) == whole


@pytest.mark.parametrize("step", [STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH + 2])
def test_full_disk_leaves_a_usable_folder(tiny, whole, tmp_path, monkeypatch, capfd, step):
    """After some steps no file may grow beyond a few bytes: neither the metrics nor a checkpoint can be written."""
    with monkeypatch.context() as patch:
        stop_at(patch, step, lambda: no_file_beyond(1_000))
        process = in_child(api.train, check_config(tiny), out=tmp_path / "run")
        process.join(120)
    assert process.exitcode == 3
    message = capfd.readouterr().err
    assert f"File too large while writing {tmp_path / 'run'}" in message
    assert f"crossclr train --resume {tmp_path / 'run'}" in message
    run = Run.open(tmp_path / "run")
    assert run.load_model("last") is not None
    assert run.load_state()[1]["position"]["epoch"] == (step - 1) // STEPS_PER_EPOCH
    api.resume(tmp_path / "run")
    assert everything(tmp_path / "run") == whole


def test_no_room_at_all_leaves_no_folder(tiny, tmp_path, capfd):
    def train():
        no_file_beyond(10_000)
        api.train(check_config(tiny), out=tmp_path / "runs" / "run")

    process = in_child(train)
    process.join(120)
    assert process.exitcode == 3
    assert "File too large" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []
