"""Commands that only read or show something answer without loading PyTorch."""

import subprocess
import sys

import pytest

from tests.support.commands import ENVIRONMENT

HEAVY = ("torch", "scipy", "sklearn", "h5py", "pyarrow", "transformers", "lightning_fabric")
CODE = (
    "import sys; from crossclr.cli import main\n"
    "try:\n    main()\n"
    f"finally:\n    loaded = [name for name in {HEAVY} if name in sys.modules]\n"
    "    sys.stderr.write(f'loaded: {loaded}')\n"
)


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (["--version"], 0, "0."),
        (["--help"], 0, "doctor"),
        (["config", "-h"], 0, "copy"),
        (["config", "list"], 0, "youcook2-100m"),
        (["config", "show", "emoji"], 0, "# Passes over the training split."),
        (["config", "show", "emoji", "--set", "training.epochs=7"], 0, "epochs: 7"),
        (["config", "show", "emojy"], 2, "did you mean 'emoji'?"),
        (["config", "show", "emoji", "--set", "training.epoch=7"], 2, "did you mean 'epochs'?"),
        (["config", "show", "emoji", "--set", "loss.local.tempreature=1"], 2, "did you mean 'temperature'?"),
        (["config", "show", "emoji", "--set", "loss.local={name: crosclr}"], 2, "did you mean 'crossclr'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_light_commands_do_not_load_pytorch(arguments, code, shown):
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert shown in done.stdout + done.stderr
    assert done.stderr.endswith("loaded: []")


def test_the_check_can_fail():
    code = CODE.replace("main()", "import torch", 1)
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert "loaded: ['torch'" in done.stderr
