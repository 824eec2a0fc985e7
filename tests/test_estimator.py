import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from crossclr import JointEmbedding
from tests.test_api import OwnLoss

SMALL = {"dim": 32, "epochs": 25, "batch_size": 64}


def pairs(count: int, seed: int = 0):
    """Two noisy linear views of the same hidden vectors, away from the origin as real features are."""
    rng = np.random.default_rng(0)
    views = rng.normal(size=(6, 20)), rng.normal(size=(6, 15))
    rng = np.random.default_rng(seed + 1)
    hidden = rng.normal(size=(count, 6))
    return tuple(3 + hidden @ view + 0.05 * rng.normal(size=(count, view.shape[1])) for view in views)


@pytest.fixture(scope="module")
def data():
    return pairs(300)


@pytest.fixture(scope="module")
def fitted(data):
    return JointEmbedding("clip", **SMALL).fit(*data)


@pytest.mark.parametrize("loss", ["crossclr", "clip"])
def test_new_pairs_find_each_other(data, loss):
    joint = JointEmbedding(loss, **SMALL)
    assert joint.fit(*data) is joint
    assert joint.score(*pairs(100, seed=5)) > 0.5  # chance is 0.01
    assert len(joint.history_) == 25
    assert joint.history_[-1]["loss"] < joint.history_[0]["loss"]


def test_sequences_get_a_transformer(data):
    rng = np.random.default_rng(2)
    sequences = [np.repeat(row[None], rng.integers(1, 5), axis=0) for row in data[0]]
    stacked = np.repeat(data[1][:, None], 3, axis=1)
    joint = JointEmbedding("clip", dim=32, epochs=8, dropout=0.0, learning_rate=3e-3).fit(sequences, stacked)
    kinds = tuple(joint.model_.config.encoder_of(name).kind for name in "ab")
    assert kinds == ("transformer", "transformer")
    assert joint.score(sequences, stacked) > 0.1  # chance is 0.003
    alone = joint.encode_a(sequences[7:8])
    np.testing.assert_allclose(alone, joint.encode_a(sequences)[7:8], atol=1e-5)


def test_embeddings_are_unit_rows_of_the_model(data, fitted):
    za = fitted.encode_a(data[0])
    assert za.shape == (300, 32)
    assert za.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(za, axis=1), 1, atol=1e-5)


def test_score_counts_first_places(data, fitted):
    za, zb = fitted.encode_a(data[0][:40]), fitted.encode_b(data[1][:40])
    similarity = za.astype(float) @ zb.T.astype(float)
    rows = np.arange(40)
    expected = (np.mean(similarity.argmax(1) == rows) + np.mean(similarity.argmax(0) == rows)) / 2
    assert fitted.score(data[0][:40], data[1][:40]) == pytest.approx(expected)
    halves = [row // 2 for row in range(40)]
    expected = (np.mean(similarity.argmax(1) // 2 == rows // 2) + np.mean(similarity.argmax(0) // 2 == rows // 2)) / 2
    assert fitted.score(data[0][:40], data[1][:40], ids=halves) == pytest.approx(expected)


def test_one_seed_one_result_and_the_global_generator_is_left_alone(data, fitted):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again = JointEmbedding("clip", **SMALL).fit(*data)
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(again.encode_b(data[1]), fitted.encode_b(data[1]))
    other = JointEmbedding("clip", **SMALL, random_state=1).fit(*data)
    assert not np.array_equal(other.encode_b(data[1]), fitted.encode_b(data[1]))


def test_save_and_load(data, fitted, tmp_path):
    fitted.save(tmp_path / "joint")
    loaded = JointEmbedding.load(tmp_path / "joint")
    np.testing.assert_array_equal(loaded.encode_a(data[0]), fitted.encode_a(data[0]))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.history_ == fitted.history_
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "checksums.json",
        "estimator.json",
        "joint",
        "model.safetensors",
    ]
    with pytest.raises(FileExistsError, match="already exists"):
        fitted.save(tmp_path / "joint")
    with pytest.raises(FileNotFoundError, match="does not hold an estimator"):
        JointEmbedding.load(tmp_path)


def test_scikit_learns_manners(data):
    joint = JointEmbedding(loss="clip", dim=16, loss_options={"temperature": 0.1})
    copied = clone(joint)
    assert copied.get_params() == joint.get_params()
    assert "dim=16" in repr(joint)
    joint.set_params(dim=8)
    assert joint.dim == 8
    with pytest.raises(NotFittedError):
        joint.encode_a(data[0])
    with pytest.raises(NotFittedError):
        joint.save("nowhere")


def test_validation_picks_the_best_epoch(data):
    joint = JointEmbedding("clip", dim=16, epochs=6, validation_fraction=0.2, learning_rate=3e-3).fit(*data)
    scores = [record["score"] for record in joint.history_]
    assert scores[joint.best_epoch_] == pytest.approx(max(scores), rel=1e-3)


def test_equal_ids_are_never_negatives():
    """With one label for all there are no negatives, so nothing can be learned from them: the loss is zero."""
    A, B = pairs(32)
    joint = JointEmbedding("clip", dim=8, epochs=1, batch_size=32).fit(A, B, ids=["same"] * 32)
    assert joint.history_[0]["loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda A, B: ((A[:-1], B), {}), "A has 299 samples and B has 300"),
        (lambda A, B: ((A, B), {"ids": [1]}), "300 pairs but 1 ids"),
        (lambda A, B: ((np.where(A[3, 2] == A, np.nan, A), B), {}), r"A\[3\] has NaN"),
        (lambda A, B: ((A[:1], B[:1]), {}), "at least 2 pairs"),
        (lambda A, B: (([*list(A[:2]), np.ones((2, 3))], B[:3]), {}), r"A\[2\] has shape \(2, 3\)"),
    ],
)
def test_bad_input_is_named(data, change, message):
    arguments, options = change(*data)
    with pytest.raises(ValueError, match=message):
        JointEmbedding("clip", dim=8, epochs=1).fit(*arguments, **options)


@pytest.mark.parametrize("options", [{"validation_fraction": 1.0}, {"loss": "clpi"}, {"loss_options": {"tau": 1}}])
def test_bad_parameters_show_at_fit(data, options):
    joint = JointEmbedding(**options)  # the constructor only stores
    with pytest.raises(ValueError, match=r"validation_fraction|did you mean 'clip'|no option 'tau'"):
        joint.fit(*data)


def test_import_is_quick_and_lazy():
    code = "import sys, crossclr; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_module_of_the_user_is_trained_as_a_copy(tmp_path):
    loss, (A, B) = OwnLoss(), (np.random.default_rng(0).normal(size=(40, width)) for width in (6, 5))
    joint = JointEmbedding(loss, epochs=2, dim=8, batch_size=20).fit(A, B)
    assert loss.calls == 0
    assert joint.history_[0]["loss"] > 0
    joint.save(tmp_path / "saved")
    assert np.array_equal(JointEmbedding.load(tmp_path / "saved").encode_a(A), joint.encode_a(A))
