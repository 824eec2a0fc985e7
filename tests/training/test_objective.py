import numpy as np
import pytest
import torch

from crossclr.data import batches, open_data
from crossclr.losses import build_loss
from crossclr.losses.coot import Coot
from crossclr.training.config_files import check_config
from crossclr.training.objective import Objective
from crossclr.training.run_config import LossConfig


@pytest.fixture
def batch(tiny):
    return next(batches(open_data(check_config(tiny).data).where(split="train"), 6, workers=0))


@pytest.fixture
def outputs(batch):
    generator = torch.Generator().manual_seed(0)
    clips, videos = len(batch.ids), len(batch.keys)
    rows = {"clip/video": clips, "clip/text": clips, "video/video": videos, "video/text": videos}
    rows |= {"context/video": videos, "context/text": videos}
    return {name: torch.randn(count, 8, generator=generator, requires_grad=True) for name, count in rows.items()}


def test_local_plus_weighted_global(batch, outputs):
    options = {"temperature": 0.1, "queue_size": 50}
    objective = Objective(
        LossConfig.model_validate(
            {"local": {"name": "crossclr", **options}, "global": {"name": "clip"}, "global_weight": 0.25}
        )
    )
    local, above = build_loss("crossclr", **options), build_loss("clip")
    for _ in range(2):  # the second call sees the queue of the first
        loss = objective(outputs, batch)
        below = local(
            outputs["clip/video"],
            outputs["clip/text"],
            a=batch.pooled["video"],
            b=batch.pooled["text"],
            ids=batch.ids,
        )
        videos = above(outputs["video/video"], outputs["video/text"], ids=batch.video_ids)
        torch.testing.assert_close(loss, below + 0.25 * videos)
    assert objective.parts["loss_local"] == pytest.approx(below.item())
    assert objective.parts["loss_global"] == pytest.approx(videos.item())
    assert objective.parts["queue_fill"] == pytest.approx(local.stats.queue_fill)
    assert objective.parts["pruned"] == pytest.approx(local.stats.pruned)
    assert objective.parts["intra_share"] == pytest.approx(local.stats.intra_share)
    loss.backward()
    assert outputs["video/text"].grad is not None


def test_the_paper_weighs_the_global_loss_with_six_tenths():
    assert LossConfig().global_weight == 0.6


def test_local_alone_never_touches_videos(batch, outputs):
    objective = Objective(LossConfig.model_validate({"local": {"name": "ntxent"}}))
    below = {name: value for name, value in outputs.items() if name in ("clip/video", "clip/text")}
    expected = build_loss("ntxent")(below["clip/video"], below["clip/text"], ids=batch.ids)
    torch.testing.assert_close(objective(below, batch), expected)


def test_coot_gets_all_levels_and_the_sampled_positions(batch, outputs):
    objective = Objective(LossConfig.model_validate({"local": {"name": "coot", "cycle": 0.5}}))
    found = objective(outputs, batch, torch.Generator().manual_seed(3))
    expected = Coot(cycle=0.5).all_levels(outputs, batch.clip_counts, torch.Generator().manual_seed(3))
    torch.testing.assert_close(found, expected)
    values = {objective(outputs, batch, torch.Generator().manual_seed(seed)).item() for seed in range(5)}
    assert len(values) > 1


def test_queue_is_part_of_the_state(batch, outputs):
    config = LossConfig.model_validate({"local": {"name": "crossclr", "queue_size": 40}})
    first, second = Objective(config), Objective(config)
    first(outputs, batch)
    second.load_state_dict(first.state_dict())
    assert first(outputs, batch).item() == second(outputs, batch).item()
    assert np.isfinite(first.parts["queue_fill"])
