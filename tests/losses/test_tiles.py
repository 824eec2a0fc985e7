"""However the anchors are cut into tiles, sums and gradients are the same."""

import warnings

import pytest
import torch

from crossclr.losses import build_loss, tiles

CASES = {
    "crossclr": {},
    "crossclr queue": {"queue_size": 400},
    "crossclr queue of which little is older": {"queue_size": 190},
    "crossclr positives": {"queue_size": 400, "extra_positives": 3, "prune_threshold": 0.5, "weight_scale": 0.1},
    "crossclr similar": {"queue_size": 400, "near_copies": 0.1, "shared_positives": 0.3},
    "crossclr released": {"intra_mode": "logit", "self_logit": "zero", "queue_size": 400},
    "ntxent": {},
    "milnce": {},
    "dcl": {},
    "clip": {},
}


def results(case: str, ids: torch.Tensor | None, chunk_size: int | None) -> list[torch.Tensor]:
    loss_fn = build_loss(case.split()[0], **CASES[case], chunk_size=chunk_size).double()
    generator = torch.Generator().manual_seed(0)
    found = []
    for step in range(3):
        size = 170 - 30 * step
        za, zb, a, b = (torch.randn(size, dim, generator=generator, dtype=torch.float64) + 0.2 for dim in (6, 6, 5, 4))
        za.requires_grad_()
        zb.requires_grad_()
        loss = loss_fn(za, zb, a, b, None if ids is None else ids[:size] + step)
        loss.backward()
        found += [loss.detach(), za.grad, zb.grad]
        found += [parameter.grad for parameter in loss_fn.parameters()]
    return found


@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_cutting_changes_nothing(case, repeated, monkeypatch):
    ids = torch.randint(0, 60, (170,), generator=torch.Generator().manual_seed(1)) if repeated else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = results(case, ids, None)
        monkeypatch.setattr(tiles, "CACHED", 1)  # the narrowest: one row
        for chunk_size in (None, 50):
            for found, wanted in zip(results(case, ids, chunk_size), whole, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
