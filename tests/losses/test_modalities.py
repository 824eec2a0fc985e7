"""Any number of named modalities, with gaps, against plain float64 loops; and what must not matter."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from crossclr.losses import CLIP, CrossCLR, build_loss
from crossclr.losses.names import LOSS_PATHS
from tests.losses import reference
from tests.losses.reference import ReferenceCrossCLR, mean_over_pairs

NAMES = ("video", "audio", "english", "spanish", "picture")
PAIR_LOSS_PATHS: dict[str, Callable[..., Tensor]] = {
    "clip": reference.clip,
    "maxmargin": reference.maxmargin,
    "milnce": reference.milnce,
    "dcl": reference.dcl,
    "siglip": reference.siglip,
    "coot": lambda x, y, ids: (
        reference.maxmargin(x, y, ids) + (reference.maxmargin(x, x, ids) + reference.maxmargin(y, y, ids)) / 2
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:pruning by")


class Batch:
    """Random embeddings, features, ids and presence of some modalities."""

    def __init__(
        self, seed: int, count: int, size: int | None = None, gaps: float = 0.35, unique: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        size = int(torch.randint(2, 7, (), generator=generator)) if size is None else size
        self.names = NAMES[:count]
        draw = {"generator": generator, "dtype": torch.float64}
        self.z = {name: torch.randn(size, 4, **draw) for name in self.names}
        self.x = {name: torch.randn(size, 3 + i, **draw) + 0.6 for i, name in enumerate(self.names)}
        self.ids = torch.arange(size) if unique else torch.randint(0, 8, (size,), generator=generator)
        self.present = {name: torch.rand(size, generator=generator) >= gaps for name in self.names}

    def leaves(self) -> dict[str, Tensor]:
        """Embeddings that get a gradient; absent rows are NaN, which nobody may read."""
        return {
            name: torch.where(self.present[name].unsqueeze(1), z, torch.nan).requires_grad_()
            for name, z in self.z.items()
        }

    def value_and_gradient(self, loss_fn: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = self.leaves()
        features = {n: torch.where(self.present[n].unsqueeze(1), x, torch.nan) for n, x in self.x.items()}
        loss = loss_fn(leaves, features=features, ids=self.ids, present=self.present)
        loss.backward()
        return loss.detach(), {name: leaf.grad for name, leaf in leaves.items()}

    def of_the_loop(self, loop: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        leaves = {name: z.clone().requires_grad_() for name, z in self.z.items()}
        loss = loop(leaves, self.x, self.ids.tolist(), {name: mask.tolist() for name, mask in self.present.items()})
        if loss.requires_grad:
            loss.backward()
        return loss.detach(), {n: torch.zeros_like(z) if z.grad is None else z.grad for n, z in leaves.items()}


def assert_equal(found: tuple[Tensor, dict[str, Tensor]], wanted: tuple[Tensor, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-6, atol=1e-9)
    for name, gradient in wanted[1].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-6, atol=1e-6)


def chosen_pairs(seed: int, names: tuple[str, ...]) -> dict[str, dict[str, float]] | None:
    """All, a star around the last modality, or weights."""
    if seed % 3 == 0:
        return None
    star = {names[-1]: dict.fromkeys(names[:-1], 1.0)}
    return star if seed % 3 == 1 else {names[0]: {other: 0.5 + i for i, other in enumerate(names[1:])}}


@pytest.mark.parametrize("count", [2, 3, 4, 5])
@pytest.mark.parametrize("queue_size", [0, 4, 15])
@pytest.mark.parametrize("intra_mode", ["logit", "sum"])
def test_crossclr_equals_the_loops(count: int, queue_size: int, intra_mode: str) -> None:
    for seed in range(3):
        options = {
            "queue_size": queue_size,
            "intra_mode": intra_mode,
            "temperature": (0.03, 0.1, 0.5)[seed],
            "prune_threshold": (0.9, 0.5, 0.7)[seed],
            "min_keep": 0.0,  # two rows have equal connectivity: which of them stays would be chance
            "weight_scale": (0.05, None, 0.5)[seed],
            "min_effective": (0.8, 0.0, 0.99)[seed],
            "near_copies": (0.0, 0.3, 0.5)[seed],
            "shared_positives": (0.3, 0.0, 0.6)[seed],
            "sharing_temperature": 0.3,
            "extra_positives": seed,
            "self_logit": ("masked", "zero")[seed % 2],
            "pairs": chosen_pairs(seed + count, NAMES[:count]),
        }
        loop = ReferenceCrossCLR(**options)  # type: ignore[arg-type]
        options |= {"pairs": options["pairs"] or "all", "chunk_size": (None, 2, 3)[seed]}
        loss_fn = CrossCLR(**options)  # type: ignore[arg-type]
        for step in range(3):
            batch = Batch(100 * count + 10 * seed + step, count)
            assert_equal(batch.value_and_gradient(loss_fn), batch.of_the_loop(loop.of))
            for name, stats in loss_fn.stats.modalities.items():
                assert stats.pruned == pytest.approx(loop.pruned_shares[name], abs=1e-6)
                assert stats.intra_share == pytest.approx(loop.intra_shares.get(name, 0.0), abs=1e-6)


def test_ntxent_equals_the_loops() -> None:
    for seed, count in itertools.product(range(3), (2, 3, 4)):
        loop = ReferenceCrossCLR(intra_weight=1.0, prune_threshold=None, weight_scale=None)
        batch = Batch(seed, count)
        assert_equal(batch.value_and_gradient(build_loss("ntxent")), batch.of_the_loop(loop.of))


@pytest.mark.parametrize("name", PAIR_LOSS_PATHS)
def test_every_loss_of_a_pair_is_a_mean_over_the_pairs(name: str) -> None:
    for seed, count in itertools.product(range(3), (2, 3, 5)):
        pairs = chosen_pairs(seed, NAMES[:count])
        options = {} if name == "coot" else {"chunk_size": (None, 2)[seed % 2]}
        loss_fn = build_loss(name, pairs=pairs or "all", **options).double()
        batch = Batch(seed, count)

        def loop(z, x, ids, present, pairs=pairs):
            return mean_over_pairs(PAIR_LOSS_PATHS[name], z, ids, present, pairs)

        assert_equal(batch.value_and_gradient(loss_fn), batch.of_the_loop(loop))


CASES: dict[str, dict[str, object]] = {name: {} for name in LOSS_PATHS}
CASES["crossclr queue"] = {"queue_size": 20}
CASES["crossclr similar"] = {"near_copies": 0.2, "shared_positives": 0.3}
CASES["crossclr positives"] = {"extra_positives": 2, "prune_threshold": 0.5}


def make(case: str) -> nn.Module:
    return build_loss(case.split()[0], **CASES[case]).double()


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_modalities_and_samples_does_not_matter(case: str) -> None:
    batch, other = Batch(3, 4, size=6, unique=True), Batch(3, 4, size=6, unique=True)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other.names = tuple(reversed(batch.names))
    for mapping in ("z", "x", "present"):
        setattr(other, mapping, {name: getattr(batch, mapping)[name][order] for name in other.names})
    other.ids = batch.ids[order]
    value, gradients = batch.value_and_gradient(make(case))
    found = other.value_and_gradient(make(case))
    assert_equal(found, (value, {name: gradient[order] for name, gradient in gradients.items()}))


@pytest.mark.parametrize("case", CASES)
def test_a_modality_that_nobody_has_changes_nothing(case: str) -> None:
    with_it, without = Batch(5, 4, size=6), Batch(5, 4, size=6)
    with_it.present["spanish"] = torch.zeros(6, dtype=torch.bool)
    for mapping in (without.z, without.x, without.present):
        del mapping["spanish"]
    value, gradients = with_it.value_and_gradient(make(case))
    assert not gradients.pop("spanish").any()
    assert_equal((value, gradients), without.value_and_gradient(make(case)))


@pytest.mark.parametrize("case", CASES)
def test_samples_without_anything_are_as_if_they_were_not_there(case: str) -> None:
    batch, shorter = Batch(7, 3, size=6), Batch(7, 3, size=6)
    kept = torch.tensor([0, 2, 3, 5])
    for mask in batch.present.values():
        mask[[1, 4]] = False
    for mapping in ("z", "x", "present"):
        setattr(shorter, mapping, {name: rows[kept] for name, rows in getattr(batch, mapping).items()})
    shorter.ids = batch.ids[kept]
    value, gradients = batch.value_and_gradient(make(case))
    assert_equal((value, {n: g[kept] for n, g in gradients.items()}), shorter.value_and_gradient(make(case)))


@pytest.mark.parametrize("case", CASES)
def test_the_pair_call_is_the_same_code(case: str) -> None:
    batch = Batch(9, 2, size=5, gaps=0.0)
    za, zb = batch.z.values()
    a, b = batch.x.values()
    by_name = make(case)(batch.z, features=batch.x, ids=batch.ids)
    assert torch.equal(make(case)(za, zb, a, b, batch.ids), by_name)


@pytest.mark.parametrize("case", CASES)
def test_a_batch_without_any_pair_gives_zero(case: str) -> None:
    batch = Batch(11, 3, size=3)
    for i, mask in enumerate(batch.present.values()):
        mask[:] = torch.arange(3) == i
    value, gradients = batch.value_and_gradient(make(case))
    assert value == 0
    assert not any(gradient.any() for gradient in gradients.values())


def test_state_of_several_modalities_goes_on_bit_by_bit() -> None:
    batches = [Batch(seed, 3, size=5) for seed in range(6)]
    first, second = CrossCLR(queue_size=12), CrossCLR(queue_size=12)
    for batch in batches[:3]:
        batch.value_and_gradient(first)
    second.load_state_dict(first.state_dict())
    for batch in batches[3:]:
        (one, gradients), (other, others) = batch.value_and_gradient(first), batch.value_and_gradient(second)
        assert torch.equal(one, other)
        assert all(torch.equal(gradients[name], others[name]) for name in gradients)


class ProductSizes(TorchDispatchMode):
    """Records the columns of every matrix product."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func is torch.ops.aten.mm.default:
            self.columns.append(args[1].shape[1])
        return func(*args, **(kwargs or {}))


def test_the_intra_modal_sum_is_computed_once_for_all_partners() -> None:
    loss_fn = CrossCLR(queue_size=500)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for seed in range(4):
            batch = Batch(seed, 4, size=8, gaps=0.0, unique=True)
            with ProductSizes() as products:
                loss_fn(batch.z, features=batch.x, ids=batch.ids + 8 * seed)
    assert sum(columns > 8 for columns in products.columns) == 4  # one product with the queue for each modality
    assert sum(columns == 8 for columns in products.columns) == 4 * 4  # three partners and the batch's own rows


Z = {"video": torch.randn(4, 6), "text": torch.randn(4, 6)}
BAD_CALLS: list[tuple[str, dict[str, object]]] = [
    ("at least two modalities", {"za": {"video": Z["video"]}}),
    ("'a.b' cannot name a modality", {"za": {"a.b": Z["video"], "text": Z["text"]}}),
    ("'keys' cannot name a modality", {"za": {"keys": Z["video"], "text": Z["text"]}}),
    ("the embeddings of 'text' must be a torch tensor, got NoneType", {"za": {**Z, "text": None}}),
    (
        "the embeddings of 'video' and the embeddings of 'text' must have the same shape",
        {"za": {**Z, "text": Z["text"][:3]}},
    ),
    ("the embeddings of 'text' holds NaN or inf in 4 of 4 rows", {"za": {**Z, "text": Z["text"] / 0}}),
    (
        r"present has \['sound'\], but the embeddings are of \['video', 'text'\]",
        {"present": {"sound": torch.ones(4) > 0}},
    ),
    (r"features has \['sound'\]", {"features": {"sound": Z["text"]}}),
    (
        r"present\['text'\] must be a tensor of 4 booleans, got torch.int64",
        {"present": {"text": torch.ones(4, dtype=torch.int64)}},
    ),
    ("not with zb, a or b", {"zb": Z["text"]}),
    ("the features of 'text' is missing", {"features": {"video": Z["video"]}}),
]


@pytest.mark.parametrize(("message", "change"), BAD_CALLS)
def test_a_bad_call_speaks_the_names_of_the_modalities(message: str, change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=message):
        CrossCLR()(**{"za": Z, "features": Z, **change})


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ("some", "pairs must be 'all' or a mapping"),
        ({}, "pairs must be 'all' or a mapping"),
        ({"text": "video"}, "must list the partners of 'text'"),
        ({"text": ["text"]}, "two different modalities"),
        ({"text": ["video"], "video": ["text"]}, "each pair once"),
        ({"text": {"video": 0}}, "the weight of pair 'text', 'video'"),
        ({"text": []}, "names no pair"),
    ],
)
def test_bad_pairs_are_named(pairs: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CLIP(pairs=pairs)  # type: ignore[arg-type]


def test_a_pair_of_a_modality_that_is_not_there_is_named() -> None:
    with pytest.raises(ValueError, match=r"pairs names the modality 'sound', but the batch has \['video', 'text'\]"):
        CLIP(pairs={"text": ["sound"]})(Z)
