"""JointEmbedding: what it accepts, what it chooses, scikit-learn's manners, and its errors."""

import copy
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state, estimator_checks

from crossclr import JointEmbedding
from crossclr.estimator.encoder_training import read_column, read_labels
from crossclr.estimator.parameters import NamedArrays, read_seed
from crossclr.models.zero_shot import ZeroShot
from crossclr.notices import CrossCLRWarning
from tests.test_api import OwnLoss

NAMES = ["checksums.json", "estimator.json", "joint", "model.safetensors"]
SMALL = {"loss": "clip", "dim": 32, "epochs": 25, "batch_size": 64}


def pairs(count: int, seed: int = 0):
    """Two noisy linear views of the same hidden vectors, away from the origin as real features are."""
    rng = np.random.default_rng(0)
    views = rng.normal(size=(6, 20)), rng.normal(size=(6, 15))
    rng = np.random.default_rng(seed + 1)
    hidden = rng.normal(size=(count, 6))
    return tuple(3 + hidden @ view + 0.05 * rng.normal(size=(count, view.shape[1])) for view in views)


@pytest.fixture(scope="module")
def data():
    return pairs(160)


@pytest.fixture(scope="module")
def closed(data):
    return JointEmbedding("closed-form").fit(*data)


@pytest.fixture(scope="module")
def trained(data):
    return JointEmbedding("paper", **SMALL).fit(*data)


def test_the_default_finds_new_pairs_and_says_what_it_did(data):
    joint = JointEmbedding(epochs=2, dim=16)
    assert joint.fit(*data) is joint
    assert joint.score(*pairs(100, seed=5)) > 0.9  # chance is 0.01
    names = [part.name for part in joint.parts_]
    assert names == ["closed form", "hub correction", "trained encoders"]
    assert joint.parts_[0].share == pytest.approx(1 - joint.parts_[2].share)
    assert joint.estimate_.error >= 0
    assert 90 < joint.estimate_.score <= 100


@pytest.mark.parametrize("loss", [None, "clip"])
def test_the_recipe_of_the_paper_trains_one_encoder(data, loss):
    joint = JointEmbedding("paper", **{**SMALL, "loss": loss}).fit(*data)
    assert joint.score(*pairs(100, seed=5)) > 0.4
    assert len(joint.history_) == 25
    assert joint.history_[-1]["loss"] < joint.history_[0]["loss"]


def test_a_loss_of_your_own(data, tmp_path):
    loss = OwnLoss()
    joint = JointEmbedding("paper", loss=loss, dim=8, epochs=2, batch_size=64).fit(*data)
    assert loss.calls == 0  # a copy was trained
    assert joint.encode_items(a=data[0]).shape == (160, 8)
    joint.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        JointEmbedding.load(tmp_path / "saved").encode_items(a=data[0]), joint.encode_items(a=data[0])
    )


def test_sequences_get_a_transformer(data):
    sequences = [np.repeat(row[None], 1 + place % 4, axis=0) for place, row in enumerate(data[0])]
    stacked = np.repeat(data[1][:, None], 3, axis=1)
    options = {"dim": 16, "epochs": 2, "dropout": 0.0}
    joint = JointEmbedding("paper", **{**SMALL, **options}).fit({"video": sequences, "text": stacked})
    assert {joint.model_config_.encoder_of(name).kind for name in ("video", "text")} == {"transformer"}
    np.testing.assert_allclose(
        joint.encode_items(video=sequences[7:8]), joint.encode_items(video=sequences)[7:8], atol=1e-5
    )


def test_named_modalities_with_gaps():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(200, 4))
    dims = {"video": 9, "sound": 7, "text": 6}
    rows = {name: np.tanh(hidden @ rng.normal(size=(4, dim))) for name, dim in dims.items()}
    gaps = {
        **rows,
        "sound": rows["sound"].copy(),
        "text": [row if n % 3 else None for n, row in enumerate(rows["text"])],
    }
    gaps["sound"][::4] = np.nan
    joint = JointEmbedding("closed-form").fit(gaps)
    found = joint.transform(video=rows["video"], text=rows["text"])
    assert set(found) == {"video", "text"}
    assert joint.score({name: values[:40] for name, values in rows.items()}) > 0.5
    assert joint.n_features_ == dims


@pytest.mark.parametrize(
    "convert",
    [pd.DataFrame, torch.tensor, np.ndarray.tolist, scipy.sparse.csr_matrix, np.asfortranarray, lambda x: list(x)],
)
def test_whatever_holds_numbers_is_accepted(data, closed, convert):
    np.testing.assert_allclose(closed.transform(convert(data[0])), closed.transform(data[0]), atol=1e-6)


def test_vectors_are_unit_rows_and_queries_may_differ_from_items(data, closed):
    for vectors in (closed.encode_queries(a=data[0]), closed.encode_items(a=data[0]), closed.transform(data[0])):
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_score_counts_first_places(data, trained):
    za, zb = trained.encode_queries(a=data[0][:40]).astype(float), trained.encode_queries(b=data[1][:40]).astype(float)
    similarity, rows = za @ zb.T, np.arange(40)
    expected = (np.mean(similarity.argmax(1) == rows) + np.mean(similarity.argmax(0) == rows)) / 2
    assert trained.score(data[0][:40], data[1][:40]) == pytest.approx(expected)
    halves = [row // 2 for row in range(40)]
    expected = (np.mean(similarity.argmax(1) // 2 == rows // 2) + np.mean(similarity.argmax(0) // 2 == rows // 2)) / 2
    assert trained.score(data[0][:40], data[1][:40], concepts=halves) == pytest.approx(expected)


def test_one_seed_one_result_and_the_global_generator_is_left_alone(data, trained):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    again = JointEmbedding("paper", **SMALL).fit(*data)
    assert torch.equal(torch.rand(1), expected)
    np.testing.assert_array_equal(again.encode_items(b=data[1]), trained.encode_items(b=data[1]))


@pytest.mark.parametrize("kind", ["closed", "trained"])
def test_save_and_load(data, request, tmp_path, kind):
    joint = request.getfixturevalue(kind)
    joint.save(tmp_path / "joint")
    loaded = JointEmbedding.load(tmp_path / "joint")
    np.testing.assert_array_equal(loaded.encode_items(a=data[0]), joint.encode_items(a=data[0]))
    np.testing.assert_array_equal(loaded.encode_queries(b=data[1]), joint.encode_queries(b=data[1]))
    assert loaded.get_params() == joint.get_params()
    assert loaded.parts_ == joint.parts_
    assert sorted(path.name for path in tmp_path.rglob("*")) == NAMES
    with pytest.raises(FileExistsError, match="already exists"):
        joint.save(tmp_path / "joint")
    with pytest.raises(FileNotFoundError, match="does not hold an estimator"):
        JointEmbedding.load(tmp_path)


def test_a_seed_of_numpy_survives_saving(data, tmp_path):
    JointEmbedding("closed-form", random_state=np.int64(3)).fit(*data).save(tmp_path / "joint")
    assert JointEmbedding.load(tmp_path / "joint").random_state == 3


def test_scikit_learns_manners(data, closed):
    joint = JointEmbedding(loss="clip", dim=16, loss_options={"temperature": 0.1})
    assert clone(joint).get_params() == joint.get_params()
    assert "dim=16" in repr(joint)
    with pytest.raises(NotFittedError):
        joint.transform(data[0])
    with pytest.raises(NotFittedError):
        joint.save("nowhere")
    pipeline = make_pipeline(StandardScaler(), JointEmbedding("closed-form")).fit(*data)
    assert pipeline.transform(data[0]).shape[0] == 160


NOT_FOR_PAIRS = {
    "check_array_api_input": "needs an environment variable of SciPy",
    "check_dtype_object": "a sample may be an object that is a sequence",
    "check_estimators_dtypes": "its second array is constant",
    "check_estimators_empty_data_messages": "the message names the modality",
    "check_estimators_pickle": "a sample lacks a modality if all of its values are NaN, not some",
    "check_estimator_sparse_array": "its second array is a list of labels",
    "check_estimator_sparse_matrix": "its second array is a list of labels",
    "check_fit2d_1feature": "its second array is constant",
    "check_fit2d_predict1d": "the message names the modality",
    "check_n_features_in": "each modality has its own number, in n_features_",
    "check_n_features_in_after_fitting": "each modality has its own number, in n_features_",
    "check_requires_y_none": "the message says what is needed",
    "check_transformer_data_not_an_array": "its second array is a list of labels",
    "check_transformer_general": "its second array is a list of labels",
    "check_transformer_preserve_dtypes": "its second array is a list of labels",
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn():
    """All of `check_estimator` but those that fit on labels or on one modality."""
    estimator = JointEmbedding("closed-form", verbose=False)
    results = estimator_checks.check_estimator(estimator, expected_failed_checks=NOT_FOR_PAIRS, on_fail="raise")
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert {"check_fit_idempotent", "check_methods_subset_invariance", "check_dict_unchanged"} <= passed
    assert len(passed) >= 25


def test_named_arrays_are_split_by_scikit_learn(data):
    rows = NamedArrays(video=pd.DataFrame(data[0]), text=data[1].tolist())
    assert rows.shape == (160, 2)
    np.testing.assert_array_equal(rows[np.arange(160) % 2 == 0]["video"], data[0][::2])
    joint = JointEmbedding("closed-form", verbose=False)
    scores = cross_val_score(joint, rows, cv=2, params={"concepts": np.arange(160) // 2})
    halves = [np.arange(80), np.arange(80, 160)]
    for score, test, train in zip(scores, halves, halves[::-1], strict=True):
        fitted = clone(joint).fit(data[0][train], data[1][train], concepts=train // 2)
        assert score == pytest.approx(fitted.score(data[0][test], data[1][test]))


def test_fit_transform_is_fit_and_transform(data, closed):
    joint = JointEmbedding("closed-form")
    np.testing.assert_array_equal(joint.fit_transform(*data), closed.transform(data[0]))
    both = joint.fit_transform({"a": data[0], "b": data[1]})
    np.testing.assert_array_equal(both["b"], closed.transform(b=data[1]))


def test_parameters_of_a_search(data):
    search = GridSearchCV(JointEmbedding("closed-form"), {"random_state": [0, 1]}, cv=2).fit(*data)
    assert search.best_score_ > 0.9
    with pytest.raises(ValueError, match="no parameter 'epoch'; did you mean 'epochs'"):
        JointEmbedding().set_params(epoch=3)


@pytest.mark.parametrize("seed", [3, np.int64(3), np.random.RandomState(5)])
def test_seeds_are_read_as_scikit_learn_reads_them(data, seed):
    expected = check_random_state(copy.deepcopy(seed)).randint(2**31 - 1)
    assert read_seed(seed) == expected
    np.random.seed(7)  # noqa: NPY002
    expected = check_random_state(None).randint(2**31 - 1)
    np.random.seed(7)  # noqa: NPY002
    assert read_seed(None) == expected
    with pytest.raises(ValueError, match="random_state: 'x' is not a seed"):
        read_seed("x")


def test_equal_concepts_are_never_negatives():
    """With one concept for all there are no negatives, so nothing can be learned from them: the loss is zero."""
    joint = JointEmbedding("paper", loss="clip", dim=8, epochs=1, batch_size=32).fit(*pairs(32), concepts=["same"] * 32)
    assert joint.history_[0]["loss"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda A, B: ((A[:-1], B), {}), "same number of samples, row i is sample i; got a 159, b 160"),
        (lambda A, B: ((A, B), {"concepts": [1]}), "160 samples but 1 concepts"),
        (lambda A, B: ((np.where(A[3, 2] == A, np.nan, A), B), {}), r"a\[3\] has NaN, masked or infinite values"),
        (lambda A, B: ((A[:1], B[:1]), {}), "at least 2 samples"),
        (lambda A, B: (([*list(A[:2]), np.ones((2, 3))], B[:3]), {}), r"a\[2\] has 3 channels; 20 are needed"),
        (lambda A, B: ((A,), {}), "at least two modalities"),
        (lambda A, B: (({"video": A},), {}), "at least two modalities, got video"),
        (lambda A, B: ((A, list(range(160))), {}), r"b\[0\] is a single number"),
        (lambda A, B: ((A, ["word"] * 160), {}), r"b\[0\] is not numeric"),
        (lambda A, B: ((A, "text"), {}), "b is a str"),
        (lambda A, B: (([None, *A[1:]], [None, *B[1:]]), {}), "sample 0 has no modality; drop it"),
        (lambda A, B: ((A.astype("datetime64[s]"), B), {}), r"a\[0\] is not numeric.*datetime64"),
        (lambda A, B: ((A.astype("timedelta64[s]"), B), {}), r"a\[0\] is not numeric.*timedelta64"),
        (lambda A, B: ((A.astype(complex), B), {}), r"a\[0\] is complex"),
        (lambda A, B: ((A, B.astype(str)), {}), r"b\[0\] is not numeric"),
        (lambda A, B: ((np.ma.masked_equal(A, A[3, 2]), B), {}), r"a\[3\] has NaN, masked or infinite values"),
        (lambda A, B: (({1: A, "1": B},), {}), r"names of modalities are strings, got 1 \(int\)"),
        (lambda A, B: ((A, B), {"concepts": set(range(160))}), "concepts is a set"),
        (lambda A, B: ((A, B), {"concepts": "x" * 160}), "concepts is a str"),
        (lambda A, B: ((A, B), {"groups": np.zeros((160, 2))}), r"groups\[0\] is a list; one label"),
        (lambda A, B: ((A, B), {"concepts": [*range(159), None]}), r"concepts\[159\] is None; every sample"),
        (lambda A, B: ((A, B), {"concepts": [*range(159), np.nan]}), r"concepts\[159\] is nan; every sample"),
        (lambda A, B: ((A, B), {"groups": pd.Series([*range(159), pd.NA])}), r"groups\[159\] is <NA>"),
        (lambda A, B: ((A * (np.arange(160) == 3)[:, None], B), {}), "rows of modality 'a' are equal"),
        (
            lambda A, B: (({"video": [*A[:9], None], "text": [*B[:9], None], "sound": [None] * 9 + [B[9]]},), {}),
            "no sample has sound and another modality; add some, or omit sound",
        ),
    ],
)
def test_bad_input_is_one_line(data, change, message):
    arguments, options = change(*data)
    with pytest.raises(ValueError, match=message) as caught:
        JointEmbedding("closed-form").fit(*arguments, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["transform", "encode_queries", "encode_items"])
def test_an_unknown_modality_is_named(data, closed, method):
    with pytest.raises(ValueError, match="there is no modality 'sound'; it was fitted with a, b"):
        getattr(closed, method)(sound=data[0])
    with pytest.raises(ValueError, match="there is no modality 'sound'"):
        closed.score({"a": data[0], "sound": data[1]})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "bst"}, "did you mean 'best'"),
        ({"loss": "clpi"}, "did you mean 'clip'"),
        ({"loss": "clip", "loss_options": {"tau": 1}}, "no option 'tau'"),
        ({"dim": 0}, "dim: "),
        ({"epochs": -1}, "epochs: "),
        ({"dropout": 2}, "dropout: "),
        ({"encoder": "cnn"}, "cnn"),
        ({"select_by": "mAP"}, "select_by: 'mAP' is not auto, recall or map"),
        ({"device": "toaster"}, "this machine has no device 'toaster'; use one of cpu"),
        ({"device": "mps"}, "this machine has no device 'mps'"),
    ],
)
def test_bad_parameters_show_at_fit_in_one_line(data, options, message):
    joint = JointEmbedding(**options)  # the constructor only stores
    with pytest.raises(ValueError, match=message) as caught:
        joint.fit(*data)
    assert "\n" not in str(caught.value)


def test_labels_of_different_types_are_different(data):
    told = JointEmbedding("paper", loss="clip", dim=8, epochs=1, batch_size=32)
    told.fit(*pairs(32), concepts=[0, "0"] * 16)
    assert told.history_[0]["loss"] > 0.1  # they are negatives of each other
    assert read_labels([0, "0", np.int64(0), 0.0], 4, "concepts").tolist() == [0, 1, 0, 0]
    assert read_labels(torch.tensor([5, 3, 5]), 3, "groups").tolist() == [0, 1, 0]
    assert read_labels(pd.Categorical(["b", "a", "b"]), 3, "groups").tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "convert",
    [
        lambda rows: torch.tensor(rows).bfloat16(),
        lambda rows: torch.tensor(rows).to_sparse(),
        lambda rows: torch.tensor(rows).to_sparse_csr(),
    ],
)
def test_tensors_of_any_kind_are_read(data, convert):
    column = read_column(convert(data[0]), "video")
    np.testing.assert_allclose(np.concatenate(column.rows), data[0], rtol=1e-2)


def test_masked_samples_lack_the_modality(data):
    masked = np.ma.masked_array(data[0], mask=np.zeros_like(data[0], dtype=bool))
    masked[3] = np.ma.masked
    gaps = data[0].copy()
    gaps[3] = np.nan
    expected = JointEmbedding("closed-form").fit(gaps, data[1]).transform(data[0])
    np.testing.assert_array_equal(JointEmbedding("closed-form").fit(masked, data[1]).transform(data[0]), expected)


def test_columns_of_a_data_frame_are_compared_by_name(data, tmp_path):
    frame = pd.DataFrame(data[0], columns=[f"c{number}" for number in range(20)])
    joint = JointEmbedding("closed-form").fit({"video": frame, "text": data[1]})
    joint.save(tmp_path / "joint")
    turned = frame[["c1", "c0", *frame.columns[2:]]]
    for model in (joint, JointEmbedding.load(tmp_path / "joint")):
        assert model.score({"video": frame, "text": data[1]}) > 0.9
        with pytest.raises(ValueError, match=r"columns of video are not those of fit in their order.*'c1'"):
            model.transform(video=turned)
        with pytest.raises(ValueError, match=r"columns of video are not those of fit in their order.*'c1'"):
            model.score({"video": turned, "text": data[1]})
        with pytest.raises(ValueError, match="'renamed'"):
            model.encode_items(video=frame.rename(columns={"c5": "renamed"}))
        np.testing.assert_array_equal(
            model.transform(video=turned[model.feature_names_["video"]]), model.transform(frame)
        )
        with pytest.warns(CrossCLRWarning, match="video was fitted with names of columns"):
            model.transform(video=data[0])


@pytest.mark.parametrize("recipe", ["closed-form", "best"])
def test_features_far_from_zero_are_found(recipe):
    """At an offset of 10^7, float32 keeps differences of 1, which is enough here."""
    views = [1e7 + np.round(100 * view) for view in pairs(120)]
    far = JointEmbedding(recipe, epochs=1, dim=8, verbose=False).fit(*views)
    assert far.score(*views) > 0.9


def test_the_measure_follows_the_data_unless_it_is_given(data):
    concepts = np.arange(160) // 2
    joint = JointEmbedding("closed-form", verbose=False)
    assert joint.fit(*data).estimate_.measure == "recall"
    assert joint.fit(*data, concepts=concepts).estimate_.measure == "map"
    assert joint.set_params(select_by="recall").fit(*data, concepts=concepts).estimate_.measure == "recall"


def test_a_fit_says_what_is_in_the_space(data, capsys):
    joint = JointEmbedding(epochs=2, dim=16).fit(*data)
    *_, line = capsys.readouterr().err.splitlines()  # progress comes before, if this takes long
    assert line == joint.space_.facts.sentence()
    for words in ("closed form (share", "hub correction (", "trained encoders (", "mean of R@1, R@5 and R@10 of"):
        assert words in line
    assert f"{joint.estimate_.score:.1f} ± {joint.estimate_.error:.1f} among 40 new items" in line
    assert line.endswith("by cross-fitting on 160 samples")
    table = joint.summary().splitlines()
    assert table[0] == "JointEmbedding of a (20 channels), b (15 channels)"
    assert [row.split("  ")[0] for row in table[2:5]] == ["closed form", "hub correction", "trained encoders"]
    assert f"{joint.parts_[1].gain:+.1f} ± {joint.parts_[1].error:.1f}" in table[3]
    assert table[-1] == line
    JointEmbedding("closed-form", verbose=False).fit(*data)
    assert capsys.readouterr().err == ""


def test_import_is_quick_and_lazy():
    code = "import sys, crossclr; assert not {'torch', 'numpy', 'sklearn'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys; from crossclr import JointEmbedding; assert not {'sklearn', 'pandas'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_zero_shot_space_needs_no_pairs_and_is_saved(tmp_path):
    rng = np.random.default_rng(0)
    zero_shot = ZeroShot.from_joint_model(["image", "text"], 6, "a joint model")
    images, texts = rng.normal(size=(8, 6)), rng.normal(size=(8, 6))
    unpaired = {"image": [*images, *[None] * 8], "text": [*[None] * 8, *texts]}
    joint = JointEmbedding(zero_shot=zero_shot, verbose=False).fit(unpaired)
    expected = texts @ images.T / np.outer(np.linalg.norm(texts, axis=1), np.linalg.norm(images, axis=1))
    np.testing.assert_allclose(
        joint.encode_queries(text=texts) @ joint.encode_items(image=images).T, expected, atol=1e-6
    )
    joint.save(tmp_path / "joint")
    loaded = JointEmbedding.load(tmp_path / "joint")
    np.testing.assert_array_equal(loaded.encode_items(image=images), joint.encode_items(image=images))
    assert loaded.zero_shot.about == "a joint model"
    assert "a joint model" in loaded.summary()
    with pytest.raises(ValueError, match="rows of 'text' have 5 channels, but a joint model takes 6"):
        JointEmbedding(zero_shot=zero_shot).fit({"image": images, "text": texts[:, :5]})
