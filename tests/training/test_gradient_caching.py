"""Micro-batches give the step of the whole batch."""

import copy
import warnings

import pytest
import torch

from crossclr.data import open_data
from crossclr.models import JointModel
from crossclr.training import JointTraining
from crossclr.training.config_files import check_config
from crossclr.training.joint_training import backward_in_parts
from crossclr.training.processes import make_fabric, part


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def without_dropout(values: dict) -> dict:
    values = copy.deepcopy(values)
    for encoder in ("encoder", "global_encoder"):
        values["model"][encoder]["dropout"] = 0.0
    return values


def training(values: dict, micro_batch: int | None) -> JointTraining:
    values = copy.deepcopy(values)
    values["training"]["micro_batch"] = micro_batch
    config = check_config(values)
    return JointTraining(config, open_data(config.data).where(split="train"), make_fabric("cpu"))


@pytest.mark.parametrize("local", [{"name": "crossclr", "queue_size": 30}, {"name": "clip"}, {"name": "coot"}])
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_steps_equal_those_of_the_whole_batch(tiny, local, micro_batch):
    values = without_dropout(tiny)
    values["loss"] = {"local": local} if local["name"] == "coot" else {"local": local, "global": {"name": "crossclr"}}
    values["training"]["batch_size"] = 5
    plain, cached = training(values, None), training(values, micro_batch)
    for model in (plain.model, cached.model):
        model.double()
    moved = [copy.deepcopy(plain.model.state_dict())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epoch in range(2):
            for one, other in zip(plain.batches(epoch), cached.batches(epoch), strict=True):
                assert plain.step(double(one))["loss"] == pytest.approx(cached.step(double(other))["loss"], rel=1e-9)
            for item in (plain.position, cached.position):
                item.batch = 0
    expected = plain.model.state_dict()
    assert any(not torch.equal(expected[name], value) for name, value in moved[0].items())
    for name, value in cached.model.state_dict().items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-9, msg=name)
    for name, value in cached.objective.state_dict().items():
        torch.testing.assert_close(value, plain.objective.state_dict()[name], rtol=1e-5, atol=1e-6, msg=name)


def double(batch):
    from dataclasses import replace

    from crossclr.data import Inputs, Ragged

    def side(one):
        def rows(ragged):
            return None if ragged is None else Ragged(ragged.values.double(), ragged.lengths)

        return Inputs(rows(one.clips), rows(one.context))

    pooled = {
        name: {modality: rows.double() for modality, rows in getattr(batch, name).items()}
        for name in ("pooled", "pooled_context")
    }
    return replace(batch, inputs={name: side(rows) for name, rows in batch.inputs.items()}, **pooled)


def test_dropout_is_the_same_in_both_passes(tiny, monkeypatch):
    """The gradient is that of one graph through all parts, whose random draws go on from part to part."""
    one = training(tiny, None)
    batch = one.read_first_batch()
    parts = [part(batch, start, start + 2) for start in (0, 2)]
    weights = {}

    def loss_of(outputs):
        for name, rows in outputs.items():
            weights.setdefault(name, torch.randn(rows.shape, generator=torch.Generator().manual_seed(len(weights))))
        return sum((rows * weights[name]).square().sum() for name, rows in outputs.items())

    def gradients():
        return {name: parameter.grad.clone() for name, parameter in one.model.named_parameters()}

    one.model.train()
    torch.manual_seed(5)
    outputs = [one.model(piece) for piece in parts]
    wanted = loss_of({name: torch.cat([found[name] for found in outputs]) for name in outputs[0]})
    wanted.backward()
    expected, after = gradients(), torch.get_rng_state()
    one.model.zero_grad()
    torch.manual_seed(5)
    found = backward_in_parts(one.fabric, one._wrapped, parts, loss_of)
    torch.testing.assert_close(found, wanted.detach())
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-5, msg=name)
    assert torch.equal(torch.get_rng_state(), after)


def test_the_encoder_never_sees_more_than_a_part(tiny, monkeypatch):
    sizes = []
    encode = JointModel.encode

    def watched(self, batch):
        sizes.append(len(batch.keys))
        return encode(self, batch)

    monkeypatch.setattr(JointModel, "encode", watched)
    values = copy.deepcopy(tiny)
    values["training"]["batch_size"] = 5
    one = training(values, 2)
    one.step(one.read_first_batch())
    assert sizes == [2, 2, 1, 2, 2, 1]  # twice each
