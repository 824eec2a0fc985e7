"""The closed-form encoder: an exact dual solution, gaps, blocks, storage and ONNX."""

import numpy as np
import pytest
import scipy.linalg
import torch
from safetensors.torch import load, save

from crossclr.models.closed_form import ClosedForm
from crossclr.models.feature_map import ClosedFormSettings, FeatureSpec


def curved(count=200, seed=0):
    """Three modalities that are curved functions of one hidden position."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(count, 2, generator=generator) * 4
    maps = {name: torch.randn(2, dim, generator=torch.Generator().manual_seed(dim)) for name, dim in DIMS.items()}
    return {name: torch.sin(hidden @ maps[name]) for name in DIMS}


DIMS = {"video": 12, "sound": 7, "text": 9}


def pair(count=200):
    rows = curved(count)
    return {name: rows[name] for name in ("video", "text")}


def top_one(model, rows, query, item):
    scores = model.encode(query, rows[query]) @ model.encode(item, rows[item]).T
    return float((scores.argmax(dim=1) == torch.arange(len(scores))).float().mean())


def test_equals_dual_kernel_cca():
    """With a landmark at each sample, coefficients solve the textbook problem in kernel matrices."""
    rows, ridge, count = pair(60), 0.5, 60
    settings = ClosedFormSettings(FeatureSpec(1.0, "none"), ridge=ridge, width=3, exponent=0.0)
    model = ClosedForm(settings).fit(rows)
    centre = np.eye(count) - 1 / count
    kernels = {}
    for name, values in rows.items():
        squares = torch.cdist(values.double(), values.double()).numpy() ** 2
        median = np.median(np.sort(squares[np.triu_indices(count, 1)])[:-1])  # torch takes the lower of two
        kernels[name] = centre @ np.exp(-squares / (2 * median)) @ centre
    zero = np.zeros((count, count))
    left = np.block([[zero, kernels["video"] @ kernels["text"]], [kernels["text"] @ kernels["video"], zero]])
    right = scipy.linalg.block_diag(
        *(k @ k + ridge * np.trace(k) / count * k + 1e-9 * np.eye(count) for k in kernels.values())
    )
    values, vectors = scipy.linalg.eigh(left, right)
    np.testing.assert_allclose(model.correlations, values[::-1][:3], atol=2e-3)  # the jitter of the landmarks
    scores = {
        name: (kernels[name] @ part)[:, ::-1][:, :3] for name, part in zip(kernels, np.split(vectors, 2), strict=True)
    }
    signs = np.ones(3)
    for name, expected in scores.items():
        expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
        ours = model.encode(name, rows[name]).numpy()
        signs = np.sign((ours * expected).sum(0)) if name == "video" else signs
        np.testing.assert_allclose(ours, expected * signs, atol=0.02)


def test_a_kernel_finds_what_lines_cannot():
    rows = pair(400)
    train, test = ({name: values[part] for name, values in rows.items()} for part in (slice(0, 300), slice(300, 400)))
    scores = {}
    for name, spec in {"linear": FeatureSpec(None, "none"), "kernel": FeatureSpec(0.7, "none")}.items():
        scores[name] = top_one(ClosedForm(ClosedFormSettings(spec, ridge=0.01)).fit(train), test, "text", "video")
    assert scores["kernel"] > scores["linear"] + 0.1


def test_vectors_have_unit_length_and_the_width():
    rows = pair()
    found = ClosedForm(ClosedFormSettings(width=5)).fit(rows).encode("video", rows["video"])
    assert found.shape == (200, 5)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=1), torch.ones(200))


def test_the_exponent_weights_channels_by_correlation():
    rows = pair()
    plain, weighted = (ClosedForm(ClosedFormSettings(exponent=e, width=6)).fit(rows) for e in (0.0, 2.0))
    expected = plain.encode("text", rows["text"]) * plain.correlations**2
    expected = expected / expected.norm(dim=1, keepdim=True)
    torch.testing.assert_close(weighted.encode("text", rows["text"]), expected, atol=1e-5, rtol=0)


def test_blocks_and_processes_equal_one_fit():
    rows = curved()
    settings = ClosedFormSettings(FeatureSpec(1.0, "standardise"), width=8)
    whole = ClosedForm(settings).fit(rows)
    first, second = ClosedForm(settings), ClosedForm(settings)
    for part, model in ((slice(0, 120), first), (slice(120, 200), second)):
        model.prepare(rows)
        for places in torch.arange(200)[part].split(30):
            model.partial_fit({name: values[places] for name, values in rows.items()})
    first.merge([second.moments])
    first.finish()
    for name, values in rows.items():
        ours, expected = (model.encode(name, values) for model in (first, whole))
        torch.testing.assert_close(ours.abs(), expected.abs(), atol=1e-4, rtol=0)


def test_absent_rows_may_hold_anything():
    rows = curved()
    present = {"text": torch.arange(200) % 3 != 0, "sound": torch.arange(200) % 4 != 0}
    settings = ClosedFormSettings(width=6)
    expected = ClosedForm(settings).fit(rows, present)
    holes = {name: values.clone() for name, values in rows.items()}
    for name, mask in present.items():
        holes[name][~mask] = torch.nan
    found = ClosedForm(settings).fit(holes, present)
    assert tuple(expected.branches) == tuple(found.branches) == ("video", "sound", "text")
    for name, values in rows.items():
        torch.testing.assert_close(found.encode(name, values), expected.encode(name, values))
    assert top_one(found, rows, "text", "video") > 0.3


def test_a_third_modality_joins_two_that_share_no_samples():
    rows = curved(300)
    apart = torch.arange(300) < 150
    settings = ClosedFormSettings(FeatureSpec(0.7, "none"), ridge=0.03, width=12)
    model = ClosedForm(settings).fit(rows, {"text": apart, "sound": ~apart})
    assert top_one(model, curved(100, seed=1), "text", "sound") > 0.1  # by chance 0.01


def test_tensors_restore_the_same_vectors():
    rows = pair()
    for spec in (FeatureSpec(), FeatureSpec(None, "standardise")):
        model = ClosedForm(ClosedFormSettings(spec)).fit(rows)
        tensors = model.tensors()
        assert {value.dtype for value in tensors.values()} == {torch.float32, torch.bool}
        restored = ClosedForm.from_tensors(load(save(tensors)))
        assert set(restored.branches) == set(model.branches)
        for name, values in rows.items():
            assert torch.equal(restored.encode(name, values), model.encode(name, values))


@pytest.mark.slow
@pytest.mark.parametrize("spec", [FeatureSpec(2.0, "standardise"), FeatureSpec(None, "l2")])
def test_onnx_gives_the_same_vectors(tmp_path, spec):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    rows = pair()
    model = ClosedForm(ClosedFormSettings(spec)).fit(rows)
    path = tmp_path / "video.onnx"
    torch.onnx.export(
        model.branch("video").eval(),
        (rows["video"][:3],),
        path,
        input_names=["rows"],
        dynamic_shapes=({0: torch.export.Dim("samples")},),
        dynamo=True,
    )
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"rows": rows["video"].numpy()})
    np.testing.assert_allclose(found, model.encode("video", rows["video"]), atol=1e-6)


def test_errors():
    rows = pair(20)
    model = ClosedForm(ClosedFormSettings({"video": FeatureSpec()}))
    with pytest.raises(ValueError, match="no features are set for modality text"):
        model.fit(rows)
    with pytest.raises(RuntimeError, match="call prepare"):
        ClosedForm().partial_fit(rows)
    model = ClosedForm().fit(rows)
    with pytest.raises(ValueError, match="cannot encode modality 'smell'"):
        model.encode("smell", rows["text"])
    model.prepare(rows)
    with pytest.raises(ValueError, match="expected rows of"):
        model.partial_fit({"video": rows["video"]})
    with pytest.raises(ValueError, match="ridge and exponent"):
        ClosedFormSettings(ridge=-1)
