"""A run whose data, config or files changed is refused until the change is accepted."""

import json

import h5py
import pytest
from typer.testing import CliRunner

from crossclr import api
from crossclr.cli import app
from crossclr.data import DataError
from crossclr.errors import ReadError
from crossclr.search.create import build_index
from crossclr.storage.manifest import seal
from crossclr.training import Run
from crossclr.training.config_files import check_config
from crossclr.training.run import verify
from tests.support.tiny_runs import tiny_values, write_coot


@pytest.fixture
def run(tmp_path):
    values = tiny_values(write_coot(tmp_path / "data"))
    values["training"]["epochs"] = 1
    return api.train(check_config(values), out=tmp_path / "run", baseline=False)


def reverse_texts(folder):
    """Give every video the paragraph of another one with as many sentences and tokens, so that everything parses."""
    splits = json.loads((folder / "text_sentence_splits.json").read_text())
    with h5py.File(folder / "text.h5", "r+") as file:
        for key in splits:
            file[key][()] = file[key][()][::-1]


def test_changed_data_is_refused_by_all_commands_until_accepted(run, tmp_path):
    reverse_texts(tmp_path / "data")
    (run.path / "results.json").unlink()  # as if it had been stopped
    seal(run.path, ["results.json"])
    for command in (
        lambda: api.evaluate([run.path]),
        lambda: api.resume(run.path),
        lambda: api.embed(run.path, split="val"),
        lambda: build_index(run.path),
    ):
        with pytest.raises(DataError, match=r"text of 14 of 14 sampled samples changed .*check .* --accept"):
            command()
    found = verify(run.path, accept=True)
    assert any("text of 14 of 14" in difference for difference in found.differences)
    api.evaluate([run.path])
    api.resume(run.path)  # it writes metrics, which no manifest lists
    assert verify(run.path).differences == []


def test_an_edited_config_is_refused_until_accepted(run):
    path = run.path / "config.yaml"
    path.write_text(path.read_text().replace("learning_rate: 0.01", "learning_rate: 0.02"))
    for command in (Run.open, api.resume):
        with pytest.raises(ReadError, match=r"config\.yaml was changed"):
            command(run.path)
    result = CliRunner().invoke(app, ["check", str(run.path)])
    assert result.exit_code == 1
    assert "config.yaml was changed" in result.output
    assert CliRunner().invoke(app, ["check", str(run.path), "--accept"]).exit_code == 0
    assert Run.open(run.path).config.optimiser.learning_rate == 0.02
    assert CliRunner().invoke(app, ["check", str(run.path)]).exit_code == 0


@pytest.mark.parametrize("name", ["model.json", "environment.json", "results.json", "data.json"])
def test_a_removed_file_is_named(run, name):
    (run.path / name).unlink()
    with pytest.raises((ReadError, FileNotFoundError), match=name):
        Run.open(run.path)


def test_a_flipped_bit_in_the_weights_is_noticed(run):
    path = run.path / "best" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ReadError, match=r"best: model\.safetensors was changed"):
        run.load_model()


def test_lost_manifests_are_named_and_written_on_request(run):
    for path in run.path.rglob("checksums.json"):
        path.unlink()
    with pytest.raises(ReadError, match=r"checksums\.json is missing.*check .* --accept"):
        Run.open(run.path)
    assert verify(run.path, accept=True).folders == 3
    assert Run.open(run.path).load_model() is not None
    assert verify(run.path).differences == []


def test_only_folders_with_a_manifest_can_be_verified(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing to verify"):
        verify(tmp_path)
