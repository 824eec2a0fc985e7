import re
import signal
import subprocess
import sys

import pytest
import yaml
from typer.testing import CliRunner

from crossclr.cli import COMMANDS, app, load_command, main
from tests.support.commands import ENVIRONMENT, run
from tests.support.tiny_runs import tiny_values, write_coot
from tests.support.waiting import wait_until


@pytest.fixture
def config_file(tmp_path):
    values = tiny_values(write_coot(tmp_path / "data"))
    values["training"]["epochs"] = 2
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['crossclr', '--help']\n"
        "from crossclr.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'sklearn', 'lightning_fabric'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for name in ("train", "config", "check"):
        assert name in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_in_its_help(name):
    command = load_command(name)
    parts = getattr(command, "commands", None) or {"": command}
    for part, inner in parts.items():
        words = [name, part] if part else [name]
        shown = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0
        assert f"crossclr {' '.join(words)}" in shown.output.split("Usage:")[1].split("\n", 1)[1], words
        assert inner.help


def test_version(monkeypatch, capsys):
    from crossclr import __version__

    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.strip() == __version__


def test_an_unknown_command_is_refused_with_a_suggestion(monkeypatch, capsys):
    assert run(monkeypatch, "trian") == 2
    assert "did you mean 'train'?" in capsys.readouterr().err


def test_train_evaluate_and_summary(monkeypatch, capsys, config_file, tmp_path):
    assert run(monkeypatch, "train", config_file, "--out", tmp_path / "run", "--set", "seed=7") == 0
    shown = capsys.readouterr().out
    assert "CCA baseline" in shown
    assert "epoch 2/2" in shown
    assert str(tmp_path / "run") in shown.replace("\n", "")
    assert run(monkeypatch, "train", config_file, "--seeds", "0,1", "--no-baseline", "--out", tmp_path / "seeds") == 0
    assert "2 seeds, mean ± standard deviation" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "{config}", "--set", "loss.local.tempreature=1"], "did you mean 'temperature'"),
        (["train", "{config}", "--set", "data.video=nothing.h5"], "nothing.h5"),
        (["train", "{config}", "--seeds", "a,b"], "--seeds takes numbers"),
        (["train", "{config}", "--resume", "{config}"], "either a config to train or"),
        (["train"], "either a config to train"),
        (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
        (["train", "nonsense"], "no shipped config 'nonsense'"),
        (["train", "--resume", "{config}", "--seeds", "1"], "cannot be combined"),
        (["config", "show", "emojy"], "did you mean 'emoji'"),
    ],
)
def test_expected_errors_are_one_line_and_exit_code_2(monkeypatch, capsys, config_file, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert run(monkeypatch, *(argument.format(config=config_file) for argument in arguments)) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert sorted(tmp_path.rglob("*")) == before  # no half-written run folder


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["crossclr", "--debug", "train", "nonsense"])
    with pytest.raises(ValueError, match="nonsense"):
        main()


def test_a_bug_is_not_hidden(monkeypatch, capsys):
    monkeypatch.setattr("crossclr.api.train", lambda *_, **__: {}["bug"])
    monkeypatch.setattr(sys, "argv", ["crossclr", "train", "emoji"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 70
    assert "unexpected KeyError: 'bug'. This is a fault of crossclr" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["crossclr", "--debug", "train", "emoji"])
    with pytest.raises(KeyError):
        main()


def test_config_commands(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "config", "list") == 0
    assert re.search(r"^youcook2-100m +CrossCLR on YouCook2", capsys.readouterr().out, re.MULTILINE)
    assert run(monkeypatch, "config", "copy", "emoji") == 0
    assert run(monkeypatch, "config", "copy", "emoji") == 2  # never overwrites
    assert run(monkeypatch, "check", "emoji.yaml", "--config-only") == 0
    capsys.readouterr()
    assert run(monkeypatch, "config", "show", "emoji.yaml", "--set", "training.epochs=7") == 0
    shown = capsys.readouterr().out
    assert yaml.safe_load(shown)["training"]["epochs"] == 7
    assert "# Passes over the training split." in shown
    (tmp_path / "bad.yaml").write_text((tmp_path / "emoji.yaml").read_text().replace("temperature:", "tempreature:"))
    assert run(monkeypatch, "check", "lsmdc", "--config-only") == 0
    assert "lsmdc: valid" in capsys.readouterr().out
    assert run(monkeypatch, "check", "bad.yaml", "--config-only") == 2
    captured = capsys.readouterr()
    assert "bad.yaml: loss.local: clip has no option 'tempreature'" in captured.err


def test_interrupt_says_how_to_go_on(config_file, tmp_path):
    command = [sys.executable, "-m", "crossclr", "train", str(config_file), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*command, "--set", "training.epochs=1000"],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.stat().st_size, "the first metrics", seconds=90)
    process.send_signal(signal.SIGINT)
    shown, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert f"crossclr train --resume {tmp_path / 'run'}" in shown
    assert "Traceback" not in errors
