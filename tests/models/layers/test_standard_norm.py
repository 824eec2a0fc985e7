"""The standardising input norm: statistics against NumPy, and what training, export and resuming make of it."""

import numpy as np
import pytest
import torch

from crossclr.data import open_data
from crossclr.data.kinds import parse_data_config
from crossclr.models import ModelConfig, build_model, embed_data
from crossclr.models import embeddings as fit_norms
from crossclr.models.embeddings import fit_standard_norms
from crossclr.models.norm import StandardNorm
from crossclr.training import JointTraining, RunConfig
from crossclr.training.processes import make_fabric

MLP = {"kind": "mlp", "sequence_pooling": "mean_max", "blocks": 0, "input_norm": "standard"}
TRANSFORMER = {"kind": "transformer", "heads": 2, "input_norm": "standard"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Sequences far from zero; one channel of modality A never changes."""
    folder = tmp_path_factory.mktemp("standard")
    rng = np.random.default_rng(0)
    a = rng.normal(5.0, [1.0, 3.0, 0.0, 0.1], size=(40, 3, 4)).astype(np.float32)
    b = rng.normal(-2.0, 0.5, size=(40, 5)).astype(np.float32)
    np.save(folder / "a.npy", a)
    np.save(folder / "b.npy", b)
    np.save(folder / "splits.npy", np.array(["train"] * 30 + ["test"] * 10))
    values = {
        "kind": "arrays",
        "root": str(folder),
        "modalities": {"video": {"values": "a.npy"}, "text": {"values": "b.npy"}},
    }
    return parse_data_config({**values, "splits": "splits.npy"}), a[:30].astype(np.float64), b[:30].astype(np.float64)


def test_rows_of_a_sequence_and_pooled_vectors(data):
    config, a, b = data
    model = build_model(
        ModelConfig(dim=8, encoder=MLP, encoders={"video": TRANSFORMER}), {"video": 4, "text": 5}, two_level=False
    ).train()
    fit_standard_norms(model, open_data(config).where(split="train"))
    assert model.training
    found = model.encoders["video"].local.input_norm, model.encoders["text"].local.input_norm
    rows = a.reshape(-1, 4)
    np.testing.assert_allclose(found[0].mean, rows.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found[0].deviation, [*rows.std(0)[:2], 1.0, rows.std(0)[3]], rtol=1e-4)
    twice = np.concatenate([b, b], axis=1)  # a single row is its own mean and maximum
    np.testing.assert_allclose(found[1].mean, twice.mean(0), rtol=1e-5)
    np.testing.assert_allclose(found[1].deviation, twice.std(0), rtol=1e-5)
    normed = found[0](torch.from_numpy(rows))
    np.testing.assert_allclose(normed[:, [0, 1, 3]].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(normed[:, [0, 1, 3]].std(0, correction=0), 1, atol=1e-4)
    assert normed[:, 2].abs().max() < 1e-5


def test_of_many_samples_some_are_looked_at(data, monkeypatch):
    config, _, b = data
    monkeypatch.setattr(fit_norms, "SAMPLES", 2)
    model = build_model(ModelConfig(dim=8, encoder=MLP), {"video": 4, "text": 5}, two_level=False)
    fit_standard_norms(model, open_data(config).where(split="train"))
    np.testing.assert_allclose(model.encoders["text"].local.input_norm.mean[:5], b[[0, 29]].mean(0), rtol=1e-5)


def test_a_model_without_it_reads_nothing():
    fit_standard_norms(build_model(ModelConfig(dim=8), {"video": 4, "text": 5}, two_level=False), None)


def test_training_begins_with_it_and_checkpoints_hold_it(data):
    config, a, _ = data
    values = {
        "name": "standard",
        "data": config.model_dump(by_alias=True),
        "model": {"dim": 8, "encoder": MLP, "encoders": {"video": TRANSFORMER}},
        "loss": {"local": {"name": "clip"}, "global": None},
        "splits": {"validate": None},
    }
    made = RunConfig.model_validate(values)
    training = JointTraining(made, open_data(config).where(split="train"), make_fabric("cpu", 1, "32-true"))
    weights = training.model.state_dict()
    mean = weights["encoders.video.local.input_norm.mean"]
    np.testing.assert_allclose(mean, a.reshape(-1, 4).mean(0), rtol=1e-5)
    fresh = build_model(made.model, {"video": 4, "text": 5}, two_level=False)
    fresh.load_state_dict(weights)
    one, other = (
        embed_data(model, open_data(config).where(split="test"))["video"].rows for model in (training.model, fresh)
    )
    torch.testing.assert_close(one, other)


def test_nothing_watched_changes_nothing():
    norm = StandardNorm(3)
    norm.observe()
    norm.fit()
    rows = torch.randn(4, 3)
    torch.testing.assert_close(norm(rows), rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_it_keeps_dtypes(dtype):
    assert StandardNorm(3)(torch.randn(2, 3, dtype=dtype)).dtype == dtype
