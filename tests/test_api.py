import io
import json
import statistics

import h5py
import numpy as np
import pytest
import torch
from rich.console import Console

from crossclr import api
from crossclr.data import DataError
from crossclr.storage import FolderLock, LockedError
from crossclr.training import ConfigError, Run
from crossclr.training.config_files import check_config
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture
def values(tmp_path):
    values = tiny_values(write_coot(tmp_path / "data"))
    values["training"]["epochs"] = 2
    return values


def test_several_seeds_have_a_folder_each_and_a_summary(values, tmp_path, capsys):
    runs = api.train_seeds(
        check_config(values), [0, 5], out=tmp_path / "runs", baseline=False, console=Console(width=120)
    )
    assert [run.path.name for run in runs] == ["seed-0", "seed-5"]
    assert [run.config.seed for run in runs] == [0, 5]
    summary = json.loads((tmp_path / "runs" / "summary.json").read_text())
    found = [run.results["test"]["clip/text->video"]["R@5"] for run in runs]
    assert summary["seeds"] == [0, 5]
    assert summary["mean"]["clip/text->video"]["R@5"] == pytest.approx(np.mean(found))
    assert summary["std"]["clip/text->video"]["R@5"] == pytest.approx(statistics.stdev(found))
    assert "±" in capsys.readouterr().out
    alone = api.train(check_config({**values, "seed": 5}), out=tmp_path / "alone", baseline=False)
    assert alone.results["test"] == runs[1].results["test"]


def test_a_single_seed_has_no_deviation(values, tmp_path):
    shown = io.StringIO()
    console = Console(file=shown, width=120)
    api.train_seeds(check_config(values), [5], out=tmp_path / "runs", baseline=False, console=console)
    assert json.loads((tmp_path / "runs" / "summary.json").read_text())["std"] == {}
    assert "text → video" in shown.getvalue()
    assert "±" not in shown.getvalue()


def test_several_seeds_go_on_where_they_stopped(values, tmp_path, monkeypatch):
    config = check_config(values)
    plain = api.JointTraining

    def fail_at_five(config, *arguments, **options):
        if config.seed == 5:
            raise KeyboardInterrupt
        return plain(config, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(api, "JointTraining", fail_at_five)
        with pytest.raises(KeyboardInterrupt):
            api.train_seeds(config, [0, 5], out=tmp_path / "runs", baseline=False)
    assert not (tmp_path / "runs" / "summary.json").exists()
    runs = api.resume(tmp_path / "runs", baseline=False)
    assert [run.config.seed for run in runs] == [0, 5]
    assert (tmp_path / "runs" / "summary.json").exists()
    with pytest.raises(FileNotFoundError, match="seed-0, seed-5: name one of them"):
        Run.open(tmp_path / "runs")


def test_only_one_call_at_a_time_trains_the_seeds_of_a_folder(values, tmp_path):
    with FolderLock(tmp_path / "runs"), pytest.raises(LockedError, match="is writing to"):
        api.train_seeds(check_config(values), [0], out=tmp_path / "runs", baseline=False)
    assert not (tmp_path / "runs").exists()


def test_an_existing_folder_is_never_written_into(values, tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(FileExistsError, match="--resume"):
        api.train(check_config(values), out=tmp_path / "run")
    with pytest.raises(FileExistsError, match="already exists"):
        api.train_seeds(check_config(values), [0], out=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_default_folder_is_named_after_the_config(values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [api.train(check_config(values), baseline=False).path for _ in range(2)]
    assert [str(path) for path in paths] == ["runs/tiny", "runs/tiny-2"]


def test_a_run_opens_from_anywhere(values, tmp_path, monkeypatch):
    """Relative paths of the data are looked up once, when training begins."""
    monkeypatch.chdir(tmp_path)
    values["data"]["root"] = "data"
    run = api.train(check_config(values), out="run", baseline=False)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert len(Run.open(tmp_path / run.path).open_data().where(split="train")) == 14


def truncate(folder):
    path = folder / "video.h5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def missing_key(folder):
    with h5py.File(folder / "video.h5", "a") as file:
        del file["train03"]


def not_a_number(folder):
    with h5py.File(folder / "video.h5", "a") as file:
        for key in file:
            file[key][0, 0] = np.nan


def no_rows(folder):
    with h5py.File(folder / "video.h5", "a") as file:
        for key in list(file):
            del file[key]
            file[key] = np.zeros((0, 6), np.float32)


def other_splits(folder):
    path = folder / "text_sentence_splits.json"
    splits = json.loads(path.read_text())
    path.write_text(json.dumps({key: [*counts, 3] for key, counts in splits.items()}))


def no_such_split(folder):
    path = folder / "meta_all.json"
    path.write_text(path.read_text().replace('"val"', '"validation"'))


@pytest.mark.parametrize("fault", [truncate, missing_key, not_a_number, no_rows, other_splits, no_such_split])
def test_bad_data_is_one_message_and_no_folder(values, tmp_path, fault):
    fault(tmp_path / "data")
    with pytest.raises((DataError, ValueError)) as caught:
        api.train(check_config(values), out=tmp_path / "runs" / "run")
    assert len(str(caught.value)) > 20
    assert not list(tmp_path.glob("runs/*"))
    with pytest.raises((DataError, ValueError)):
        api.train_seeds(check_config(values), [0, 1], out=tmp_path / "seeds")
    assert not (tmp_path / "seeds").exists()


def test_overrides_belong_to_names_and_files(values):
    with pytest.raises(ValueError, match="model_copy"):
        api.train(check_config(values), ["training.epochs=1"])
    with pytest.raises(ConfigError, match="no shipped config"):
        api.train("nothing")


def test_seeds_must_differ(values):
    with pytest.raises(ValueError, match="must be different numbers"):
        api.train_seeds(check_config(values), [1, 1])


class OwnLoss(torch.nn.Module):
    """A loss that the package does not know, with a parameter of its own."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.calls = 0

    def forward(self, za, zb, a=None, b=None, ids=None):
        self.calls += 1
        normalise = torch.nn.functional.normalize
        logits = self.scale.exp() * normalise(za, dim=1) @ normalise(zb, dim=1).T
        return torch.nn.functional.cross_entropy(logits, torch.arange(len(za)))


def test_a_module_of_the_user_is_trained(values, tmp_path):
    loss = OwnLoss()
    run = api.train(check_config(values), out=tmp_path / "run", baseline=False, loss=loss)
    assert loss.calls > 0
    assert float(loss.scale) != 2.0
    assert run.results["test"]
