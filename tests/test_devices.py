"""Nothing assumes the CPU: losses, models and batches give the same values on a simulated device."""

import pytest
import torch

from crossclr.data import EmojiConfig, Inputs, Ragged, batches, open_data
from crossclr.losses import CrossCLR, build_loss
from crossclr.losses.names import LOSS_PATHS
from crossclr.models import ModelConfig, build_model
from crossclr.models.closed_form import ClosedForm
from crossclr.models.space import HubCorrection, SearchSpace
from tests.support.simulated_device import DEVICE, Elsewhere, SimulatedDevice

QUEUE = {"queue_size": 12, "prune_threshold": 0.9, "weight_scale": 0.05}


def test_the_simulated_device_has_values_and_refuses_to_mix():
    with SimulatedDevice():
        there = torch.ones(3).to(DEVICE)
        assert (there + 1).sum().item() == 6
        assert there.device == DEVICE
        assert there.cpu().device == torch.device("cpu")
        with pytest.raises(RuntimeError, match="same device"):
            _ = there + torch.ones(3)
        with pytest.raises(RuntimeError, match="same device"):
            _ = there[torch.tensor([0])] * torch.arange(1)


def inputs(device, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randn(8, width, generator=generator).to(device) for width in (16, 16, 5, 7)]
    return [row.requires_grad_(place < 2) for place, row in enumerate(rows)] + [torch.arange(8).to(device) + 8 * seed]


def losses_and_gradients(make, device):
    loss, found = make().to(device), []
    for seed in range(3):  # a queue fills and overflows
        batch = inputs(device, seed)
        value = loss(*batch)
        value.backward()
        found += [value.detach(), batch[0].grad, batch[1].grad]
    return found


@pytest.mark.parametrize("name", [*LOSS_PATHS, "crossclr with a queue"])
def test_losses(name):
    make = (lambda: build_loss(name)) if name in LOSS_PATHS else (lambda: CrossCLR(**QUEUE))
    here = losses_and_gradients(make, "cpu")
    with SimulatedDevice():
        there = losses_and_gradients(make, DEVICE)
    for one, other in zip(here, there, strict=True):
        assert isinstance(other, Elsewhere)
        torch.testing.assert_close(other.held, one)


@pytest.mark.parametrize(
    "encoder", [{"kind": "mlp"}, {"heads": 2, "pooler": "attention"}, {"heads": 2, "pooler": "max"}]
)
def test_models(encoder):
    torch.manual_seed(0)
    config = ModelConfig(dim=16, encoders={"text": encoder})
    model = build_model(config, {"video": 3, "text": 7}, two_level=False).eval()
    rows = Inputs(Ragged(torch.randn(9, 7), torch.tensor([4, 5])))
    here = model.encode_modality("text", rows)["clip"]
    with SimulatedDevice():
        there = model.to(DEVICE).encode_modality("text", rows.to(DEVICE))["clip"]
        there.sum().backward()
        torch.testing.assert_close(there.held, here)


def test_a_search_space():
    torch.manual_seed(0)
    rows = {"video": torch.randn(60, 5), "text": torch.randn(60, 4)}
    plain = SearchSpace({"video": 5, "text": 4}, ClosedForm().fit(rows))
    hubs = HubCorrection({name: plain.encode_queries(name, values) for name, values in rows.items()}, 0.5)
    space = SearchSpace(plain.dims, plain.closed_form, hubs=hubs)
    here = space.encode_queries("text", rows["text"]), space.encode_items("video", rows["video"])
    with SimulatedDevice():
        space.to(DEVICE)
        there = (
            space.encode_queries("text", rows["text"].to(DEVICE)),
            space.encode_items("video", rows["video"].to(DEVICE)),
        )
        for one, other in zip(here, there, strict=True):
            torch.testing.assert_close(other.held, one)


def test_a_batch_moves_as_a_whole():
    batch = next(batches(open_data(EmojiConfig()).where(split="train"), batch_size=4, seed=0, epoch=0))
    with SimulatedDevice():
        moved = batch.to(DEVICE)
        for name, rows in moved.inputs.items():
            assert rows.clips.values.device == moved.pooled[name].device == DEVICE
        assert moved.ids.device == DEVICE
