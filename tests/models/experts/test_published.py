"""The three fusions against numbers that the original programs computed; see `tests/fixtures/README.md`."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from crossclr.losses.coot import max_margin
from crossclr.models.experts import (
    CollaborativeExperts,
    ExpertQueries,
    ExpertTransformer,
    GatedExperts,
    GatedUnit,
)
from crossclr.models.similarity import paired_similarities, similarity_matrix

FIXTURES = Path(__file__).parents[2] / "fixtures"
MODES = ("eval", "train")


@pytest.fixture(scope="module")
def numbers():
    """Arrays as float64 tensors by the name of the model and their path in the file."""

    def read(name):
        with np.load(FIXTURES / f"{name}_small.npz") as file:
            return {key: torch.from_numpy(file[key]) for key in file.files}

    return {name: read(name) for name in ("mee", "ce", "mmt")}


def load(module, weights, prefix, names):
    """Copy arrays into a module: ``names`` has our name for each of theirs."""
    state = module.state_dict()
    for ours, theirs in names.items():
        for key in list(state):
            if key.startswith(f"{ours}."):
                field = key.removeprefix(f"{ours}.")
                if field != "num_batches_tracked":
                    state[key] = weights[f"{prefix}{theirs}.{field}"]
    module.load_state_dict(state)
    return module


def unit(ours, theirs, batch_norm=True):
    """The names of a gated unit."""
    names = {f"{ours}project": f"{theirs}fc", f"{ours}gate": f"{theirs}cg.fc"}
    return names | ({f"{ours}norm": f"{theirs}cg.batch_norm"} if batch_norm else {})


def units(ours, theirs, keys, batch_norm=True):
    return {
        name: other
        for number, key in enumerate(keys)
        for name, other in unit(f"{ours}.{number}.", f"{theirs}.{key}.", batch_norm).items()
    }


def close(found, expected):
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)


@pytest.mark.parametrize("mode", MODES)
def test_gated_unit(numbers, mode):
    arrays = numbers["mee"]
    gated = load(GatedUnit(8, 16).double(), arrays, "weight/geu.", unit("", "")).train(mode == "train")
    close(gated(arrays["input/geu/x"]), arrays[f"output/geu/{mode}/y"])


@pytest.mark.parametrize("mode", MODES)
def test_mee(numbers, mode):
    arrays, experts, prefix = numbers["mee"], "abc", f"output/mee/{mode}"
    videos = load(GatedExperts([8, 12, 6], 16).double(), arrays, "weight/mee.", units("units", "video_GU", range(3)))
    texts = load(
        ExpertQueries(10, 3, 16).double(),
        arrays,
        "weight/mee.",
        units("units", "text_GU", range(3)) | {"weights": "moe_fc"},
    )
    videos.train(mode == "train"), texts.train(mode == "train")
    available = arrays["input/mee/available"].double()
    vectors = videos([arrays[f"input/mee/video/{name}"] for name in experts], available > 0)
    close(vectors, torch.stack([arrays[f"{prefix}/video_embedding/{name}"] for name in experts], 1))
    queries, items = texts(arrays["input/mee/text"]), (vectors * available.unsqueeze(2)).flatten(1)
    weights = arrays[f"{prefix}/text_weights"]
    expected = torch.stack([arrays[f"{prefix}/text_embedding/{name}"] for name in experts], 1) * weights.unsqueeze(2)
    close(queries, expected.flatten(1))
    close(similarity_matrix(queries, items, 3), arrays[f"{prefix}/similarity"])
    if mode == "eval":
        close(paired_similarities(queries, items, 3), arrays[f"{prefix}/paired_scores"])
    after = dict(videos.named_buffers())
    for number in range(3 if mode == "train" else 0):
        for field in ("running_mean", "running_var"):
            known = arrays[f"output/mee/train_after/video_GU.{number}.cg.batch_norm.{field}"]
            close(after[f"units.{number}.norm.{field}"], known)


SETTINGS = {
    "": ({"layers": 3}, {"chain.0": 0, "chain.2": 2, "chain.3": 3, "chain.5": 5}),
    "variant_relu/": (
        {"layers": 2, "after": 1, "with_self": False, "batch_norm": False, "activation": nn.ReLU},
        {"chain.2": 1},
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", SETTINGS)
def test_ce(numbers, setting, mode):
    arrays = {key.removeprefix(setting): value for key, value in numbers["ce"].items() if key.startswith(setting)}
    options, chain = SETTINGS[setting]
    experts, prefix = ("e1", "e2", "e3"), f"output/{mode}"
    names = {f"reduce.{n}": f"video_dim_reduce.{n}.fc" for n in range(3)} | {"pair": "g_reason_1"}
    names |= {ours: f"g_reason_shared.{number}" for ours, number in chain.items()}
    names |= {"after.1": "h_reason.1"} if options.get("after") else {}
    for number in range(3):
        names |= {f"gates.{number}": f"video_GU.{number}.cg.fc"}
        names |= {f"mask_norms.{number}": f"video_GU.{number}.cg.batch_norm"}
        names |= {f"gate_norms.{number}": f"video_GU.{number}.cg.batch_norm2"}
    if setting:
        names["chain.2"] = "g_reason_shared.1"
    module = load(CollaborativeExperts([8, 12, 6], 16, **options).double(), arrays, "weight/ce.", names)
    module.train(mode == "train")
    available = arrays["input/available"].double()
    vectors = module([arrays[f"input/video/{name}"] for name in experts], available > 0)
    close(vectors, torch.stack([arrays[f"{prefix}/video_embedding/{name}"] for name in experts], 1))
    texts = load(
        ExpertQueries(21, 3, 16).double(),
        arrays,
        "weight/ce.",
        units("units", "text_GU", range(3)) | {"weights": "moe_fc"},
    ).train(mode == "train")
    found = similarity_matrix(texts(arrays[f"{prefix}/text_vector"]), (vectors * available.unsqueeze(2)).flatten(1), 3)
    if setting and mode == "train":  # two captions for each video, whose similarities are averaged
        found = found.unflatten(0, (5, 2)).mean(dim=1)
    close(found, arrays[f"{prefix}/similarity"])


@pytest.mark.parametrize("mode", MODES)
def test_moee_of_ce(numbers, mode):
    start = "variant_moee/"
    arrays = {key.removeprefix(start): value for key, value in numbers["ce"].items() if key.startswith(start)}
    available, scores, shared = arrays["input/available"].double(), 0, 0
    for number, dim in enumerate((8, 12, 6)):  # each expert has its own width
        own = load(GatedUnit(dim, dim).double(), arrays, "weight/ce.", unit("", f"video_GU.{number}."))
        own.train(mode == "train")
        video = own(arrays[f"input/video/e{number + 1}"]) * available[:, [number]]
        close(video, arrays[f"output/{mode}/video_embedding/e{number + 1}"] * available[:, [number]])
        weights = arrays[f"output/{mode}/text_weights"][:, 0, [number]]
        text = arrays[f"output/{mode}/text_embedding/e{number + 1}"][:, 0] * weights
        scores, shared = scores + text @ video.T, shared + weights @ available[:, [number]].T
    close(scores / shared, arrays[f"output/{mode}/similarity"])


KINDS, NAMES = (0, 3, 1, 5), ("e1", "e2", "e3")  # their number of each kind of token


def transformer(weights):
    """MMT's transformer with their weights."""
    module = ExpertTransformer([8, 12, 6], 16, layers=2, heads=2, hidden=24, positions=12, dropout=0.0).double()
    state = module.state_dict()
    state["positions.weight"] = weights["vid_bert.embeddings.position_embeddings.weight"]
    state["kinds.weight"] = weights["vid_bert.embeddings.token_type_embeddings.weight"][list(KINDS)]
    for field in ("weight", "bias"):
        state[f"norm.{field}"] = weights[f"vid_bert.embeddings.layer_norm.{field}"]
        for number, name in enumerate(NAMES):
            state[f"reduce.{number}.{field}"] = weights[f"video_dim_reduce.{name}.fc.{field}"]
        for layer in range(2):
            theirs, ours = f"vid_bert.encoder.layer.{layer}.", f"layers.{layer}."
            parts = [weights[f"{theirs}attention.self.{part}.{field}"] for part in ("query", "key", "value")]
            state[f"{ours}attention.projection.{field}"] = torch.cat(parts)
            for mine, name in {
                "attention.output": "attention.output.dense",
                "attention_norm": "attention.output.layer_norm",
                "expand": "intermediate.dense",
                "contract": "output.dense",
                "output_norm": "output.layer_norm",
            }.items():
                state[f"{ours}{mine}.{field}"] = weights[f"{theirs}{name}.{field}"]
    module.load_state_dict(state)
    return module


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("setting", ["published", "drop_missing", "video_weights", "no_bn_mean_token"])
def test_mmt(numbers, setting, mode):
    arrays, prefix = numbers["mmt"], f"output/{setting}/{mode}"
    weights = {key.removeprefix("weight/"): value for key, value in arrays.items() if key.startswith("weight/")}
    there = [arrays[f"input/features_ind/{name}"] > 0 for name in NAMES]
    times = [arrays[f"input/features_t/{name}"].long() for name in NAMES]  # truncated
    pool = "maxpool"
    if setting == "no_bn_mean_token":
        times, pool = [torch.arange(1, 6).expand(4, 5)] * 3, "avgpool"
    vectors = transformer(weights).train(mode == "train")(
        [arrays[f"input/features/{name}"] for name in NAMES],
        there,
        [arrays[f"input/features_{pool}/{name}"] for name in NAMES],
        times,
    )
    close(vectors, arrays[f"{prefix}/video_embeddings"])
    with_norm = setting != "no_bn_mean_token"
    texts = ExpertQueries(10, 3, 16, batch_norm=with_norm).double()
    load(texts, weights, "", units("units", "text_GU", NAMES, with_norm))
    heads = ([weights[f"moe_fc_txt.{name}.{field}"] for name in NAMES] for field in ("weight", "bias"))
    with torch.no_grad():
        for parameter, own in zip((texts.weights.weight, texts.weights.bias), heads, strict=True):
            parameter.copy_(torch.cat(own))
    queries = texts.train(mode == "train")(arrays["input/text_cls"])
    video_weights = arrays[f"{prefix}/video_weights"]  # zero for absent experts in the dropping settings
    close(
        similarity_matrix(queries, (vectors * video_weights.unsqueeze(2)).flatten(1), 3), arrays[f"{prefix}/similarity"]
    )


def test_ranking_loss(numbers):
    arrays = numbers["mee"]
    similarity = arrays["output/mee/eval/similarity"]
    count = len(similarity)
    # Rows whose inner products are the similarities; the original's mean includes the diagonal, ours does not.
    found = max_margin(similarity, torch.eye(count, dtype=torch.float64), 0.2) / 2 + 0.2 / count
    close(found, arrays["output/mee/eval/loss_margin0.2"])
