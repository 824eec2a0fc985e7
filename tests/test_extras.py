"""A missing optional package is one line with the command that installs it."""

import sys

import pytest

from crossclr.cli import main
from crossclr.extras import MissingExtraError, requires_extra
from tests.support.tiny_runs import write_coot


def test_the_message_names_the_package_and_the_command():
    with (
        pytest.raises(MissingExtraError, match=r"^Reading needs the package 'no_such'.*pip install 'crossclr\[x\]'$"),
        requires_extra("x", "Reading"),
    ):
        import no_such  # noqa: F401


def test_an_inner_message_stays_and_other_errors_pass():
    with pytest.raises(MissingExtraError, match="inner"), requires_extra("x", "outer"), requires_extra("y", "inner"):
        import no_such  # noqa: F401
    with pytest.raises(KeyError), requires_extra("x", "Reading"):
        raise KeyError


def test_a_package_that_is_too_old_is_not_called_absent():
    with pytest.raises(MissingExtraError, match="cannot import name"), requires_extra("x", "Reading"):
        from json import no_such_name  # noqa: F401


def test_a_missing_core_package_is_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "crossclr.api", raising=False)
    monkeypatch.setattr(sys, "argv", ["crossclr", "train", "emoji"])
    with pytest.raises(SystemExit):
        main()
    assert "'torch' is not installed. Run: pip install" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("av", "extract"),
        ("transformers", "extract"),
        ("efficientnet_lite_pytorch", "extract"),
        ("transformers", "extract --text-only"),
    ],
)
def test_commands_say_how_to_install_the_extra(package, command, tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL", reason="needs crossclr[experts]")
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "a.mp4").write_bytes(b"never opened")
    (tmp_path / "captions.json").write_text('{"a": {"captions": ["a cat"]}}')
    words = {
        "extract": ["extract", "clips", "--captions", "captions.json", "--out", "out"],
        "extract --text-only": ["extract", "captions.json", "--text-only", "--out", "out"],
    }[command]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(sys, "argv", ["crossclr", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code in (1, 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert repr(package) in line
    assert "pip install 'crossclr[experts]'" in line


def test_hdf5_is_read_by_the_extra_for_training(tmp_path, monkeypatch, capsys):
    write_coot(tmp_path)
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.setattr(sys, "argv", ["crossclr", "check", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "pip install 'crossclr[train]'" in capsys.readouterr().err
