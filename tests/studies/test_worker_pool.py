"""Several processes: the same figures as one, Ctrl-C and kill leave nothing broken, and finished runs stay."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from crossclr.storage.files import temporary_path
from crossclr.studies import open_study
from crossclr.studies import trainings as runs
from crossclr.studies.experiments import EXPERIMENTS
from crossclr.studies.trainings import Job, Pool, open_pool, perform
from crossclr.training import load_config


def command(study_file, out):
    words = ["study", "run", "ablation", "--study", str(study_file), "--out", str(out), "--jobs", "2"]
    return [sys.executable, "-m", "crossclr", *words, "--set", "training.epochs=10"]


def finished(out):
    return sorted(out.glob("runs/*/seed-*/results.json"))


def wait_for(condition, seconds=240):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


def children(pid):
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux shows them")
def test_killed_and_interrupted_work_goes_on_without_doing_finished_runs_again(study_file, tmp_path):
    out = tmp_path / "out"
    process = subprocess.Popen(command(study_file, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(finished(out)) >= 3)
    workers = children(process.pid)
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers), 60)  # nobody works on without a parent
    stamps = {path: path.stat().st_mtime_ns for path in finished(out)}
    process = subprocess.Popen(
        command(study_file, out),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    wait_for(lambda: len(finished(out)) >= len(stamps) + 2)
    process.send_signal(signal.SIGINT)
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 130, told
    assert "run the same command again to resume" in told
    assert "Traceback" not in told
    assert not list(out.glob("runs/*/.*.partial"))
    stamps |= {path: path.stat().st_mtime_ns for path in finished(out)}
    done = subprocess.run(command(study_file, out), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    # This process, without others, gets the same figures.
    study = open_study(study_file, out, ["training.epochs=10"])
    job = EXPERIMENTS["ablation"].variants(study)[3].jobs()[1]
    alone = perform(job, tmp_path / "alone")
    assert alone["test"] == study.finished.results(job)["test"]


def test_no_processes_are_too_few(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        Pool(tmp_path, 0)


def test_what_a_killed_process_left_half_written_is_swept_away(tmp_path):
    mine = temporary_path(tmp_path / "runs" / "x-0" / "seed-0")
    dead = mine.with_name(mine.name.replace(f"@{os.getpid()}-", "@999999999-"))  # no process has this id
    for folder in (dead, mine):
        folder.mkdir(parents=True)
        (folder / "config.yaml").touch()
    with open_pool(tmp_path, 1):
        assert not dead.exists()
        assert mine.exists()  # somebody may be writing it


def write_slowly(job, out):
    """Of a worker: a run that is being written for minutes."""
    write = runs.write_json
    runs.write_json = lambda target, content: (write(target, content), time.sleep(300))
    runs.write_run(job, job.path(out), None, {})
    return {}


def test_a_worker_that_is_ended_while_it_writes_leaves_nothing(tmp_path):
    job = Job("slow", load_config("emoji"))
    pool = Pool(tmp_path, 2, write_slowly)
    pool.start(job, lambda results: None)
    wait_for(lambda: list(tmp_path.glob("runs/*/.*.partial/environment.json")))
    pool.close()
    assert not list(tmp_path.glob("runs/*/.*"))
    assert not finished(tmp_path)


def test_workers_that_are_done_leave_by_themselves(study_file, tmp_path):
    study = open_study(study_file, tmp_path / "out")
    study.given = {"crossclr": {}}
    job = EXPERIMENTS["ablation"].variants(study)[0].jobs()[0]
    found = []
    with open_pool(tmp_path / "out", 2) as pool:
        pool.start(job, found.append)
        pool.wait()
        workers = list(pool._executor._processes.values())
    assert len(found) == 1
    assert [worker.exitcode for worker in workers] == [0] * len(workers)
