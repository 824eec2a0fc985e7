import json
import shutil

import numpy as np
import pytest
import torch
import yaml

from crossclr import JointEmbedding, Run, api
from crossclr.cli import main
from crossclr.storage.manifest import seal
from crossclr.training.shared_files import SharingError
from crossclr.training.sharing import fetch, pull_run
from tests.support.fake_hub import running_hub
from tests.support.tiny_runs import write_config

NAME = "owner/model"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a closed form, whose config names a private folder."""
    folder = tmp_path_factory.mktemp("private-folder")
    hidden = np.random.default_rng(0).normal(size=(240, 4))
    config = write_config(folder, hidden, recipe="closed-form")
    return api.train(config, out=folder / "run")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    import huggingface_hub.constants

    with running_hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_XET_CACHE", str(tmp_path / "xet"))
        yield running


@pytest.fixture
def shared(hub, run):
    """The hub with the run."""
    run.push_to_hub(NAME, token="secret")
    return hub


def test_a_run_that_was_pulled_gives_equal_vectors(shared, run, tmp_path):
    pulled = Run.open(pull_run(NAME, tmp_path / "pulled"))
    rows = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    before, after = run.load_space(), pulled.load_space()
    assert torch.equal(before.encode_queries("text", rows), after.encode_queries("text", rows))
    assert torch.equal(before.encode_items("text", rows), after.encode_items("text", rows))
    assert pulled.digest() == run.digest()


def test_a_run_that_was_pulled_is_evaluated_with_the_data_of_its_environment(shared, run, tmp_path, monkeypatch):
    pulled = pull_run(NAME, tmp_path / "pulled")
    elsewhere = tmp_path / "elsewhere" / run.path.parent.name
    shutil.copytree(run.path.parent, elsewhere)
    monkeypatch.setenv("CROSSCLR_DATA", str(elsewhere.parent))
    ours = api.evaluate([run.path], baseline=False, semantics=False).runs["run"]
    assert api.evaluate([pulled], baseline=False, semantics=False).runs["pulled"] == ours


def test_nothing_private_and_no_state_of_training_is_shared(shared, run):
    files = shared.repositories[NAME]
    assert set(files) == {
        "README.md", "checksums.json", "config.yaml", "data.json", "environment.json", "model.json", "results.json",
        "space.json", "space.safetensors",
    } | {name for name in files if name.startswith("best/")}  # fmt: skip
    text = b"".join(content for name, content in files.items() if not name.endswith(".safetensors"))
    assert str(run.path.parent.parent).encode() not in text
    assert "command" not in json.loads(files["environment.json"])
    assert yaml.safe_load(files["config.yaml"])["data"]["root"] == run.path.parent.name


def test_the_card_has_the_metadata_of_the_hub(shared, run):
    card = shared.repositories[NAME]["README.md"].decode()
    found = yaml.safe_load(card.split("---")[1])
    assert found["library_name"] == "crossclr"
    metrics = {one["name"]: one["value"] for one in found["model-index"][0]["results"][0]["metrics"]}
    expected = run.results["test"]["clip/text->video"]["R@1"]
    assert metrics["R@1, text → video"] == pytest.approx(expected, abs=0.01)
    assert f"crossclr pull {NAME}" in card


def test_the_card_may_be_edited_on_the_hub(shared, tmp_path):
    shared.repositories[NAME]["README.md"] = b"# mine"
    assert (pull_run(NAME, tmp_path / "pulled") / "README.md").read_bytes() == b"# mine"


def test_a_folder_works_like_a_name(shared, run, tmp_path):
    pull_run(NAME, tmp_path / "first")
    second = pull_run(str(tmp_path / "first"), tmp_path / "second")
    assert Run.open(second).digest() == run.digest()


def test_what_was_downloaded_loads_offline(shared, run, monkeypatch):
    import huggingface_hub.constants

    fetch(NAME)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert Run.open(fetch(NAME)).digest() == run.digest()


def test_an_estimator_is_shared_by_name(hub, tmp_path):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(120, 4))
    video, text = hidden @ rng.normal(size=(4, 12)), hidden @ rng.normal(size=(4, 9))
    joint = JointEmbedding(recipe="closed-form", verbose=False).fit({"video": video, "text": text})
    joint.push_to_hub("owner/estimator")
    loaded = JointEmbedding.from_pretrained("owner/estimator")
    np.testing.assert_array_equal(joint.encode_queries(text=text), loaded.encode_queries(text=text))
    with pytest.raises(SharingError, match=r"JointEmbedding.from_pretrained\('owner/estimator'\)"):
        pull_run("owner/estimator", tmp_path / "pulled")


def test_an_estimator_is_made_of_a_shared_run(shared, run):
    rows = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    loaded = JointEmbedding.from_pretrained(NAME)
    np.testing.assert_array_equal(
        loaded.encode_queries(text=rows), run.load_space().encode_queries("text", torch.tensor(rows))
    )


REFUSED = {
    "pickle": ({"model.pkl": b"cos\nsystem\n(S'touch owned'\ntR."}, "can run code when it is read, 'model.pkl'"),
    "code": ({"modeling.py": b"import os"}, "can run code when it is read, 'modeling.py'"),
    "parent": ({"../../outside.json": b"{}"}, "outside its folder, '../../outside.json'"),
    "absolute": ({"/etc/passwd": b"x"}, "outside its folder, '/etc/passwd'"),
    "windows": ({"C:\\outside.json": b"{}"}, "outside its folder"),
    "many": ({f"{number}.txt": b"" for number in range(1001)}, "files; a shared model has at most 1,000"),
    "damaged": ({"space.safetensors": b"x" * 1000}, "is damaged: space.safetensors was changed"),
    "text": ({"results.json": b"{"}, "is damaged: results.json was changed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_malicious_or_damaged_repository_is_refused_with_one_line(shared, tmp_path, case):
    files, message = REFUSED[case]
    shared.repositories[NAME].update(files)
    shared.requests.clear()
    with pytest.raises(SharingError) as error:
        pull_run(NAME, tmp_path / "pulled")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob("pulled*"))
    if case not in ("damaged", "text"):
        assert not [line for line in shared.requests if "/resolve/" in line], "nothing may be downloaded"


def test_what_is_too_large_is_not_downloaded(shared):
    shared.requests.clear()
    shared.sizes[NAME, "space.safetensors"] = 1 << 40
    with pytest.raises(SharingError, match=r"owner/model has 1,099,\S+ bytes; at most 21,474,836,480 are loaded"):
        fetch(NAME)
    shared.sizes[NAME, "data.json"] = 1 << 30
    with pytest.raises(SharingError, match=r"data.json has 1,073,741,824 bytes; at most 67,108,864"):
        fetch(NAME)
    assert not [line for line in shared.requests if "/resolve/" in line]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_config_that_names_code_is_refused(shared, tmp_path, sealed):
    """With and without right checksums: whoever makes a repository can write those too."""
    folder = pull_run(NAME, tmp_path / "pulled")
    text = (folder / "config.yaml").read_text().replace("name: clip", "name: antigravity:Loss")
    (folder / "config.yaml").write_text(text)
    if sealed:
        seal(folder)
    with pytest.raises(SharingError, match="names code, 'antigravity:Loss'" if sealed else "config.yaml was changed"):
        fetch(str(folder))


def test_other_models_and_names_are_refused(hub, tmp_path):
    hub.repositories["owner/bert"] = {"config.json": b"{}", "model.safetensors": b""}
    with pytest.raises(SharingError, match=r"owner/bert is not a model of crossclr: it has neither model.json nor"):
        fetch("owner/bert")
    with pytest.raises(SharingError, match="the hub has no model 'owner/nothing'"):
        fetch("owner/nothing")
    for name in ("nothing", "a/b/c", "../up", "owner/..", str(tmp_path / "absent")):
        with pytest.raises(SharingError, match="is neither a folder nor a name on the hub"):
            fetch(name)


def test_a_hub_that_does_not_answer_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    with pytest.raises(SharingError, match=r"owner/model cannot be transferred \(.*\); check the connection"):
        fetch(NAME)


def test_an_unfinished_run_is_not_shared(run, hub, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run.path, copy)
    (copy / "results.json").unlink()
    seal(copy, ["results.json"])
    with pytest.raises(SharingError, match="is not finished; resume it with"):
        Run.open(copy).push_to_hub(NAME)
    assert not hub.requests


def test_the_commands(hub, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments in (["push", str(run.path), "me/mine"], ["pull", "me/mine"]):
        monkeypatch.setattr("sys.argv", ["crossclr", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        assert not stopped.value.code
    assert f"{hub.address}/me/mine" in capsys.readouterr().out
    assert Run.open(tmp_path / "runs" / "mine").digest() == run.digest()
