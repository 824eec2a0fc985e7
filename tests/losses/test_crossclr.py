"""CrossCLR against the plain loops of ``reference.py`` and against the authors' released formula."""

from __future__ import annotations

import copy
import itertools
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.losses import CrossCLR
from crossclr.losses.names import READINGS, printed_options
from crossclr.notices import CrossCLRWarning
from crossclr.training import load_config
from tests.losses.reference import ReferenceCrossCLR

pytestmark = pytest.mark.filterwarnings("ignore:pruning by")


def draw_batch(generator: torch.Generator, size: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Embeddings, and features whose cosines are neither all high nor all low."""
    za, zb = (torch.randn(size, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    a = torch.randn(size, 4, generator=generator, dtype=torch.float64) + 0.7
    b = torch.randn(size, 3, generator=generator, dtype=torch.float64) + 0.4
    return [t.to(dtype) for t in (za, zb, a, b)]


def compare(seed: int, chunk_size: int | None, steps: int = 3, **options: object) -> None:
    """Value, gradient and pruned shares of a few steps against the loops, in float64 and in float32."""
    generator = torch.Generator().manual_seed(seed)
    reference = ReferenceCrossCLR(**options)  # type: ignore[arg-type]
    exact_loss, single_loss = (CrossCLR(chunk_size=chunk_size, **options) for _ in range(2))  # type: ignore[arg-type]
    for step in range(steps):
        size = int(torch.randint(1, 8, (), generator=generator))
        za, zb, a, b = draw_batch(generator, size)
        ids = None if seed % 3 == 0 else torch.randint(0, 9, (size,), generator=generator)
        leaves = [z.clone().requires_grad_() for z in (za, zb)]
        expected = reference(*leaves, a, b, None if ids is None else ids.tolist())
        if expected.requires_grad:
            expected.backward()
        for loss_fn, dtype, tolerance in ((exact_loss, torch.float64, 1e-6), (single_loss, torch.float32, 1e-4)):
            where = (seed, step, dtype, options)
            inputs = [z.clone().to(dtype).requires_grad_() for z in (za, zb)]
            value = loss_fn(*inputs, a.to(dtype), b.to(dtype), ids)
            assert value.dtype == dtype
            assert value.item() == pytest.approx(expected.item(), rel=tolerance, abs=tolerance), where
            value.backward()
            for mine, theirs in zip(inputs, leaves, strict=True):
                wanted = torch.zeros_like(theirs) if theirs.grad is None else theirs.grad
                largest = max(1.0, wanted.abs().max().item())
                assert (mine.grad.double() - wanted).abs().max() <= tolerance * largest, where
            for name, stats in loss_fn.stats.modalities.items():
                assert stats.pruned == pytest.approx(reference.pruned_shares[name], abs=1e-6), where
                assert stats.intra_share == pytest.approx(reference.intra_shares[name], abs=tolerance), where


RULES = [("relative", 0.9), ("relative", 0.5), ("absolute", 0.3), ("quantile", 0.6), ("relative", None)]


@pytest.mark.parametrize(
    ("rule", "queue_size", "weight_scale", "intra"),
    list(itertools.product(RULES, [0, 4, 11], [None, 0.05, 0.5], [("sum", 0.8), ("logit", 0.65), ("sum", 0.0)])),
)
def test_equals_the_loops(
    rule: tuple[str, float | None], queue_size: int, weight_scale: float | None, intra: tuple[str, float]
) -> None:
    for seed in range(3):
        options = {
            "prune_by": rule[0],
            "prune_threshold": rule[1],
            "queue_size": queue_size,
            "weight_scale": weight_scale,
            "intra_mode": intra[0],
            "intra_weight": intra[1],
            "temperature": (0.03, 0.1, 0.5)[seed],
            "extra_positives": 0 if rule[1] is None else seed,
            "self_logit": ("masked", "zero")[seed % 2],
            "min_keep": (0.25, 0.0, 0.6)[seed],
            "min_effective": (0.0, 0.5, 0.9)[seed],
        }
        compare(seed, (None, 1, 3)[seed], **options)


@pytest.mark.parametrize("queue_size", [0, 4, 11])
@pytest.mark.parametrize("near_copies", [0.0, 0.1, 0.4])
@pytest.mark.parametrize("shared", [0.0, 0.3, 1.0])
def test_near_copies_and_shared_positives_equal_the_loops(queue_size: int, near_copies: float, shared: float) -> None:
    for seed in range(3):
        options = {
            "queue_size": queue_size,
            "near_copies": near_copies,
            "shared_positives": shared,
            "sharing_temperature": (0.05, 0.3, 1.0)[seed],
            "intra_mode": ("logit", "sum")[seed % 2],
            "temperature": (0.1, 0.3, 0.5)[seed],
            "prune_threshold": (None, 0.5, 0.9)[seed],
            "extra_positives": (0, 2, 0)[seed],
            "weight_scale": (None, 0.05, None)[seed],
        }
        compare(seed, (None, 1, 3)[seed], **options)


@pytest.mark.parametrize("reading", [*READINGS])
@pytest.mark.parametrize("queue_size", [0, 9])
def test_the_printed_readings_equal_the_loops(reading: str, queue_size: int) -> None:
    for seed in range(4):
        options = {
            **printed_options(reading),
            "temperature": 0.3,
            "queue_size": queue_size,
            "extra_positives": seed % 3,
        }
        options |= {"prune_threshold": 0.2 + 0.2 * seed}
        compare(seed, None, **options)
        printed = CrossCLR.printed(reading, **options)
        assert {name: getattr(printed, name) for name in options} == options


def released_formula(video: torch.Tensor, text: torch.Tensor, temperature: float, weight: float) -> torch.Tensor:
    """What the authors' file computes: own logits multiplied to zero, intra logits multiplied by the weight."""
    video, text = F.normalize(video, dim=1), F.normalize(text, dim=1)
    off = 1 - torch.eye(len(video), dtype=video.dtype)
    across = video @ text.T / temperature
    rows = torch.cat([across, weight * off * (video @ video.T / temperature)], dim=1).softmax(dim=1)
    columns = torch.cat([across.T, weight * off * (text @ text.T / temperature)], dim=1).softmax(dim=1)
    return (-rows.diagonal().log().mean() - columns.diagonal().log().mean()) / 2


@pytest.mark.parametrize("size", [1, 2, 7, 33])
def test_matches_the_released_file(size: int) -> None:
    za, zb, _, _ = draw_batch(torch.Generator().manual_seed(size), size)
    loss_fn = CrossCLR(intra_mode="logit", self_logit="zero", prune_threshold=None, weight_scale=None)
    assert torch.allclose(loss_fn(za, zb), released_formula(za, zb, 0.03, 0.8), rtol=1e-12, atol=1e-12)


@given(
    size=st.integers(1, 12),
    dim=st.integers(1, 9),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    chunk=st.one_of(st.none(), st.integers(1, 13)),
    queue=st.sampled_from([0, 3, 20]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_and_dtype_gives_a_finite_loss_and_gradient(
    size: int, dim: int, dtype: torch.dtype, chunk: int | None, queue: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    loss_fn = CrossCLR(chunk_size=chunk, queue_size=queue, extra_positives=2)
    for _ in range(2):
        za, zb = (torch.randn(size, dim, generator=generator).to(dtype).requires_grad_() for _ in range(2))
        a, b = torch.rand(size, 3, generator=generator).to(dtype), torch.rand(size, 2, generator=generator).to(dtype)
        loss = loss_fn(za, zb, a, b, torch.randint(0, 5, (size,), generator=generator))
        loss.backward()
        assert loss.ndim == 0
        assert loss >= 0
        assert torch.isfinite(loss)
        assert za.grad is not None
        assert za.grad.dtype == dtype
        assert torch.isfinite(za.grad).all()


@pytest.mark.parametrize("queue_size", [0, 50])
def test_chunks_change_neither_value_nor_gradient(queue_size: int) -> None:
    grads, values = [], []
    for chunk in (None, 1, 7, 64, 1000):
        torch.manual_seed(3)
        loss_fn = CrossCLR(queue_size=queue_size, chunk_size=chunk, extra_positives=3, prune_by="quantile")
        for _ in range(3):
            za, zb = torch.randn(40, 16, requires_grad=True), torch.randn(40, 16, requires_grad=True)
            value = loss_fn(za, zb, torch.randn(40, 8), torch.randn(40, 8), torch.randint(0, 30, (40,)))
        value.backward()
        values.append(value.detach())
        grads.append(torch.cat([za.grad, zb.grad]))
    for value, grad in zip(values, grads, strict=True):
        torch.testing.assert_close(value, values[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(grad, grads[0], rtol=1e-5, atol=1e-6)


def test_gradient_against_finite_differences() -> None:
    za, zb, a, b = draw_batch(torch.Generator().manual_seed(5), 6)
    loss_fn = CrossCLR(temperature=0.3, extra_positives=2, prune_threshold=0.6)
    za.requires_grad_()
    zb.requires_grad_()
    assert torch.autograd.gradcheck(lambda x, y: loss_fn(x, y, a, b), (za, zb))


def test_older_rows_carry_no_gradient_and_live_rows_do() -> None:
    torch.manual_seed(0)
    loss_fn = CrossCLR(queue_size=10, prune_threshold=None, weight_scale=None)
    first = torch.randn(4, 6, requires_grad=True)
    loss_fn(first, torch.randn(4, 6))
    second = torch.randn(4, 6, requires_grad=True)
    loss_fn(second, torch.randn(4, 6)).backward()
    assert first.grad is None
    assert bool((second.grad.abs().sum(1) > 0).all())


def test_two_losses_before_one_backward() -> None:
    """Gradient accumulation: the queue moves on, the first loss's gradient stays right."""
    torch.manual_seed(0)
    batches = [[torch.randn(4, 6) for _ in range(4)] for _ in range(2)]
    together, apart = CrossCLR(queue_size=10), CrossCLR(queue_size=10)
    joint = [[z.clone().requires_grad_() for z in batch[:2]] for batch in batches]
    alone = [[z.clone().requires_grad_() for z in batch[:2]] for batch in batches]
    sum(together(*z, *batch[2:]) for z, batch in zip(joint, batches, strict=True)).backward()
    for z, batch in zip(alone, batches, strict=True):
        apart(*z, *batch[2:]).backward()
    for x, y in zip(itertools.chain(*joint), itertools.chain(*alone), strict=True):
        assert torch.equal(x.grad, y.grad)


def test_state_dict_round_trip_in_the_middle_of_training_is_bit_equal() -> None:
    torch.manual_seed(1)
    batches = [
        [torch.randn(5, 6), torch.randn(5, 6), torch.randn(5, 4), torch.randn(5, 3), torch.randint(0, 40, (5,))]
        for _ in range(9)
    ]
    through = CrossCLR(queue_size=12)
    values = [through(*batch) for batch in batches]
    first = CrossCLR(queue_size=12)
    for batch in batches[:4]:
        first(*batch)
    second = CrossCLR(queue_size=12)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    third = copy.deepcopy(first)
    for batch, value in zip(batches[4:], values[4:], strict=True):
        assert torch.equal(second(*batch), value)
        assert torch.equal(third(*batch), value)
    assert second.stats == through.stats


def test_state_of_another_queue_size_is_refused() -> None:
    used = CrossCLR(queue_size=6)
    used(*[torch.ones(4, 6) for _ in range(4)])
    with pytest.raises(RuntimeError, match="size mismatch"):
        CrossCLR(queue_size=5).load_state_dict(used.state_dict())


def test_reset_empties_the_queue() -> None:
    torch.manual_seed(2)
    z = [torch.randn(4, 6) for _ in range(4)]
    loss_fn = CrossCLR(queue_size=10)
    fresh = loss_fn(*z)
    loss_fn(*[torch.randn(4, 6) for _ in range(4)])
    loss_fn.reset()
    assert torch.equal(loss_fn(*z), fresh)
    loss_fn.reset()
    loss_fn(torch.randn(3, 9), torch.randn(3, 9), torch.randn(3, 2), torch.randn(3, 2))  # other widths are fine now


def test_the_queue_is_neither_used_nor_filled_in_evaluation() -> None:
    torch.manual_seed(2)
    z = [torch.randn(4, 6) for _ in range(4)]
    loss_fn = CrossCLR(queue_size=10)
    loss_fn(*[torch.randn(4, 6) for _ in range(4)])
    assert torch.equal(loss_fn.eval()(*z), CrossCLR()(*z))
    assert loss_fn.train().stats.queue_fill == 0.4


def test_an_id_seen_before_is_no_negative() -> None:
    """The same sample comes again: its older copy in the queue must not push it away."""
    torch.manual_seed(4)
    z = torch.randn(3, 8)
    plain = {"prune_threshold": None, "weight_scale": None, "temperature": 1.0, "intra_mode": "sum"}
    ids = torch.tensor([7, 8, 9])
    once, loss_fn, without = (CrossCLR(queue_size=size, **plain) for size in (0, 9, 9))
    loss_fn(z, z, ids=ids)
    without(z, z)
    # With ids, an older copy of each other sample is one more negative; without, the own copy is one too.
    doubled = CrossCLR(intra_weight=1.6, **plain)
    torch.testing.assert_close(loss_fn(z, z, ids=ids), doubled(z, z))
    assert without(z, z) > doubled(z, z) + 0.1
    assert doubled(z, z) > once(z, z)


def test_gamma_of_one_prunes_nothing_and_all_high_cosines_stop_at_min_keep() -> None:
    torch.manual_seed(6)
    z = torch.randn(20, 8)
    a = torch.randn(20, 8) * 0.05 + 1
    whole = CrossCLR(prune_threshold=1.0)
    whole(z, z, a, a)
    assert whole.stats.pruned == 0
    loss_fn = CrossCLR(prune_threshold=0.5, min_keep=0.4)
    with pytest.warns(UserWarning, match=r"min_keep=0.4 of modality a and b"):
        loss_fn(z, z, a, a)
    assert loss_fn.stats.pruned == pytest.approx(0.6)
    assert loss_fn.stats.min_keep_hit
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_fn(z, z, a, a)  # said once


def test_weights_cannot_explode_where_the_mean_of_the_features_is_near_zero() -> None:
    torch.manual_seed(6)
    z, nearly_centred = torch.randn(64, 8), torch.randn(64, 8) + 0.2
    exploding, limited = CrossCLR(min_effective=0), CrossCLR(min_effective=0.5)
    exploding(z, z, nearly_centred, nearly_centred)
    assert exploding.stats.effective < 0.1
    assert exploding.stats.weight_ratio > 1000
    limited(z, z, nearly_centred, nearly_centred)
    assert limited.stats.modalities["a"].effective == pytest.approx(0.5, abs=1e-6)
    high = torch.rand(64, 8) * 0.4 + 1  # features like the paper's: the limit does not bind
    assert torch.equal(exploding(z, z, high, high), limited(z, z, high, high))
    assert limited.stats.effective > 0.9


def test_stats_say_what_happened() -> None:
    torch.manual_seed(6)
    loss_fn = CrossCLR(queue_size=40, weight_scale=0.01)
    loss_fn(*[torch.randn(10, 8) + 0.3 for _ in range(4)])
    stats = loss_fn.stats
    assert stats.queue_fill == 0.25
    assert set(stats.modalities) == {"a", "b"}
    for one in stats.modalities.values():
        assert one.weight_ratio > 1
        assert 0 < one.effective < 1
        assert 0 < one.pruned < 1
        assert 0 < one.intra_share < 1


def test_presets_hold_the_papers_settings() -> None:
    youcook2, lsmdc = CrossCLR.youcook2(), CrossCLR.lsmdc()
    assert (youcook2.intra_weight, youcook2.weight_scale, youcook2.queue_size) == (0.8, 0.0035, 0)
    assert (lsmdc.intra_weight, lsmdc.weight_scale, lsmdc.queue_size) == (0.65, 0.0055, 3000)
    assert {youcook2.temperature, lsmdc.temperature} == {0.03}
    assert {youcook2.prune_threshold, lsmdc.prune_threshold} == {0.9}
    for name, preset in (("youcook2-100m", youcook2), ("lsmdc", lsmdc)):  # whatever the defaults of the class are
        shipped = CrossCLR(positive_weight=preset.positive_weight, **load_config(name).loss.local.options)
        assert shipped.extra_repr() == preset.extra_repr()
    assert {youcook2.intra_mode, lsmdc.intra_mode, CrossCLR().intra_mode} == {"logit"}
    assert CrossCLR.youcook2(queue_size=3000).queue_size == 3000


BAD_OPTIONS = {
    "temperature": [0, -1, float("nan"), float("inf"), "0.1", None],
    "intra_weight": [-0.1, float("nan")],
    "prune_threshold": [1.5, -0.1, float("nan")],
    "weight_scale": [0, -1],
    "queue_size": [-1, 2.5, True],
    "extra_positives": [-1, 0.5],
    "positive_weight": [0, -1],
    "prune_by": ["share"],
    "min_keep": [-0.1, 1.1],
    "min_effective": [-0.1, 1.1],
    "near_copies": [-0.1, 1.1],
    "shared_positives": [-0.1, 1.1],
    "sharing_temperature": [0, -1],
    "weight_by": ["quantile"],
    "self_connectivity": ["yes", 1.5],
    "strict_threshold": [None],
    "positives_in": ["denominator"],
    "intra_mode": ["log"],
    "self_logit": ["none"],
    "chunk_size": [0, -3, 1.5],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD_OPTIONS.items() for v in values])
def test_an_option_out_of_range_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        CrossCLR(**{name: value})  # type: ignore[arg-type]


def test_extra_positives_without_pruning_are_warned_about() -> None:
    with pytest.warns(UserWarning, match="no sample is influential"):
        CrossCLR(extra_positives=2, prune_threshold=None)


def nan_like(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[2, 0] = torch.nan
    return x


Z, X = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.ones(4, 3)
BAD_CALLS = [
    ("za", {"za": Z[0]}),
    ("za", {"za": Z.long()}),
    ("za and zb", {"zb": Z[:3]}),
    ("za and zb", {"zb": Z[:, :5]}),
    ("za holds NaN or inf.*row 2", {"za": nan_like(Z)}),
    ("zb holds NaN", {"zb": Z / 0}),
    ("b holds NaN", {"b": nan_like(X)}),
    ("a is missing.*pruning and weighting.*prune_threshold=None and weight_scale=None", {"a": None}),
    ("b is missing", {"b": None}),
    ("a has 3 rows", {"a": X[:3]}),
    ("ids must have shape", {"ids": torch.arange(3)}),
    ("ids must be a tensor of integers", {"ids": torch.rand(4)}),
    ("ids must be a tensor of integers", {"ids": [0, 1, 2, 3]}),
    ("zb must be a torch tensor", {"zb": Z.numpy()}),
    ("b has 5 channels but the queue holds rows of 3", {"b": torch.ones(4, 5)}),
    ("zb has 7 channels", {"za": torch.ones(4, 7), "zb": torch.ones(4, 7)}),
]


@pytest.mark.parametrize(("message", "change"), BAD_CALLS)
def test_a_bad_call_is_named_and_leaves_the_queue_alone(message: str, change: dict[str, object]) -> None:
    loss_fn = CrossCLR(queue_size=9)
    good = {"za": Z, "zb": Z, "a": X, "b": X, "ids": torch.arange(4)}
    loss_fn(**good)
    before = copy.deepcopy(loss_fn.state_dict())
    with pytest.raises(ValueError, match=message if "zb has 7" not in message else "za has 7"):
        loss_fn(**{**good, **change})
    after = loss_fn.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_the_missing_part_is_asked_for() -> None:
    with pytest.raises(ValueError, match=r"needed for weighting; .* with weight_scale=None$"):
        CrossCLR(prune_threshold=None)(Z, Z)
    CrossCLR(prune_threshold=None, weight_scale=None, queue_size=5)(Z, Z)


def test_a_warning_is_one_line_without_a_path_of_the_code() -> None:
    loss_fn = CrossCLR(prune_threshold=0.5, min_keep=0.4)
    a = torch.rand(20, 8, generator=torch.Generator().manual_seed(6)) * 0.05 + 1
    with pytest.warns(CrossCLRWarning) as caught:
        loss_fn(a, a, a, a)
    (one,) = caught
    shown = warnings.formatwarning(one.message, one.category, one.filename, one.lineno)
    assert shown.startswith("crossclr:0: CrossCLRWarning: pruning by")
    assert shown.count("\n") == 1
