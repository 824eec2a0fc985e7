"""Training on several modalities with gaps, from the arrays to the metrics."""

import itertools
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from crossclr import api
from crossclr.data import Dataset, open_data
from crossclr.evaluation.evaluate import evaluate_runs
from crossclr.models import ModelConfig, build_model
from crossclr.training import JointTraining, TrainingError
from crossclr.training.config_files import check_config
from crossclr.training.objective import Objective, between
from crossclr.training.processes import make_fabric
from crossclr.training.run_config import FitConfig

NAMES = ("video", "sound", "english", "spanish")
COUNT = 90


def arrays(seed=0):
    """Views of the same hidden points; each modality but the first lacks some samples."""
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(COUNT, 5))
    found = {}
    for number, name in enumerate(NAMES):
        rows = hidden @ rng.normal(size=(5, 6 + number)) + 0.2 * rng.normal(size=(COUNT, 6 + number))
        rows[rng.random(COUNT) < 0.2 * (number > 0)] = np.nan
        found[name] = rows.astype(np.float32)
    return found


def write(folder, **changes):
    for name, rows in arrays().items():
        np.save(folder / f"{name}.npy", rows)
    np.save(folder / "splits.npy", np.array(["train"] * 60 + ["val"] * 15 + ["test"] * 15))
    values = {
        "name": "four",
        "data": {
            "kind": "arrays",
            "root": str(folder),
            "modalities": {name: {"values": f"{name}.npy"} for name in NAMES},
            "splits": "splits.npy",
            "unpaired": "keep",
        },
        "model": {"dim": 8, "encoder": {"kind": "mlp", "dropout": 0.0}},
        "loss": {"local": {"name": "crossclr", "temperature": 0.1, "queue_size": 40}},
        "optimiser": {"name": "adamw", "learning_rate": 0.01},
        "training": {"epochs": 6, "batch_size": 20, "accelerator": "cpu", "workers": 0, "threads": 1},
    }
    return {**values, **changes}


def test_a_run_of_four_modalities_with_gaps(tmp_path):
    run = api.train(check_config(write(tmp_path)), out=tmp_path / "run")
    pairs = {f"clip/{x}->{y}" for x, y in itertools.permutations(NAMES, 2)}
    assert run.results["test"].keys() == pairs
    chance = 100 * 5 / 15
    for results in (run.results["test"], run.results["cca_baseline"]):
        assert results.keys() == pairs
        assert np.mean([metrics["R@5"] for metrics in results.values()]) > 1.5 * chance
    assert run.load_model().dims == {name: 6 + number for number, name in enumerate(NAMES)}
    evaluation = evaluate_runs([run.path], fused=["english->video+sound"], semantics=False)
    assert evaluation.runs["run"].keys() == pairs | {"clip/english->video+sound"}
    assert evaluation.baseline["clip/english->video"] == run.results["cca_baseline"]["clip/english->video"]
    card = (run.path / "README.md").read_text()
    picture = ElementTree.parse(run.path / "results.svg").getroot()
    shown = [part.text for part in picture.iter("{http://www.w3.org/2000/svg}text")]
    expected = [f"{metrics['R@10']:.1f}" for metrics in run.results["test"].values()]
    assert sorted(text for text in shown if text[0].isdigit()) == sorted(expected)
    assert "(results.svg)" in card
    assert all(f"\n| {name} | " in card for name in NAMES)
    best = run.results["cca_baseline"]["clip/video->sound"]
    assert f"| — CCA on the same features |  | {best['R@1']:.1f} / {best['R@10']:.1f} |" in card


def test_a_batch_from_memory_is_that_from_disk(tmp_path):
    config = check_config(write(tmp_path))
    fabric = make_fabric("cpu")
    disk = JointTraining(config, open_data(config.data).where(split="train"), fabric).read_first_batch()
    kept = config.model_copy(update={"training": config.training.model_copy(update={"in_memory": True})})
    memory = JointTraining(kept, open_data(config.data).where(split="train"), fabric).read_first_batch()
    for name in NAMES:
        assert torch.equal(disk.present[name], memory.present[name])
        assert 0 < int(disk.present[name].sum()) <= 20
        torch.testing.assert_close(disk.pooled[name], memory.pooled[name])
        assert torch.equal(disk.inputs[name].clips.values, memory.inputs[name].clips.values)


def test_vectors_of_absent_clips_are_zero_and_the_others_those_of_the_clip_alone():
    source = Dataset.from_arrays(arrays(), unpaired="keep")
    model = build_model(ModelConfig(dim=8, encoder={"kind": "mlp"}), source.dims, two_level=False).eval()
    batch = source.where(split="train").__getitems__(range(30))
    out = model.encode(batch)
    for name in NAMES:
        assert out[f"clip/{name}"].shape == (30, 8)
        assert not out[f"clip/{name}"][~batch.present[name]].any()
    for place in range(30):
        alone = model.encode(source.where(split="train").__getitems__([place]))
        for name in NAMES:
            torch.testing.assert_close(alone[f"clip/{name}"][0], out[f"clip/{name}"][place], atol=1e-6, rtol=1e-5)


def test_an_own_loss_compares_two_modalities_at_a_time():
    vectors = {name: torch.randn(7, 3, requires_grad=True) for name in "xyz"}
    present = {"x": torch.ones(7, dtype=torch.bool), "y": torch.arange(7) < 4, "z": torch.arange(7) > 5}
    seen = []

    class Own(torch.nn.Module):
        def forward(self, za, zb, a=None, b=None, ids=None):
            seen.append(len(ids))
            return (za * zb).sum()

    value = between(Own(), vectors, {}, torch.arange(7), present)
    wanted = [(vectors["x"][:4] * vectors["y"][:4]).sum(), (vectors["x"][6:] * vectors["z"][6:]).sum()]
    torch.testing.assert_close(value, sum(wanted) / 2)
    assert seen == [4, 1]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pairs": {"english": ["vidoe"]}}, ValueError, "pairs: the data has no modality 'vidoe'"),
        ({"pairs": {"x": ["y"]}}, TrainingError, "no sample of the split 'train' has both x and y"),
    ],
)
def test_wrong_pairs_are_named(options, error, message):
    rows = np.ones((4, 2), np.float32)
    ids = {"english": list("abcd"), "video": list("abcd"), "x": list("ab"), "y": list("cd")}
    found = {name: rows[: len(keys)] for name, keys in ids.items()}
    source = Dataset.from_arrays(found, ids=ids)
    values = {"model": {"dim": 8, "encoder": {"kind": "mlp"}}, "loss": {"local": {"name": "clip", **options}}}
    with pytest.raises(error, match=message):
        JointTraining(FitConfig.model_validate(values), source.where(split="train"), make_fabric("cpu"))


def test_a_modality_without_a_partner_is_named():
    rows, keys = np.ones((4, 2), np.float32), list("abcd")
    ids = {"video": keys, "text": keys, "sound": ["e", "f"]}
    source = Dataset.from_arrays({name: rows[: len(own)] for name, own in ids.items()}, ids=ids, unpaired="keep")
    values = {"model": {"dim": 8, "encoder": {"kind": "mlp"}}, "loss": {"local": {"name": "clip"}}}
    with pytest.raises(TrainingError, match="no sample of the split 'train' has sound and another modality"):
        JointTraining(FitConfig.model_validate(values), source.where(split="train"), make_fabric("cpu"))


def test_encoders_of_unknown_modalities_are_named():
    with pytest.raises(
        ValueError, match=r"model\.encoders has options for 'txt', but the data has the modalities a, b"
    ):
        build_model(ModelConfig(dim=8, encoders={"txt": {"kind": "mlp"}}), {"a": 2, "b": 3}, two_level=False)
    assert Objective(FitConfig().loss).check(["a"]) is None
