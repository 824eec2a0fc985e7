"""Training from memory: the same run as from disk, with every sample read once."""

import numpy as np
import pytest
import torch

from crossclr import api
from crossclr.models.model_config import MLPEncoderConfig, TransformerEncoderConfig
from crossclr.training import RunConfig, load_config
from crossclr.training.joint_training import memory_form


def config_of(folder, **training):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(60, 4))
    np.save(folder / "a.npy", (hidden @ rng.normal(size=(4, 6)))[:, None] + 0.3 * rng.normal(size=(60, 5, 6)))
    np.save(folder / "b.npy", hidden @ rng.normal(size=(4, 7)) + 0.3 * rng.normal(size=(60, 7)))
    np.save(folder / "splits.npy", np.array(["train", "train", "val", "test"] * 15))
    return RunConfig.model_validate(
        {
            "data": {
                "kind": "arrays",
                "root": str(folder),
                "modalities": {"video": {"values": "a.npy"}, "text": {"values": "b.npy"}},
                "splits": "splits.npy",
            },
            "model": {
                "dim": 8,
                "encoder": {"kind": "mlp"},
                "encoders": {"video": {"sequence_pooling": "mean_max"}},
            },
            "loss": {"local": {"name": "crossclr", "queue_size": 30}},
            "training": {"epochs": 3, "batch_size": 12, "accelerator": "cpu", "workers": 0, **training},
        }
    )


def test_a_run_from_memory_is_the_run_from_disk(tmp_path):
    disk = api.train(config_of(tmp_path), out=tmp_path / "disk")
    memory = api.train(config_of(tmp_path, in_memory=True), out=tmp_path / "memory")
    for name, weight in disk.load_model().state_dict().items():
        torch.testing.assert_close(memory.load_model().state_dict()[name], weight, rtol=1e-3, atol=1e-4)
    assert memory.results["cca_baseline"] == disk.results["cca_baseline"]
    for direction, metrics in disk.results["test"].items():
        assert memory.results["test"][direction] == pytest.approx(metrics, abs=7)  # one rank of 15


def test_a_run_from_memory_is_resumed_and_evaluated_as_any_other(tmp_path):
    run = api.train(config_of(tmp_path, in_memory=True), out=tmp_path / "run")
    assert api.resume(run.path).results == run.results
    found = api.evaluate([run.path], baseline=False).runs["run"]
    for direction, metrics in run.results["test"].items():
        assert {name: found[direction][name] for name in metrics} == pytest.approx(metrics)


def test_what_an_encoder_changes_at_each_step_is_not_pooled_before():
    assert memory_form(MLPEncoderConfig(sequence_pooling="mean_max")) == "mean_max"
    assert memory_form(MLPEncoderConfig(sequence_pooling="mean_max", row_dropout=0.5)) == "rows"
    assert memory_form(TransformerEncoderConfig()) == "rows"


def test_shipped_configs_that_fit_into_memory_are_kept_there():
    assert load_config("emoji").training.in_memory
    assert load_config("msvd").training.in_memory
