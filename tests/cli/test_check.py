import json

import h5py
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from crossclr.cli import app

RUNNER = CliRunner()


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    meta, splits = {}, {}
    with h5py.File(tmp_path / "video.h5", "w") as video, h5py.File(tmp_path / "text.h5", "w") as text:
        for number in range(6):
            key = f"v{number}"
            segments = [{"text": f"do {number} {i}", "start_sec": i, "stop_sec": i + 1} for i in range(3)]
            split = "val" if number > 3 else "train"
            meta[key] = {"data_key": key, "duration_sec": 3, "split": split, "segments": segments}
            video[key], text[key], splits[key] = rng.standard_normal((30, 4)), rng.standard_normal((9, 5)), [3, 3, 3]
    (tmp_path / "meta_all.json").write_text(json.dumps(meta))
    (tmp_path / "text_sentence_splits.json").write_text(json.dumps(splits))
    return tmp_path


def damage(folder):
    with h5py.File(folder / "video.h5", "a") as file:
        file["v1"][2] = np.nan
        del file["v2"]


def run(*arguments):
    return RUNNER.invoke(app, [str(argument) for argument in arguments])


def test_a_clean_folder(folder):
    result = run("check", folder)
    assert result.exit_code == 0, result.output
    for words in ("video 4, text 5", "two levels", "Connectivity of video", "0 faults, 0 warnings"):
        assert words in result.output


def test_faults_end_with_1_and_name_file_and_key(folder):
    damage(folder)
    result = run("check", folder)
    assert result.exit_code == 1
    assert "video.h5: entry 'v1' has NaN" in result.output
    assert "video.h5: no entry for key 'v2'" in result.output
    assert "2 faults" in result.output


def test_json_holds_the_whole_report(folder):
    damage(folder)
    result = run("check", folder, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert report["splits"]["train"]["samples"] == 4
    assert [finding["keys"] for finding in report["findings"] if finding["level"] == "fault"] == [["v1"], ["v2"]]
    assert report["connectivity"]["video"]["relative"]["0.9"] >= 0


@pytest.mark.parametrize("kind", ["truncated", "no file", "typo", "no yaml", "unknown name"])
def test_what_cannot_be_read_ends_with_2(folder, kind):
    config = folder / "data.yaml"
    values = {"kind": "coot", "video": "video.h5", "text": "text.h5", "root": str(folder)}
    if kind == "truncated":
        (folder / "video.h5").write_bytes((folder / "video.h5").read_bytes()[:1000])
    values |= {"no file": {"video": "absent.h5"}, "typo": {"max_frame": 1}}.get(kind, {})
    config.write_text("{" if kind == "no yaml" else yaml.safe_dump(values))
    if kind == "unknown name":
        config = "no-such-config"
    words = {"no file": "absent.h5", "typo": "max_frame", "no yaml": "YAML", "unknown name": "no-such-config"}
    result = run("check", config)
    assert result.exit_code == 2
    assert words.get(kind, "truncated") in result.stderr
    assert "Traceback" not in result.output
    assert json.loads(run("check", config, "--json").stdout)["ok"] is False


def test_root_and_strict(folder):
    config = folder / "run.yaml"
    config.write_text(
        yaml.safe_dump({"data": {"kind": "coot", "video": "video.h5", "text": "text.h5", "root": "/none"}})
    )
    assert run("check", config).exit_code == 2
    assert run("check", config, "--root", folder).exit_code == 0
    with h5py.File(folder / "video.h5", "a") as file:
        file["unused"] = np.ones((2, 4))
    assert run("check", config, "--root", folder).exit_code == 0
    result = run("check", config, "--root", folder, "--strict")
    assert result.exit_code == 1
    assert "unused" in result.output


def test_text_features_are_written_in_the_layout_that_is_read(folder, monkeypatch):
    from crossclr.extract import TokenExpert
    from crossclr.extract import token_features as text
    from crossclr.extract.contract import LongTexts

    class Words(TokenExpert):
        """Counts letters in place of a network, and calls texts of three words long."""

        dim = 3

        def __call__(self, texts):
            return [np.array([[len(word)] * 3 for word in text.split()], np.float32) for text in texts]

        def row_counts(self, texts):
            return [len(text.split()) for text in texts]

        def long_texts(self, paragraphs):
            texts = [text for paragraph in paragraphs for text in paragraph]
            return LongTexts(sum(count > 2 for count in self.row_counts(texts)), len(texts), 2, "kept")

    monkeypatch.setattr(text, "TokenEncoder", Words)
    (folder / "text.h5").unlink()
    (folder / "text_sentence_splits.json").unlink()
    assert run("extract", folder / "meta_all.json", "--text-only", "--out", folder / "words").exit_code == 0
    result = run("check", folder, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["dims"] == {"video": 4, "text": 3}
    captions = {f"c{n}": {"split": "train", "captions": [f"one {n}", "two words more"]} for n in range(4)}
    (folder / "captions.json").write_text(json.dumps(captions))
    written = run("extract", folder / "captions.json", "--text-only", "--out", folder / "flat")
    assert written.exit_code == 0
    assert "4 of 8 texts have more than 2 tokens and were kept" in written.output
    np.savez(folder / "a.npz", feat=np.eye(4), ids=np.array(list(captions)))
    config = {
        "kind": "arrays",
        "root": str(folder),
        "modalities": {
            "video": {"values": "a.npz#feat", "ids": "#ids"},
            "text": {
                "values": "flat/values.npy",
                "lengths": "flat/lengths.npy",
                "ids": "flat/owners.json",
                "texts": "flat/texts.json",
            },
        },
        "splits": "captions.json#split",
    }
    (folder / "flat.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    result = run("check", folder / "flat.yaml", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["splits"]["train"]["sequences"]["text"] == 8
    again = run("extract", folder / "captions.json", "--text-only", "--out", folder / "flat")
    assert "already exists" in str(again.exception)
