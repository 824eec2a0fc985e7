"""A modality with experts in the model, the losses, the ranks and the data."""

import math

import numpy as np
import pytest
import torch

from crossclr import api
from crossclr.data import ArraysConfig, Inputs, Ragged, batches, open_data
from crossclr.evaluation.ranks import retrieval_ranks
from crossclr.losses import CrossCLR, build_loss
from crossclr.models import ModelConfig, build_model
from crossclr.models.similarity import expert_shares, paired_similarities, similarity_matrix
from crossclr.training import RunConfig

DIMS = {"sound": 3, "action": 4, "scene": 2}
FUSIONS = ("mee", "ce", "mmt")


def weighted_rows(count, seed, some_absent=True, experts=3, dim=4):
    """(count, experts · dim) unit vectors times random weights, of which some are zero."""
    rng = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, experts, dim, generator=rng, dtype=torch.float64)
    vectors /= vectors.norm(dim=2, keepdim=True)
    weights = torch.rand(count, experts, generator=rng, dtype=torch.float64) + 0.05
    if some_absent:
        weights *= torch.rand(count, experts, generator=rng) < 0.6
    return (weights.unsqueeze(2) * vectors).flatten(1), vectors, weights


def looped(x, y):
    """The similarities once more, pair by pair."""
    (_, a, v), (_, b, w) = x, y
    found = torch.zeros(len(a), len(b), dtype=torch.float64)
    for i in range(len(a)):
        for j in range(len(b)):
            shared = [float(v[i, m] * w[j, m]) for m in range(a.shape[1])]
            cosines = [float(a[i, m] @ b[j, m]) for m in range(a.shape[1])]
            if sum(shared) > 0:
                found[i, j] = sum(p * c for p, c in zip(shared, cosines, strict=True)) / sum(shared)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_similarity_is_renormalised_over_the_experts_of_each_pair(seed):
    x, y = weighted_rows(7, seed), weighted_rows(9, seed + 100)
    expected = looped(x, y)
    torch.testing.assert_close(similarity_matrix(x[0], y[0], 3), expected)
    torch.testing.assert_close(similarity_matrix(5 * x[0], y[0] / 7, 3, scale=20.0), 20 * expected)
    torch.testing.assert_close(paired_similarities(x[0], y[0][:7], 3), expected.diagonal())
    shares = expert_shares(x[0], y[0][:7], 3).sum(dim=1)
    assert all(math.isclose(share, 1) or share == 0 for share in shares.tolist())


def test_gradients_of_the_similarity():
    x, y = (weighted_rows(4, seed, some_absent=False)[0].requires_grad_() for seed in (0, 1))
    assert torch.autograd.gradcheck(lambda a, b: similarity_matrix(a, b, 3), (x, y))
    assert torch.autograd.gradcheck(lambda a, b: paired_similarities(a, b, 3), (x, y))


def test_an_absent_expert_has_no_gradient_and_no_nan():
    rows = weighted_rows(6, 3)[0].requires_grad_()
    similarity_matrix(rows, rows, 3).square().sum().backward()
    assert bool(rows.grad.isfinite().all())


def test_with_all_experts_present_an_inner_product_of_unit_vectors_orders_items_alike():
    queries, _, _ = weighted_rows(5, 0, some_absent=False)
    _, vectors, _ = weighted_rows(8, 1)
    items = vectors.flatten(1)  # every expert has weight 1
    unit = [rows / rows.norm(dim=1, keepdim=True) for rows in (queries, items)]
    assert torch.equal((unit[0] @ unit[1].T).argsort(), similarity_matrix(queries, items, 3).argsort())


@pytest.mark.parametrize("seed", range(3))
def test_ranks_with_absent_experts(seed):
    x, y = weighted_rows(40, seed), weighted_rows(40, seed + 50)
    scores = looped(x, y)
    own = scores.diagonal().unsqueeze(1)
    tied = ((scores - own).abs() <= 1e-12).sum(dim=1) - 1
    expected = 1 + (scores > own + 1e-12).sum(dim=1) + tied / 2
    assert torch.equal(retrieval_ranks(x[0], y[0], experts=3), expected)
    assert not torch.equal(retrieval_ranks(x[0], y[0]), expected)  # plain cosines rank otherwise


TAU = 0.2


def contrast(across, within, weight):
    """-log P / (P + E + R) with intra-modal logits times a weight, mean over both directions."""
    total = 0.0
    for scores, same in ((across, within[0]), (across.T, within[1])):
        count = len(scores)
        for i in range(count):
            terms = [math.exp(float(scores[i, j]) / TAU) for j in range(count)]
            terms += [math.exp(weight * float(same[i, k]) / TAU) for k in range(count) if k != i and weight]
            total -= math.log(math.exp(float(scores[i, i]) / TAU) / sum(terms)) / (2 * count)
    return total


def joint(across, within):
    """MIL-NCE with unique ids."""
    total, count = 0.0, len(across)
    for i in range(count):
        negatives = [across[i, j] for j in range(count) if j != i] + [across[j, i] for j in range(count) if j != i]
        ratio = sum(math.exp(float(score) / TAU) for score in negatives) / math.exp(float(across[i, i]) / TAU)
        total += math.log(1 + ratio) / count
    return total


def hinge(across, within):
    total, count = 0.0, len(across)
    for i in range(count):
        for j in range(count):
            if i != j:
                total += max(0, 0.1 + float(across[i, j] - across[i, i])) + max(
                    0, 0.1 + float(across[i, j] - across[j, j])
                )
    return total / count**2


def sigmoids(across, within):
    count = len(across)
    sign = 2 * torch.eye(count, dtype=across.dtype) - 1
    return -float(torch.nn.functional.logsigmoid(sign * (across / TAU - 3)).sum()) / count


LOSSES = {
    "clip": ({"temperature": TAU}, lambda a, w: contrast(a, w, 0.0)),
    "ntxent": ({"temperature": TAU}, lambda a, w: contrast(a, w, 1.0)),
    "crossclr": (
        {"temperature": TAU, "intra_weight": 0.7, "prune_threshold": None, "weight_scale": None},
        lambda a, w: contrast(a, w, 0.7),
    ),
    "milnce": ({"temperature": TAU}, joint),
    "maxmargin": ({"margin": 0.1}, hinge),
    "siglip": ({"temperature": TAU, "bias": -3.0}, sigmoids),
}


@pytest.mark.parametrize("chunk_size", [None, 3])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_compare_by_the_similarity_of_experts(name, chunk_size):
    x, y = weighted_rows(8, 1), weighted_rows(8, 4)
    options, formula = LOSSES[name]
    loss = build_loss(name, **options, chunk_size=chunk_size)
    loss.experts = 3
    expected = formula(looped(x, y), (looped(x, x), looped(y, y)))
    assert loss(x[0], y[0], ids=torch.arange(8)).item() == pytest.approx(expected, rel=1e-6)


def test_older_rows_of_a_queue_are_compared_by_the_similarity_of_experts():
    loss = CrossCLR(TAU, intra_weight=0.7, prune_threshold=None, weight_scale=None, queue_size=16)
    loss.experts = 3
    first, second = (weighted_rows(8, 1), weighted_rows(8, 4)), (weighted_rows(8, 5), weighted_rows(8, 6))
    loss(first[0][0], first[1][0], ids=torch.arange(8))
    found = loss(second[0][0], second[1][0], ids=torch.arange(8, 16)).item()
    expected = 0.0
    for place in (0, 1):
        own, other, old = second[place], second[1 - place], first[place]
        across, within, before = looped(own, other), looped(own, own), looped(own, old)
        for i in range(8):
            terms = [math.exp(float(score) / TAU) for score in across[i]]
            terms += [math.exp(0.7 * float(within[i, k]) / TAU) for k in range(8) if k != i]
            terms += [math.exp(0.7 * float(score) / TAU) for score in before[i]]
            expected -= math.log(math.exp(float(across[i, i]) / TAU) / sum(terms)) / 16
    assert found == pytest.approx(expected, rel=1e-6)


def model_of(fusion, **options):
    torch.manual_seed(0)
    experts = {"kind": "experts", "fusion": fusion, "experts": DIMS, "heads": 2, **options}
    config = ModelConfig(dim=8, encoders={"video": experts, "text": {"kind": "mlp", "dropout": 0.0}})
    return build_model(config, {"video": sum(DIMS.values()), "text": 5}, two_level=False)


def videos(seed=0, rows=(3, 1, 2, 4)):
    """Sequences in which sound has every second row and some experts are absent."""
    rng = torch.Generator().manual_seed(seed)
    sequences = []
    for number, count in enumerate(rows):
        values = torch.randn(count, sum(DIMS.values()), generator=rng)
        values[(count + 1) // 2 :, :3] = torch.nan
        if number % 2:
            values[:, 3:7] = torch.nan
        sequences.append(values)
    return sequences


@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_embedding_does_not_depend_on_the_others_in_its_batch(fusion):
    model, sequences = model_of(fusion).double().eval(), videos()
    together = model.encode_modality("video", Inputs(Ragged.from_list(sequences)))["clip"]
    alone = [model.encode_modality("video", Inputs(Ragged.from_list([one])))["clip"] for one in sequences]
    torch.testing.assert_close(together, torch.cat(alone))
    assert together.shape == (4, 24)
    lengths = together.unflatten(1, (3, 8)).norm(dim=2)
    torch.testing.assert_close(lengths, torch.tensor([[1.0, 1, 1], [1, 0, 1]] * 2).double())


@pytest.mark.parametrize("fusion", FUSIONS)
def test_an_expert_that_is_absent_everywhere_changes_nothing(fusion):
    """Without it, the model with the weights of the other experts gives the same similarities."""
    model = model_of(fusion).double().eval()
    sequences = [values.clone() for values in videos()]
    for values in sequences:
        values[:, 3:7] = torch.nan
    small = {"sound": 3, "scene": 2}
    config = ModelConfig(
        dim=8,
        encoders={
            "video": {"kind": "experts", "fusion": fusion, "experts": small, "heads": 2},
            "text": {"kind": "mlp"},
        },
    )
    other = build_model(config, {"video": 5, "text": 5}, two_level=False).double().eval()
    state = other.state_dict()
    numbered = ("reduce", "units", "norms", "gates", "gate_norms", "mask_norms")
    for key in state:
        parts = key.split(".")
        moved = [
            str(2 * int(part)) if before in numbered else part
            for before, part in zip(["", *parts[:-1]], parts, strict=True)
        ]
        value = model.state_dict()[".".join(moved)]
        if "kinds" in key:
            value = value[[0, 1, 3]]
        elif "clip_head.weights" in key:
            value = value[[0, 2]]
        state[key] = value
    other.load_state_dict(state)
    text = Inputs(Ragged(torch.randn(4, 5).double(), torch.ones(4, dtype=torch.int64)))
    scores = []
    for network, columns, experts in ((model, range(9), 3), (other, [0, 1, 2, 7, 8], 2)):
        video = Inputs(Ragged.from_list([values[:, list(columns)] for values in sequences]))
        found = network.encode_modality("video", video)["clip"], network.encode_modality("text", text)["clip"]
        scores.append(similarity_matrix(*found, experts))
    torch.testing.assert_close(*scores)


@pytest.mark.parametrize("fusion", FUSIONS)
def test_filling_an_absent_expert_with_zeros_is_something_else(fusion):
    model, sequences = model_of(fusion).eval(), videos()
    text = model.encode_modality("text", Inputs(Ragged(torch.randn(4, 5), torch.ones(4, dtype=torch.int64))))["clip"]
    scores = []
    for filled in (False, True):
        rows = [torch.where(v.isnan().all(dim=0), 0.0, v) if filled else v for v in sequences]
        found = model.encode_modality("video", Inputs(Ragged.from_list(rows)))["clip"]
        scores.append(similarity_matrix(text, found, 3))
    torch.testing.assert_close(scores[0][:, [0, 2]], scores[1][:, [0, 2]], atol=1e-5, rtol=0)  # nothing is absent
    assert bool(((scores[0] - scores[1])[:, [1, 3]].abs() > 1e-3).any())


@pytest.mark.parametrize("fusion", FUSIONS)
def test_gradients_of_a_fusion(fusion):
    encoder = model_of(fusion, input_norm="none", dropout=0.0).double().encoders["video"].local
    goal = torch.randn(2, 24).double()
    parameters = [p for p in encoder.parameters() if p.numel() < 40][:6]

    def loss(*values):
        state = dict(zip([n for n, p in encoder.named_parameters() if p.numel() < 40][:6], values, strict=True))
        return (torch.func.functional_call(encoder, state, (Ragged.from_list(videos()[:2]),)) * goal).sum()

    assert torch.autograd.gradcheck(loss, [p.detach().clone().requires_grad_() for p in parameters])


def test_positions_of_rows_follow_the_rate_of_an_expert():
    plain, timed = model_of("mmt").eval(), model_of("mmt", rates={"sound": 1.0}).eval()
    places = timed.encoders["video"].local._places(torch.zeros(1, 3, 9))
    assert [place[0].tolist() for place in places] == [[2, 3, 4], [1, 2, 3], [1, 2, 3]]
    assert [place[0].tolist() for place in plain.encoders["video"].local._places(torch.zeros(1, 2, 9))] == [[1, 2]] * 3


def arrays(folder, join="separate"):
    """Twelve samples: sound of one row, action of up to four; some lack one of them."""
    rng = np.random.default_rng(0)
    sound = rng.standard_normal((12, 3)).astype(np.float32)
    sound[[1, 5]] = np.nan
    lengths = rng.integers(1, 5, 10)
    np.savez(folder / "action.npz", values=rng.standard_normal((lengths.sum(), 4)).astype(np.float32), lengths=lengths)
    np.save(folder / "sound.npy", sound)
    np.save(folder / "keys.npy", np.array([f"k{n}" for n in range(12)]))
    np.save(folder / "action_keys.npy", np.array([f"k{n}" for n in range(10)]))
    np.save(folder / "text.npy", rng.standard_normal((12, 5)).astype(np.float32))
    action = {"values": "action.npz#values", "lengths": "action.npz#lengths", "ids": "action_keys.npy"}
    return ArraysConfig(
        root=str(folder),
        modalities={
            "video": {"values": "sound.npy", "ids": "keys.npy", "also": [action], "join": join, "max_frames": 2},
            "text": {"values": "text.npy", "ids": "keys.npy"},
        },
    )


def test_experts_of_arrays_keep_their_own_rows(tmp_path):
    data = open_data(arrays(tmp_path))
    with np.load(tmp_path / "action.npz") as file:
        stored, lengths = file["values"], file["lengths"]
    starts = np.cumsum([0, *lengths])
    assert data.dims["video"] == 7
    sound = np.load(tmp_path / "sound.npy")
    for source in (data, data.in_memory()):
        for number in range(12):
            rows = source[number]["video"].clips[0]
            np.testing.assert_array_equal(rows[0, :3], sound[number])
            assert np.isnan(rows[1:, :3]).all()
            action = rows[~np.isnan(rows[:, 3]), 3:]
            own = stored[starts[number] : starts[number + 1]] if number < 10 else stored[:0]
            assert len(action) == min(2, len(own))
            if 0 < len(own) <= 2:
                np.testing.assert_array_equal(action, own)
        batch = next(batches(source, batch_size=12, seed=0, epoch=0))
        assert bool(batch.pooled["video"].isfinite().all())
    zeros = open_data(arrays(tmp_path, "resampled"))[1]["video"].clips[0]
    assert (zeros[:, :3] == 0).all(), "resampled experts are filled with zeros"


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["concatenate", *FUSIONS])
def test_a_run_with_absent_experts_trains_and_is_evaluated(tmp_path, fusion):
    experts = {"kind": "experts", "fusion": fusion, "experts": {"sound": 3, "action": 4}, "heads": 2}
    config = RunConfig.model_validate(
        {
            "data": arrays(tmp_path).model_dump(mode="json") | {"split_fractions": {"train": 0.7, "test": 0.3}},
            "splits": {"train": "train", "validate": None, "test": "test"},
            "model": {"dim": 8, "encoder": {"kind": "mlp"}, "encoders": {"video": experts}},
            "loss": {"local": {"name": "crossclr", "temperature": 0.1, "queue_size": 4}},
            "training": {"epochs": 2, "batch_size": 4},
        }
    )
    run = api.train(config, out=tmp_path / "run")
    assert 0 <= run.results["test"]["clip/text->video"]["R@10"] <= 100
    embedded = api.embed(run, split="test")
    assert embedded.experts == (() if fusion == "concatenate" else ("sound", "action"))
