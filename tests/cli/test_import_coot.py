from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from crossclr.cli import app
from crossclr.models import ModelConfig, build_model, export_coot
from crossclr.models.coot import read_coot
from crossclr.training.run import Run


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    model = build_model(ModelConfig(dim=64), {"video": 24, "text": 40}, two_level=True)
    torch.save(export_coot(model), tmp_path / "model_7.pth")
    return tmp_path / "model_7.pth"


def test_the_folder_opens_as_a_run(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "coot"
    result = CliRunner().invoke(app, ["import-coot", str(checkpoint), "--out", str(out), "--pool", "mean"])
    assert result.exit_code == 0, result.output
    assert "input 24 and 40" in result.output
    run = Run.open(out)
    assert run.config.name == "youcook2-100m"
    model = run.load_model()
    assert model.config.global_encoder.pool == "mean"
    for name, network in export_coot(model).items():
        for key, value in read_coot(checkpoint)[name].items():
            assert torch.equal(network[key], value), (name, key)


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
