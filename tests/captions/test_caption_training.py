"""Training: the loss against a loop, what memory is worth, resuming bit by bit, stopping."""

import json
import math
import os
import signal
from dataclasses import replace

import pytest
import torch

from crossclr.captions.caption_config import PRESETS, CaptionConfig, CaptionModelConfig, load_caption_config
from crossclr.captions.caption_set import CaptionSet, TrainingSentences
from crossclr.captions.caption_training import CaptionTraining, smoothed_loss
from crossclr.captions.captioner import Captioner
from crossclr.captions.decoding import write_captions
from crossclr.captions.pipeline import CaptionRun, generate_captions, resume_captions, train_captions
from crossclr.captions.vocabulary import EOS, Vocabulary
from crossclr.evaluation.embedding_files import save_embeddings
from crossclr.training import Interrupted, fit
from crossclr.training.checkpoint import seed_everything
from crossclr.training.config_files import config_names
from tests.support.pairs import pair_embeddings

NOUNS = ("onion", "leek", "carrot", "potato")
SMALL = {"dim": 32, "heads": 4, "word_dim": 16, "dropout": 0.1, "feature_dropout": 0.0}


def test_the_loss_equals_a_loop_in_float64():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    targets = torch.randint(7, (5,), generator=generator)
    for smoothing in (0.0, 0.1, 0.4):
        expected = 0.0
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
            total = sum(math.exp(value) for value in row)
            for word, value in enumerate(row):
                wanted = 1 - smoothing if word == target else smoothing / 6
                if wanted:
                    expected += wanted * (math.log(wanted) - math.log(math.exp(value) / total))
        assert float(smoothed_loss(logits, targets, smoothing)) == pytest.approx(expected, rel=1e-12)


def paragraphs(videos=12, per_video=2):
    """Videos whose first clip shows a vegetable and whose later clips all look the same."""
    features, texts = [], []
    for video in range(videos):
        for clip in range(per_video):
            row = torch.zeros(8)
            row[video % 4 if clip == 0 else 4] = 1.0
            features.append(row)
            texts.append((f"cut the {NOUNS[video % 4]}",) if clip == 0 else (f"fry the {NOUNS[video % 4]} now",))
    clips = videos * per_video
    return CaptionSet(
        tuple(f"v{video}" for video in range(videos)),
        (per_video,) * videos,
        torch.stack(features),
        torch.ones(clips, dtype=torch.int64),
        tuple(texts),
        tuple((float(clip % per_video), clip % per_video + 1.0) for clip in range(clips)),
    )


def make_training(recurrent, **settings):
    config = CaptionConfig.model_validate(
        {
            "model": SMALL | {"recurrent": recurrent, "dropout": 0.0},
            "optimiser": {"learning_rate": 1e-3},
            "training": {"epochs": 150, "batch_size": 4, "ema_decay": 0.9} | settings,
        }
    )
    data = paragraphs(4)
    vocabulary = Vocabulary.build((text for texts in data.texts for text in texts), min_count=0)
    seed_everything(0)
    model = Captioner(config.model, 8, len(vocabulary), recurrent)
    return CaptionTraining(config, model, TrainingSentences(data, vocabulary, 20, 12)), data, vocabulary


def test_memory_carries_what_only_the_first_clip_shows():
    right = {}
    for recurrent in (True, False):
        training, data, vocabulary = make_training(recurrent)
        fit(training)
        with training.average.in_place() as model:
            written = write_captions(model, data, vocabulary)
        expected = {key: data.texts[2 * number][0] for number, key in enumerate(data.keys)}
        assert all(written[key][0].text == text for key, text in expected.items())  # both have learned the first one
        right[recurrent] = sum(
            written[key][1].text == data.texts[2 * number + 1][0] for number, key in enumerate(data.keys)
        )
    assert right[True] == 4  # the second clip looks the same in every video
    assert right[False] == 1  # one guess for all


def test_without_averages_the_weights_themselves_are_kept():
    training, _, _ = make_training(True, ema_decay=0.0)
    training.step(next(training.sentences.batches(0, 0, 4)))
    for name, weight in training.model.named_parameters():
        assert torch.equal(training.average.weights[name], weight)


# whole runs, from embedding files


def without_texts(embeddings):
    silent = {name: replace(vectors, texts=()) for name, vectors in embeddings.modalities.items()}
    return replace(embeddings, modalities=silent)


def make_embeddings(data):
    return pair_embeddings(
        data.features,
        data.features,
        clip_keys=tuple(f"{key}/{n}" for key, count in zip(data.keys, data.counts, strict=True) for n in range(count)),
        clip_counts=torch.tensor(data.counts),
        video_keys=data.keys,
        texts=tuple(texts[0] for texts in data.texts),
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    save_embeddings(make_embeddings(paragraphs()), folder / "train.h5")
    save_embeddings(make_embeddings(paragraphs(4)), folder / "val.npz")
    return folder


def make_config(files, **changes):
    values = {
        "data.train": str(files / "train.h5"),
        "data.validate": str(files / "val.npz"),
        "vocabulary.min_count": 0,
        "optimiser.learning_rate": 4e-3,
        "training.epochs": 4,
        "training.batch_size": 5,
        "training.ema_decay": 0.9,
        "training.log_every": 1,
        "validation.first_epoch": 0,
        "validation.every": 2,
        **{f"model.{name}": value for name, value in SMALL.items()},
    }
    return load_caption_config("paper", values | changes)


@pytest.fixture(scope="module")
def whole(files, tmp_path_factory):
    """A run that was never stopped."""
    return train_captions(make_config(files), out=tmp_path_factory.mktemp("runs") / "whole", meteor=False)


def content(run, name):
    return (run.path / name).read_bytes()


SAME = ("metrics.jsonl", "last/model.safetensors", "last/state.safetensors", "best/model.safetensors", "results.json")


def test_a_run_has_its_files_and_scores(whole):
    assert whole.results["part"] == "val"
    assert whole.results["metrics"]["METEOR"] is None
    assert whole.results["metrics"]["Bleu_1"] > 0
    assert whole.results["epochs"] == 4
    assert whole.results["words"] == 7 + 8
    assert whole.config.model.recurrent is None
    assert json.loads(content(whole, "model.json")) == {"feature_dim": 8, "recurrent": True}
    records = whole.metrics()
    assert sum(record["kind"] == "epoch" for record in records) == 4
    assert [record["epoch"] for record in records if "score" in record] == [0, 2, 3]
    assert list((whole.path / "tensorboard").iterdir())
    assert whole.predictions("val").is_file()
    assert resume_captions(whole.path).results == whole.results  # finished: nothing to do


def test_equal_seeds_give_equal_bytes_and_others_do_not(whole, files, tmp_path):
    again = train_captions(make_config(files), out=tmp_path / "again", meteor=False)
    for name in SAME:
        assert content(again, name) == content(whole, name)
    other = train_captions(make_config(files, seed=1), out=tmp_path / "other", meteor=False)
    assert content(other, "last/model.safetensors") != content(whole, "last/model.safetensors")


@pytest.mark.parametrize("stop_at", [1, 3, 8])
def test_a_stopped_run_continues_bit_by_bit(whole, files, tmp_path, monkeypatch, stop_at):
    step, taken = CaptionTraining.step, []

    def interrupted(self, batch):
        found = step(self, batch)
        taken.append(0)
        if len(taken) == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(CaptionTraining, "step", interrupted)
    with pytest.raises(Interrupted) as stopped:
        train_captions(make_config(files), out=tmp_path / "run", meteor=False)
    assert str(stopped.value) == str(tmp_path / "run")
    assert len(taken) == stop_at
    run = resume_captions(tmp_path / "run", meteor=False)
    assert len(taken) == 12
    for name in SAME:
        assert content(run, name) == content(whole, name), name


def test_a_kill_between_checkpoints_repeats_the_epoch(whole, files, tmp_path, monkeypatch):
    step, taken = CaptionTraining.step, []

    def killed(self, batch):
        taken.append(0)
        if len(taken) == 8:
            raise MemoryError
        return step(self, batch)

    monkeypatch.setattr(CaptionTraining, "step", killed)
    with pytest.raises(MemoryError):
        train_captions(make_config(files), out=tmp_path / "run", meteor=False)
    monkeypatch.setattr(CaptionTraining, "step", step)
    run = resume_captions(tmp_path / "run", meteor=False)
    for name in SAME:
        assert content(run, name) == content(whole, name), name


def test_generating_gives_what_the_scores_were_taken_from(whole, files):
    written, data = generate_captions(whole)
    assert json.loads(whole.predictions("val").read_text())["results"]["v1"][0]["sentence"] == written["v1"][0].text
    assert data.keys == ("v0", "v1", "v2", "v3")
    other, _ = generate_captions(whole, str(files / "train.h5"))
    assert len(other) == 12
    with pytest.raises(ValueError, match="best and last"):
        generate_captions(whole, which="first")


def test_early_stopping(files, tmp_path):
    config = make_config(files, **{"training.early_stop": 1, "training.epochs": 30, "optimiser.learning_rate": 1e-9})
    run = train_captions(config, out=tmp_path / "run", meteor=False)
    assert run.results["epochs"] < 30


def test_faults_show_before_anything_is_written(files, tmp_path):
    with pytest.raises(FileExistsError, match="--resume"):
        train_captions(make_config(files), out=files)
    for changes, message in (
        ({"data.features": "vidclip"}, "embeddings of whole videos"),
        ({"data.train": "train"}, "not an embedding file"),
        ({"data.train": "absent.h5"}, "no file"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            train_captions(make_config(files, **changes), out=tmp_path / "run")
    silent = make_embeddings(paragraphs(4))
    save_embeddings(without_texts(silent), tmp_path / "silent.h5")
    with pytest.raises(ValueError, match="no sentence to train on"):
        train_captions(make_config(files, **{"data.train": str(tmp_path / "silent.h5")}), out=tmp_path / "run")
    with pytest.raises(ValueError, match="no sentences to score against"):
        train_captions(make_config(files, **{"data.validate": str(tmp_path / "silent.h5")}), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileNotFoundError, match="not the folder of a captioner"):
        CaptionRun.open(tmp_path)


def test_sentences_of_embedding_files_without_text_come_from_json(whole, files, tmp_path):
    for name in ("train", "val"):
        data = paragraphs(12 if name == "train" else 4)
        bare = make_embeddings(data)
        save_embeddings(without_texts(bare), tmp_path / f"{name}.h5")
        sentences = {
            key: {"sentences": [data.texts[2 * n][0], data.texts[2 * n + 1][0]], "timestamps": [[0, 1], [1, 2]]}
            for n, key in enumerate(data.keys)
        }
        (tmp_path / f"{name}.json").write_text(json.dumps(sentences))
    config = make_config(
        files,
        **{
            "data.train": str(tmp_path / "train.h5"),
            "data.validate": str(tmp_path / "val.h5"),
            "data.captions": [str(tmp_path / "train.json"), str(tmp_path / "val.json")],
        },
    )
    run = train_captions(config, out=tmp_path / "run", meteor=False)
    assert content(run, "last/model.safetensors") == content(whole, "last/model.safetensors")
    assert content(run, "vocabulary.json") == content(whole, "vocabulary.json")


def test_presets_are_whole_and_the_papers_is_the_papers():
    for name in config_names(PRESETS):
        assert load_caption_config(name).name == name
    paper = load_caption_config("paper")
    assert paper.model == CaptionModelConfig(dim=768, layers=2, heads=12, word_dim=300, memory_cells=1)
    assert (paper.training.batch_size, paper.training.epochs, paper.training.early_stop) == (16, 50, 10)
    assert (paper.optimiser.learning_rate, paper.optimiser.epsilon, paper.optimiser.warmup) == (1e-4, 1e-6, 0.1)
    with pytest.raises(ValueError, match=r"no shipped config 'large'.*msvd, paper, small"):
        load_caption_config("large")
    with pytest.raises(ValueError, match=r"model\.dimm is not a field"):
        load_caption_config("paper", ["model.dimm=3"])


def test_writing_stops_at_the_end_mark():
    training, data, vocabulary = make_training(True)
    training.model.to_words.bias.data[EOS] = 100.0
    assert all(
        caption.text == ""
        for captions in write_captions(training.model, data, vocabulary).values()
        for caption in captions
    )
