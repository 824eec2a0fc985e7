import os
import re

import pytest
from pydantic import BaseModel

from crossclr.data import ArraysConfig, CootConfig, DataError, EmojiConfig, load_data_config
from crossclr.data.coot import guess_data_config
from crossclr.data.kinds import DataConfig, parse_data_config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "coot", "video": "v", "text": "t", "max_frame": 3}, r"coot\.max_frame: Extra inputs"),
        ({"kind": "coot", "text": "t"}, r"coot\.video: Field required"),
        (
            {"kind": "coot", "video": "v", "text": "t", "max_frames": 0},
            r"coot\.max_frames: .*greater than or equal to 1",
        ),
        ({"kind": "cot", "video": "v", "text": "t"}, "'coot', 'arrays', 'shards', 'emoji'"),
        (
            {"kind": "arrays", "modalities": {"video": {"value": "x"}, "text": {"values": "y"}}},
            r"arrays\.modalities\.video\.value",
        ),
        ({"kind": "arrays", "modalities": {"a/b": {"values": "x"}, "text": {"values": "y"}}}, "match pattern"),
        ({"kind": "arrays", "modalities": {"video": {"values": "x"}}}, "at least 2 items"),
        ({"kind": "emoji", "modalities": {"image": "apple", "text": "text"}}, r"emoji\.modalities\.image: "),
        ({}, "kind"),
    ],
)
def test_typing_errors_are_named(values, message):
    with pytest.raises(DataError, match=message):
        parse_data_config(values, "my.yaml")


@pytest.mark.parametrize("config", [CootConfig, ArraysConfig, EmojiConfig])
def test_every_field_has_a_sentence(config):
    for name, field in config.model_fields.items():
        assert field.description, name
        assert re.search(r"[.]$", field.description), name


def test_a_config_inside_another():
    class Run(BaseModel):
        data: DataConfig

    assert isinstance(Run(data={"kind": "emoji"}).data, EmojiConfig)
    coot = Run(data={"kind": "coot", "video": ["x", "y"], "text": "t"}).data
    assert coot.video == ["x", "y"]
    assert coot.text == ["t"]
    assert Run.model_validate(Run(data=coot).model_dump()).data == coot


def test_yaml_files(tmp_path):
    plain, run = tmp_path / "plain.yaml", tmp_path / "run.yaml"
    plain.write_text("kind: emoji\nmodalities: {noto: noto, twemoji: twemoji}\n")
    run.write_text("data: {kind: emoji, modalities: {noto: noto, twemoji: twemoji}}\nmodel: {}\n")
    assert (
        load_data_config(plain)
        == load_data_config(run)
        == EmojiConfig(modalities={"noto": "noto", "twemoji": "twemoji"})
    )
    plain.write_text("kind: [")
    with pytest.raises(DataError, match=r"plain\.yaml: cannot be read as YAML"):
        load_data_config(plain)
    with pytest.raises(DataError, match="absent"):
        load_data_config(tmp_path / "absent.yaml")


def test_where_files_are_looked_for(tmp_path, monkeypatch):
    shared, here = tmp_path / "shared", tmp_path / "here"
    for folder in (shared / "set", here / "set"):
        folder.mkdir(parents=True)
    (shared / "set" / "x.h5").touch()
    (here / "set" / "x.h5").touch()
    (here / "set" / "y.h5").touch()
    monkeypatch.chdir(here)
    monkeypatch.delenv("CROSSCLR_DATA", raising=False)

    def place(path, root="set"):
        return CootConfig(root=root, video="v", text="t").resolve(path, "video")

    assert place("x.h5") == here / "set" / "x.h5"
    monkeypatch.setenv("CROSSCLR_DATA", str(shared))
    assert place("x.h5") == shared / "set" / "x.h5"
    assert place("y.h5") == here / "set" / "y.h5"
    assert place("set/x.h5", root=None) == shared / "set" / "x.h5"
    assert place("x.h5", root=str(here / "set")) == here / "set" / "x.h5"
    assert place(str(here / "set" / "y.h5")) == here / "set" / "y.h5"
    with pytest.raises(DataError) as error:
        place("z.h5")
    for word in (str(shared / "set" / "z.h5"), str(here / "set" / "z.h5"), "data.video", "data.root", "CROSSCLR_DATA"):
        assert word in str(error.value)


def test_a_folder_in_coots_layout_is_recognised(coot, tmp_path_factory):
    config = guess_data_config(coot.path)
    assert (config.video, config.text) == (["video.h5"], ["text.h5"])
    assert config.root == os.path.realpath(coot.path)
    with pytest.raises(DataError, match="not in COOT's layout"):
        guess_data_config(tmp_path_factory.mktemp("empty"))
