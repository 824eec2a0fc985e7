from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.models import import_coot
from crossclr.models.coot import read_coot
from crossclr.training.run import Run
from tests.support.references import coot_network


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    state = coot_network()["state"]
    tensors = {name: {key: torch.as_tensor(value) for key, value in part.items()} for name, part in state.items()}
    torch.save(tensors, tmp_path / "model_7.pth")
    return tmp_path / "model_7.pth"


def test_the_folder_opens_as_a_run(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "coot"
    result = CliRunner().invoke(app, ["import-coot", str(checkpoint), "--out", str(out), "--pool", "mean"])
    assert result.exit_code == 0, result.output
    expected = import_coot(read_coot(checkpoint), global_pool="mean")
    assert f"input {expected.dims['video']} and {expected.dims['text']}" in result.output
    run = Run.open(out)
    assert run.config.name == "youcook2-100m"
    model = run.load_model()
    assert model.config.global_encoder.pool == "mean"
    for key, value in expected.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


def test_an_existing_folder_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["import-coot", str(checkpoint), "--out", str(tmp_path)])
    assert isinstance(result.exception, FileExistsError)


class Harm:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (Path.touch, (Path("harm-was-done"),))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    "content",
    [b"", b"no checkpoint", pickle.dumps(Harm()), pickle.dumps({"a": 1})],
    ids=["empty", "text", "code", "other"],
)
def test_other_files_are_refused_and_leave_nothing(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pth").write_bytes(content)
    result = CliRunner().invoke(app, ["import-coot", "bad.pth", "--out", "out"])
    assert isinstance(result.exception, ValueError), result.exception
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.pth"]
