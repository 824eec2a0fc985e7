"""Padded encoders against the model's own, ONNX against both, and a search without PyTorch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from crossclr.data import Inputs, Ragged
from crossclr.models import ModelConfig, build_model
from crossclr.models.closed_form import ClosedForm
from crossclr.models.space import HubCorrection, SearchSpace
from crossclr.search import onnx_export
from crossclr.search.onnx_export import ExportError, PaddedEncoder, export_encoder, export_run
from crossclr.search.onnx_export import padded as padded_query
from crossclr.search.onnx_queries import OnnxEncoder

KINDS = {
    "attention": {"encoders": {"text": {"pooler": "attention", "heads": 4, "layers": 2, "pooler_heads": 2}}},
    "max": {"encoders": {"text": {"pooler": "max", "heads": 2, "input_norm": "layer"}}},
    "mean": {"encoders": {"text": {"pooler": "mean", "heads": 2, "input_norm": "l2"}}},
    "mlp": {"encoders": {"text": {"kind": "mlp", "blocks": 2}}},
    "mlp-max": {"encoders": {"text": {"kind": "mlp", "blocks": 0, "sequence_pooling": "max", "input_norm": "coot"}}},
    "mlp-both": {"encoders": {"text": {"kind": "mlp", "sequence_pooling": "mean_max"}}, "output_dim": 12},
}


def models(kind, two_level=False):
    torch.manual_seed(0)
    model = build_model(ModelConfig(dim=16, **KINDS[kind]), {"image": 3, "text": 7}, two_level).eval()
    for parameter in model.parameters():  # zeros and ones of a fresh model would hide a forgotten gain or bias
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def plain(model, sequences):
    with torch.inference_mode():
        found = model.encode_modality("text", Inputs(Ragged.from_list(sequences)))["clip"]
    return torch.nn.functional.normalize(found, dim=1)


def padded(sequences, fill=0.0):
    longest = max(map(len, sequences))
    rows = torch.full((len(sequences), longest, 7), fill)
    for place, sequence in enumerate(sequences):
        rows[place, : len(sequence)] = sequence
    return rows, torch.tensor([len(sequence) for sequence in sequences])


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(KINDS)),
    st.lists(st.integers(1, 150), min_size=1, max_size=5),
    st.sampled_from([0.0, float("nan"), 1e9]),
    st.booleans(),
)
def test_padded_equals_packed_whatever_the_padding_holds(kind, lengths, fill, two_level):
    model = models(kind, two_level)
    generator = torch.Generator().manual_seed(sum(lengths))
    sequences = [torch.randn(length, 7, generator=generator) for length in lengths]
    with torch.inference_mode():
        found = PaddedEncoder(model, "text")(*padded(sequences, fill))
    torch.testing.assert_close(found, plain(model, sequences), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["attention", "mlp-both"])
def test_onnx_takes_any_batch_and_length(kind, tmp_path):
    model = models(kind)
    export_encoder(PaddedEncoder(model, "text").eval(), 7, tmp_path / "encoder.onnx")
    encoder = OnnxEncoder(tmp_path / "encoder.onnx", threads=1)
    for lengths in ([1], [4, 1, 9], [200], [3] * 17):
        sequences = [torch.randn(length, 7) for length in lengths]
        found = encoder([sequence.numpy() for sequence in sequences])
        np.testing.assert_allclose(found, plain(model, sequences).numpy(), atol=1e-4)
    with pytest.raises(ValueError, match="at least one"):
        encoder([])


class Trained(torch.nn.Module):
    """A trained encoder as a search space holds it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def clip_vectors(self, modality, rows):
        return self.model.encode_modality(modality, Inputs(rows))["clip"]


@pytest.mark.parametrize("parts", ["closed", "trained", "both", "both-hubs"])
def test_queries_of_a_search_space_are_exported_with_all_its_parts(parts, tmp_path):
    rows = {"image": torch.randn(80, 3), "text": torch.randn(80, 7)}
    closed = None if parts == "trained" else ClosedForm().fit(rows)
    encoders = [] if parts == "closed" else [Trained(models("mlp")), Trained(models("attention"))]
    share = 0.0 if parts == "closed" else 0.4
    space = SearchSpace({"image": 3, "text": 7}, closed, encoders, share)
    if parts == "both-hubs":
        hubs = HubCorrection({name: space.encode_queries(name, values) for name, values in rows.items()}, 0.5)
        space = SearchSpace(space.dims, closed, encoders, share, hubs)
    export_encoder(padded_query(space, "text"), 7, tmp_path / "query.onnx")
    encoder = OnnxEncoder(tmp_path / "query.onnx", threads=1)
    for lengths in ([1], [4, 1, 9]):
        sequences = [torch.randn(length, 7) for length in lengths]
        found = encoder([sequence.numpy() for sequence in sequences])
        np.testing.assert_allclose(found, space.encode_queries("text", sequences).numpy(), atol=1e-4)


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "onnx"
    return out, export_run(trained, out)


def test_a_run_is_exported_and_checked(exported):
    out, report = exported
    assert report["folder"] == str(out)
    assert max(about["largest_difference"] for about in report["encoders"].values()) <= 1e-4
    assert report["search"]["largest_score_difference"] <= 2e-4
    assert json.loads((out / "export.json").read_text())["encoders"] == report["encoders"]


def test_a_wrong_encoder_is_not_written(trained, tmp_path, monkeypatch):
    def crooked(encoder, channels, path):
        with torch.no_grad():
            encoder.encoders[0].local.projection.bias += 1.0
        export_encoder(encoder, channels, path)
        with torch.no_grad():
            encoder.encoders[0].local.projection.bias -= 1.0

    monkeypatch.setattr(onnx_export, "export_encoder", crooked)
    with pytest.raises(ExportError, match="differs from PyTorch"):
        export_run(trained, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "other").mkdir()
    with pytest.raises(FileExistsError):
        export_run(trained, tmp_path / "other")


SEARCH = """
import json, sys
import numpy as np
from crossclr.search.onnx_queries import OnnxEncoder
data = np.load(sys.argv[2])
clips = OnnxEncoder(f"{sys.argv[1]}/encoder_image.onnx")([row[None] for row in data["clips"]])
queries = OnnxEncoder(f"{sys.argv[1]}/encoder_text.onnx")(np.split(data["tokens"], np.cumsum(data["lengths"])[:-1]))
scores = -np.sort(-(queries @ clips.T))[:, :5]
found = np.argsort(-(queries @ clips.T), kind="stable")[:, :5]
heavy = {"torch", "transformers", "sklearn"} & set(sys.modules)
assert not heavy, heavy
print(json.dumps([found.tolist(), scores.tolist()]))
"""


def test_a_search_with_onnxruntime_alone(exported, trained, tmp_path):
    source, model = trained.open_data(), trained.load_model()
    samples = [source.where(split="val")[place] for place in range(len(source.where(split="val")))]
    queries = [sample["text"].clips[0] for sample in samples[:9]]
    clips = np.concatenate([sample["image"].clips[0] for sample in samples])
    np.savez(tmp_path / "data.npz", clips=clips, tokens=np.concatenate(queries), lengths=[len(q) for q in queries])
    done = subprocess.run(
        [sys.executable, "-c", SEARCH, str(exported[0]), str(tmp_path / "data.npz")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, scores = json.loads(done.stdout)
    with torch.inference_mode():
        images = Ragged.from_list([torch.tensor(row[None]) for row in clips])
        a = model.encode_modality("image", Inputs(images))["clip"]
        words = Ragged.from_list([torch.tensor(rows) for rows in queries])
        b = model.encode_modality("text", Inputs(words))["clip"]
    expected = torch.nn.functional.normalize(b, dim=1) @ torch.nn.functional.normalize(a, dim=1).T
    best = expected.topk(5, dim=1)
    assert found == best.indices.tolist()
    np.testing.assert_allclose(scores, best.values.numpy(), atol=1e-4)
