import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from crossclr.cli import main
from crossclr.evaluation import evaluate_embeddings
from crossclr.integrations.trec import write_parquet, write_trec
from crossclr.models.embeddings import Embeddings, Vectors


def random_embeddings(concepts=None):
    """Twenty clips with spaces in their keys; some have several sentences, and one has none."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(20, 6, generator=generator)
    clip_of = torch.tensor([0, 0, 0, *range(1, 19), 18])
    texts = hidden[clip_of] + torch.randn(len(clip_of), 6, generator=generator)
    keys = tuple(f"clip {number}" for number in range(20))
    modalities = {
        "video": Vectors(hidden, torch.arange(20)),
        "text": Vectors(texts, clip_of, tuple(f"sentence {n}" for n in range(len(clip_of)))),
    }
    return Embeddings(modalities, keys, torch.ones(20, dtype=torch.int64), keys, concepts=concepts)


@pytest.mark.parametrize("concepts", [None, torch.arange(20) // 2])
def test_an_independent_program_computes_our_recall(tmp_path, concepts):
    measures = pytest.importorskip("ir_measures")
    embeddings = random_embeddings(concepts)
    expected = evaluate_embeddings(embeddings)
    assert len(write_trec(embeddings, tmp_path)) == 4
    for query, searched in (("text", "video"), ("video", "text")):
        qrels = list(measures.read_trec_qrels(str(tmp_path / f"{query}-to-{searched}.qrels")))
        run = list(measures.read_trec_run(str(tmp_path / f"{query}-to-{searched}.run")))
        for k in (1, 5, 10):
            success = measures.Success @ k
            found = measures.calc_aggregate([success], qrels, run)[success]
            assert 100 * found == pytest.approx(expected[f"clip/{query}->{searched}"][f"R@{k}"], abs=1e-6)
        if query == "text" and concepts is None:  # one relevant document each
            lines = [line.split() for line in (tmp_path / "text-to-video.run").read_text().splitlines()]
            right = {(entry.query_id, entry.doc_id) for entry in qrels}
            ranks = [int(rank) for query_id, _, document, rank, *_ in lines if (query_id, document) in right]
            ndcg = measures.calc_aggregate([measures.nDCG @ 10, measures.R @ 10], qrels, run)
            expected_ndcg = sum(1 / np.log2(rank + 1) for rank in ranks if rank <= 10) / len(ranks)
            assert ndcg[measures.nDCG @ 10] == pytest.approx(expected_ndcg, abs=1e-6)
            assert 100 * ndcg[measures.R @ 10] == pytest.approx(expected["clip/text->video"]["R@10"], abs=1e-6)


def test_names_have_no_spaces_and_the_depth_is_kept(tmp_path):
    write_trec(random_embeddings(), tmp_path, depth=3)
    lines = (tmp_path / "video-to-text.run").read_text().splitlines()
    assert {len(line.split(" ")) for line in lines} == {6}
    assert lines[0].split()[0] == "clip%200"
    assert len(lines) == 19 * 3  # the last clip has no sentence and is no query


def test_parquet_has_vectors_of_fixed_size(tmp_path):
    embeddings = random_embeddings()
    folder = write_parquet(embeddings, tmp_path / "out.parquet")
    table = pq.read_table(folder / "text.parquet")
    assert str(table.schema.field("query").type) == "fixed_size_list<element: float>[6]"
    unit = torch.nn.functional.normalize(embeddings["text"].rows, dim=1)
    np.testing.assert_allclose(np.stack(table["query"].to_numpy()), unit, atol=1e-7)
    assert table["text"].to_pylist()[-1] == "sentence 21"
    assert table["key"].to_pylist()[:4] == ["clip 0", "clip 0", "clip 0", "clip 1"]
    assert pq.read_table(folder / "video.parquet")["text"].to_pylist() == [None] * 20


def test_a_space_of_several_experts_is_no_single_inner_product():
    from types import SimpleNamespace

    from crossclr.integrations.run_encoder import AcceptedInputs, RunEncoder

    with pytest.raises(ValueError, match="compares the experts face, sound with weights that depend on both sides"):
        RunEncoder(SimpleNamespace(experts=("face", "sound")), AcceptedInputs(None, {}, {}))


def test_vectors_of_several_experts_keep_their_weights(tmp_path):
    from dataclasses import replace

    embeddings = replace(random_embeddings(), experts=("face", "sound"))
    table = pq.read_table(write_parquet(embeddings, tmp_path / "out.parquet") / "video.parquet")
    np.testing.assert_array_equal(np.stack(table["item"].to_numpy()), embeddings["video"].rows)


@pytest.mark.slow
def test_the_commands(run, tmp_path, monkeypatch, capsys):
    measures = pytest.importorskip("ir_measures")
    monkeypatch.chdir(tmp_path)
    for words in (["evaluate", "--no-baseline", "--no-semantics", "--trec", "trec"], ["embed", "--out", "x.parquet"]):
        monkeypatch.setattr(sys, "argv", ["crossclr", words[0], str(run.path), *words[1:]])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
    files = [str(tmp_path / "trec" / f"text-to-image.{ending}") for ending in ("qrels", "run")]
    recall = measures.R @ 10
    found = measures.calc_aggregate([recall], measures.read_trec_qrels(files[0]), measures.read_trec_run(files[1]))[
        recall
    ]
    assert 100 * found == pytest.approx(run.results["test"]["clip/text->image"]["R@10"], abs=1e-6)
    assert pq.read_metadata(tmp_path / "x.parquet" / "image.parquet").num_rows == 322
