"""``check_loss``: what every loss of the library must do."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from crossclr.losses import build_loss
from crossclr.losses.names import LOSS_PATHS, printed_options

CASES: dict[str, dict[str, object]] = {name: {} for name in LOSS_PATHS}
CASES["crossclr with queue"] = {"queue_size": 30}
CASES["crossclr with positives"] = {"extra_positives": 2, "queue_size": 5}
CASES["crossclr similar"] = {"near_copies": 0.1, "shared_positives": 0.3, "queue_size": 20}
CASES["crossclr printed"] = printed_options("algorithm") | {"queue_size": 20}
CASES["crossclr in chunks"] = {"chunk_size": 3, "intra_mode": "logit", "self_logit": "zero"}


def make(case: str) -> nn.Module:
    return build_loss(case.split()[0], **CASES[case])


def batch(size: int = 9, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"za": 6, "zb": 6, "a": 5, "b": 4}
    rows = {k: torch.randn(size, d, generator=generator, dtype=torch.float64) + 0.3 for k, d in shapes.items()}
    return {**{k: v.to(dtype) for k, v in rows.items()}, "ids": torch.arange(size)}


def value(case: str, inputs: dict[str, Tensor]) -> Tensor:
    return make(case)(**inputs).detach()


def permutation(case: str) -> None:
    inputs = batch(dtype=torch.float64)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(value(case, {k: v[order] for k, v in inputs.items()}), value(case, inputs))


def swapped_modalities(case: str) -> None:
    inputs = batch(dtype=torch.float64)
    other = {"za": inputs["zb"], "zb": inputs["za"], "a": inputs["b"], "b": inputs["a"], "ids": inputs["ids"]}
    torch.testing.assert_close(value(case, other), value(case, inputs))


def scale_of_embeddings(case: str) -> None:
    inputs = batch(dtype=torch.float64)
    scaled = {**inputs, "za": inputs["za"] * 37.0, "zb": inputs["zb"] * 1e-3, "a": inputs["a"] * 5}
    torch.testing.assert_close(value(case, scaled), value(case, inputs))


def one_sample(case: str) -> None:
    inputs = batch(1)
    inputs["za"].requires_grad_()
    loss = make(case)(**inputs)
    loss.backward()
    assert loss.shape == ()
    assert torch.isfinite(loss)
    assert torch.isfinite(inputs["za"].grad).all()


def all_ids_equal(case: str) -> None:
    inputs = {**batch(), "ids": torch.zeros(9, dtype=torch.int64)}
    inputs["za"].requires_grad_()
    loss = make(case)(**inputs)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(inputs["za"].grad).all()


def everything_pruned_or_alike(case: str) -> None:
    inputs = batch()
    same = {k: v if k == "ids" else v[:1].repeat(9, 1) for k, v in inputs.items()}
    same["za"].requires_grad_()
    loss = make(case)(**same)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(same["za"].grad).all()


def rows_of_zeros(case: str) -> None:
    inputs = batch()
    for name in ("za", "zb", "a", "b"):
        inputs[name][3] = 0
    inputs["za"].requires_grad_()
    loss = make(case)(**inputs)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(inputs["za"].grad).all()


def half_precision_and_autocast(case: str) -> None:
    inputs = batch()
    wanted = value(case, inputs)
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype=dtype):
            torch.testing.assert_close(value(case, inputs), wanted)
        half = {k: v if k == "ids" else v.to(dtype) for k, v in inputs.items()}
        got = value(case, half)
        assert got.dtype == torch.float32
        torch.testing.assert_close(got, value(case, {k: v if k == "ids" else v.float() for k, v in half.items()}))
        leaf = half["za"].clone().requires_grad_()
        make(case)(**{**half, "za": leaf}).backward()
        assert leaf.grad.dtype == dtype


def compiled(case: str) -> None:
    inputs = batch()
    layer = nn.Linear(6, 6)
    loss_fn = make(case)

    def step(inputs: dict[str, Tensor]) -> Tensor:
        return loss_fn(layer(inputs["za"]), inputs["zb"], inputs["a"], inputs["b"], inputs["ids"])

    fresh = copy.deepcopy(loss_fn)
    wanted = fresh(layer(inputs["za"]), inputs["zb"], inputs["a"], inputs["b"], inputs["ids"])
    got = torch.compile(step, backend="aot_eager")(inputs)
    torch.testing.assert_close(got, wanted)
    got.backward()
    assert torch.isfinite(layer.weight.grad).all()


def deep_copies_are_independent(case: str) -> None:
    loss_fn = make(case)
    loss_fn(**batch())
    twin = copy.deepcopy(loss_fn)
    torch.testing.assert_close(twin(**batch(seed=1)), loss_fn(**batch(seed=1)))
    twin(**batch(seed=2))
    torch.testing.assert_close(dict(make_and_run(case, [0, 1]).state_dict()), dict(loss_fn.state_dict()))


def make_and_run(case: str, seeds: list[int]) -> nn.Module:
    loss_fn = make(case)
    for seed in seeds:
        loss_fn(**batch(seed=seed))
    return loss_fn


def state_dicts_hold_everything(case: str) -> None:
    loss_fn = make_and_run(case, [0, 1, 2])
    twin = make(case)
    twin.load_state_dict(loss_fn.state_dict())
    assert torch.equal(twin(**batch(seed=3)), loss_fn(**batch(seed=3)))


def bad_input_is_named(case: str) -> None:
    inputs = batch()
    bad = {
        "za": inputs["za"][0],
        "zb": inputs["zb"][:4],
        "ids": inputs["ids"][:4],
    }
    for name, wrong in bad.items():
        with pytest.raises(ValueError, match=name):
            make(case)(**{**inputs, name: wrong})
    with pytest.raises(ValueError, match="za must be a torch tensor, got ndarray"):
        make(case)(**{**inputs, "za": inputs["za"].numpy()})
    unusable = {"torch.sparse_coo": inputs["za"].to_sparse(), "meta": inputs["za"].to("meta")}
    for kind, wrong in unusable.items():
        with pytest.raises(ValueError, match=f"^za must be a dense tensor with values, got .*{kind}"):
            make(case)(**{**inputs, "za": wrong})
        with pytest.raises(ValueError, match=r"^zb must be a dense tensor with values"):
            make(case)(**{**inputs, "zb": wrong})
    with pytest.raises(ValueError, match=r"^ids must be a dense tensor with values"):
        make(case)(**{**inputs, "ids": inputs["ids"].to("meta")})
    inputs["za"][4, 2] = torch.inf
    with pytest.raises(ValueError, match="za holds NaN or inf in 1 of 9 rows; the first is row 4"):
        make(case)(**inputs)


CHECKS: list[Callable[[str], None]] = [
    permutation,
    swapped_modalities,
    scale_of_embeddings,
    one_sample,
    all_ids_equal,
    everything_pruned_or_alike,
    rows_of_zeros,
    half_precision_and_autocast,
    compiled,
    deep_copies_are_independent,
    state_dicts_hold_everything,
    bad_input_is_named,
]


@pytest.mark.parametrize(
    "check",
    [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] if one is compiled else []) for one in CHECKS],
)
@pytest.mark.parametrize("case", CASES)
def test_check_loss(case: str, check: Callable[[str], None]) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="pruning by")
        check(case)
