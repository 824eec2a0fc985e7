import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

pytest.importorskip("av", reason="needs crossclr[experts]")

from crossclr.data import check_data, load_data_config, open_data
from crossclr.extract import ExpertError, Settings, extract
from crossclr.extract.contract import LongTexts
from crossclr.extract.finished_rows import PARTS_FOLDER as FOLDER
from crossclr.extract.finished_rows import row_times
from crossclr.extract.plan import StrictError
from crossclr.notices import CrossCLRWarning
from crossclr.training import load_config
from tests.support.fake_experts import Colour, Letters, Loudness, Motion
from tests.support.media import BLUE, GREEN, RED, tone, write_video
from tests.support.pairs import first, keys_of, read, second

CAPTIONS = {
    "a.mp4": {
        "segments": [{"text": "red at first", "start": 0, "stop": 1}, {"text": "then green", "start": 1, "stop": 2}]
    },
    "b.mp4": {
        "segments": [{"text": "all blue", "start": 0.5, "stop": 1.5}, {"text": "nothing", "start": 1, "stop": 1}]
    },
    "c.mp4": "green only",
    "bad.mp4": "cannot be seen",
}


@pytest.fixture
def folder(tmp_path):
    videos = tmp_path / "videos"
    videos.mkdir()
    write_video(videos / "a.mp4", [RED] * 10 + [GREEN] * 10, sound=tone(2.0))
    write_video(videos / "b.mp4", [BLUE] * 20)
    write_video(videos / "c.mp4", [GREEN] * 10, sound=tone(1.0))
    (videos / "bad.mp4").write_bytes(b"noise")
    (tmp_path / "captions.json").write_text(json.dumps(CAPTIONS))
    return tmp_path


def run(folder, experts=None, out="out", **settings):
    experts = experts or [Colour(), Letters()]
    return extract(folder / "videos", folder / out, experts, folder / "captions.json", Settings(**settings))


def test_a_feature_set_that_the_reader_takes(folder):
    report = run(folder)
    assert (report.datapoints, report.clips, report.done, report.kept) == (3, 4, 3, 0)
    assert [str(problem).split(":")[0] for problem in report.problems] == ["bad.mp4", "b.mp4"]
    assert "is empty" in report.problems[1].what
    source = open_data(load_data_config(report.config))
    assert tuple(source.dims.values()) == (3, 2)
    sample = read(source, "a")
    assert second(sample).texts == ("red at first", "then green")
    assert [clip.mean(0).argmax() for clip in first(sample).clips] == [0, 1]  # clips are cut where they belong
    assert [len(clip) for clip in first(sample).clips] == [2, 2]
    assert second(sample).clips[0][:, 0].tolist() == [3, 2, 5]
    assert first(sample).whole.shape == (4, 3)
    assert not check_data(load_data_config(report.config)).faults
    config = load_config(report.config)
    assert config.data.video == ["colour.h5"]
    assert not (folder / "out" / FOLDER).exists()


def test_every_row_says_who_made_it_and_when(folder):
    run(folder, [Colour(), Motion(), Loudness(), Letters()])
    with h5py.File(folder / "out" / "colour.h5") as file:
        data = file["a"]
        named = {name: data.attrs[name] for name in ("expert", "model", "layer", "rate", "version", "file")}
        assert named == {
            "expert": "colour",
            "model": "none",
            "layer": "mean",
            "rate": 2.0,
            "version": "1",
            "file": "a.mp4",
        }
        assert file.attrs["expert"] == "colour"
        np.testing.assert_allclose(row_times(data), [[0, 0.5], [0.5, 1], [1, 1.5], [1.5, 2]])
    with h5py.File(folder / "out" / "motion.h5") as file:  # 20 frames, window 8, stride 4: the last two end with it
        np.testing.assert_allclose(row_times(file["a"])[:, 0], [0, 0.4, 0.8, 1.2, 1.2])
        assert row_times(file["a"])[-1, 1] == pytest.approx(2.0)
    with h5py.File(folder / "out" / "loudness.h5") as file:
        assert row_times(file["a"])[3] == pytest.approx([0.3, 0.4])
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert manifest["experts"]["motion"]["needs"] == {"kind": "windows", "rate": 10.0, "window": 8, "stride": 4}
    assert manifest["recordings"]["b"]["experts"] == ["colour", "motion"]
    assert {entry["name"] for entry in manifest["omitted"]} == {"bad.mp4", "b.mp4"}
    table = json.loads((folder / "out" / "media.json").read_text())
    assert table["a/1"] == {"file": str(folder / "videos" / "a.mp4"), "start": 1.0, "stop": 2.0}


def test_a_video_without_a_sound_track_lacks_that_modality(folder):
    report = run(folder, [Colour(), Loudness(), Letters()])
    assert any("b.mp4: it has no sound track, so no rows of 'loudness'" in str(p) for p in report.problems)
    source = open_data(load_data_config(report.config))
    assert source.dims == {"video": 3, "text": 2, "audio": 1}
    assert set(read(source, "b").modalities) == {"video", "text"}
    assert read(source, "a").modalities["audio"].whole.all()


def test_sound_that_few_files_have_is_not_a_modality(folder):
    write_video(folder / "videos" / "c.mp4", [GREEN] * 10)  # a alone has sound
    report = run(folder, [Colour(), Loudness(), Letters()])
    assert open_data(load_data_config(report.config)).dims == {"video": 3, "text": 2}
    notes = [str(problem) for problem in report.problems if problem.minor]
    assert "loudness: only 1 of 3 files have rows, so training does not use it" in notes


def test_modalities_by_name(folder):
    named = {"look": ["colour"], "noise": ["loudness"], "words": ["letters"]}
    report = run(folder, [Colour(), Loudness(), Letters(), Motion()], modalities=named)
    source = open_data(load_data_config(report.config))
    assert source.dims == {"look": 3, "words": 2, "noise": 1, "video": Motion().dim}
    manifest = json.loads((folder / "out" / "manifest.json").read_text())
    assert manifest["modalities"] == {
        "look": ["colour"],
        "noise": ["loudness"],
        "video": ["motion"],
        "words": ["letters"],
    }


def test_a_file_without_sound_is_decoded_once_and_reported_each_time(folder):
    (folder / "videos" / "bad.mp4").unlink()
    experts = [Colour(), Loudness(), Letters()]
    first = run(folder, experts)
    (silent,) = [problem for problem in first.problems if "no sound track" in problem.what]
    assert silent.minor  # it is used without sound
    again = run(folder, experts)
    assert (again.done, again.kept) == (0, first.done)
    assert silent in again.problems
    write_video(folder / "videos" / "b.mp4", [(9, 9, 9)] * 20, sound=np.ones(32000))  # now it has sound
    third = run(folder, experts)
    assert third.done == 1
    assert silent not in third.problems


@pytest.mark.parametrize("damaged", ["{", "[]", "{}", '{"recordings": {"a": 3}}', '{"recordings": []}'])
def test_a_damaged_manifest_is_reported_and_written_again(folder, damaged):
    (folder / "videos" / "bad.mp4").unlink()
    experts = [Colour(), Loudness()]
    manifest = run(folder, experts).out / "manifest.json"
    content = manifest.read_text()
    manifest.write_text(damaged)
    with pytest.warns(CrossCLRWarning, match=r"manifest\.json.*decoded again"):
        again = run(folder, experts)
    assert again.done == 1  # the one without sound: nobody knows that it has none
    assert manifest.read_text() == content


def test_pictures_against_sound_need_no_sentences(folder):
    (folder / "videos" / "bad.mp4").unlink()
    report = extract(folder / "videos", folder / "out", [Colour(), Loudness()])
    data = load_data_config(report.config)
    assert data.cut_text_by == "times"
    source = open_data(data)
    keys = [key for split in source.splits for key in keys_of(source, split)]
    assert sorted(keys) == ["a", "c"]  # b has no sound
    assert second(read(source, "a")).texts == ("a",)
    load_config(report.config)


def test_one_modality_alone_gives_features_and_no_config(folder):
    report = extract(folder / "videos", folder / "out", [Colour()])
    assert report.config is None
    assert (folder / "out" / "colour.h5").is_file()
    assert not (folder / "out" / "config.yaml").exists()


def test_splits_of_the_captions_go_before_drawn_ones(folder):
    content = {**CAPTIONS, "c.mp4": {"captions": ["green only"], "split": "val"}}
    (folder / "captions.json").write_text(json.dumps(content))
    report = run(folder, fractions={"train": 1.0})
    meta = json.loads((folder / "out" / "meta_all.json").read_text())
    assert {key: entry["split"] for key, entry in meta.items()} == {"a": "train", "b": "train", "c": "val"}
    assert yaml.safe_load(report.config.read_text())["splits"] == {"train": "train", "validate": "val", "test": None}


def test_strict_stops_and_keeps_what_is_finished(folder):
    with pytest.raises(StrictError, match=r"bad\.mp4: it cannot be opened"):
        run(folder, strict=True)
    assert not (folder / "out" / "meta_all.json").exists()
    (folder / "videos" / "bad.mp4").unlink()
    (folder / "captions.json").write_text(json.dumps({key: CAPTIONS[key] for key in ("a.mp4", "c.mp4")}))
    assert run(folder, strict=True).datapoints == 2


def test_nothing_is_done_twice(folder):
    run(folder)
    colour, letters = Colour(), Letters()
    report = run(folder, [colour, letters])
    assert (report.done, report.kept) == (0, 3)  # the damaged one is tried again, in vain
    assert "bad.mp4" in {problem.name for problem in report.problems}
    assert (colour.batches, letters.read) == ([], [])
    colour, motion = Colour(), Motion()
    report = run(folder, [colour, motion, Letters()])  # another expert comes
    assert (report.done, colour.batches) == (3, [])
    assert set(report.rows) == {"colour", "motion", "letters"}
    colour = Colour(rate=4.0)
    run(folder, [colour, Letters()])  # other settings: everything again
    assert sum(colour.batches) == 8 + 8 + 4
    write_video(folder / "videos" / "c.mp4", [BLUE] * 15)
    colour = Colour(rate=4.0)
    report = run(folder, [colour, Letters()])  # a file has changed
    assert sum(colour.batches) == 6
    source = open_data(load_data_config(report.config))
    assert first(read(source, "c")).whole.mean(0).argmax() == 2


def test_changed_sentences_are_read_again(folder):
    run(folder)
    (folder / "captions.json").write_text(json.dumps({**CAPTIONS, "c.mp4": "a meadow"}))
    letters = Letters()
    report = run(folder, [Colour(), letters])
    assert letters.read == ["a meadow"]
    assert second(read(open_data(load_data_config(report.config)), "c")).texts == ("a meadow",)


def test_interrupted_work_goes_on_without_redoing_a_finished_video(folder):
    class Tired(Colour):
        batch_size = 2

        def encode(self, prepared):
            if len(self.batches) == 3:
                raise KeyboardInterrupt
            return super().encode(prepared)

    tired = Tired()
    with pytest.raises(KeyboardInterrupt):
        run(folder, [tired, Letters()])
    assert sorted(path.name for path in (folder / "out").iterdir()) == [FOLDER]  # nothing looks finished
    rest = Colour()
    report = run(folder, [rest, Letters()])
    assert report.kept == 1  # a: its four rows were two batches
    assert sum(rest.batches) == 4 + 2
    whole = extract(folder / "videos", folder / "whole", [Colour(), Letters()], folder / "captions.json")
    for name in ("colour.h5", "letters.h5"):
        with h5py.File(report.out / name) as found, h5py.File(whole.out / name) as expected:
            assert sorted(found) == sorted(expected)
            for key in expected:
                np.testing.assert_array_equal(found[key][()], expected[key][()])
    assert (report.out / "meta_all.json").read_text() == (whole.out / "meta_all.json").read_text()


def test_a_killed_process_leaves_nothing_half_written(folder):
    code = (
        "import time\nfrom pathlib import Path\nfrom crossclr.extract import extract\n"
        "from tests.support.fake_experts import Colour, Letters\n"
        "class Slow(Colour):\n"
        "    batch_size = 2\n"
        "    def encode(self, prepared):\n        time.sleep(0.3)\n        return super().encode(prepared)\n"
        f"folder = Path({str(folder)!r})\n"
        "extract(folder / 'videos', folder / 'out', [Slow(), Letters()], folder / 'captions.json')\n"
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", code], cwd=root, env={**os.environ, "OMP_NUM_THREADS": "1"})
    parts = folder / "out" / FOLDER / "colour"
    deadline = time.monotonic() + 60
    while not (parts.is_dir() and list(parts.glob("*.npz"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert list(parts.glob("*.npz"))
    assert not (folder / "out" / "meta_all.json").exists()
    assert not list((folder / "out").glob("*.h5"))
    report = run(folder)
    assert report.kept >= 1
    assert report.datapoints == 3


def test_an_output_file_that_was_cut_off_is_made_again(folder):
    run(folder)
    path = folder / "out" / "colour.h5"
    path.write_bytes(path.read_bytes()[:500])
    colour = Colour()
    report = run(folder, [colour, Letters()])
    assert sum(colour.batches) == 10
    assert not check_data(load_data_config(report.config)).faults


def test_faults_that_stop_everything(folder):
    with pytest.raises(ValueError, match="needs sentences"):
        extract(folder / "videos", folder / "out", [Colour(), Letters()])
    with pytest.raises(ExpertError, match="at least one"):
        extract(folder / "videos", folder / "out", [])
    with pytest.raises(ValueError, match="stored as float16 or float32"):
        Settings(stored="int8")

    class Large(Colour):
        def encode(self, prepared):
            return super().encode(prepared) * 1e6

    class Broken(Colour):
        def encode(self, prepared):
            return super().encode(prepared) * np.nan

    with pytest.raises(ExpertError, match="--dtype float32"):
        run(folder, [Large(), Letters()])
    with pytest.raises(ExpertError, match="NaN"):
        run(folder, [Broken(), Letters()])
    assert run(folder, [Large(), Letters()], stored="float32").datapoints == 3
    for video in (folder / "videos").iterdir():
        video.write_bytes(b"noise")
    with pytest.raises(ValueError, match=r"nothing could be extracted \(a\.mp4"):
        run(folder, out="other")


def test_several_sentences_of_whole_files_are_written_as_arrays_too(folder):
    captions = {
        "a.mp4": ["red first", "green at last", "two colours"],
        "b.mp4": ["blue"],
        "c.mp4": ["green", "a meadow"],
    }
    (folder / "captions.json").write_text(json.dumps(captions))
    (folder / "videos" / "bad.mp4").unlink()
    report = run(folder, [Colour(), Loudness(), Letters()], fractions={"train": 1.0})
    config = load_config(report.config)
    assert config.data.kind == "arrays"
    source = open_data(config.data)
    sample = read(source, "a")
    words = sample.modalities["text"]
    assert (len(first(sample).clips), words.texts) == (1, ("red first", "green at last", "two colours"))
    assert [len(sentence) for sentence in words.clips] == [2, 3, 2]
    assert first(sample).clips[0].shape == (4, 3)
    assert set(read(source, "b").modalities) == {"video", "text"}  # it has no sound
    assert not check_data(config.data).faults
    table = json.loads((folder / "out" / "media.json").read_text())
    assert sorted(table) == ["a", "b", "c"]


def test_long_texts_are_counted_also_when_their_rows_were_finished_before(folder):
    class Short(Letters):
        def long_texts(self, paragraphs):
            texts = [text for paragraph in paragraphs for text in paragraph]
            return LongTexts(sum(len(text.split()) > 2 for text in texts), len(texts), 2, "kept")

    for _ in range(2):
        report = run(folder, [Colour(), Short()])
        assert str(report.long_texts["letters"]) == "1 of 4 texts have more than 2 tokens and were kept"
    manifest = json.loads((report.out / "manifest.json").read_text())
    assert manifest["long_texts"]["letters"]["count"] == 1
    assert run(folder).long_texts == {}
