"""Packages offer their names without importing them; importing the top package loads nothing heavy."""

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import crossclr
from tests.support.commands import ENVIRONMENT

ROOT = Path(crossclr.__file__).parent
PACKAGES = ["crossclr", *sorted(f"crossclr.{stub.parent.name}" for stub in ROOT.glob("*/__init__.pyi"))]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_name_of_a_package_can_be_imported(name):
    package = importlib.import_module(name)
    assert package.__all__
    assert set(package.__all__) <= set(dir(package))
    for exported in package.__all__:
        assert getattr(package, exported) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'no_such_name'"):
        _ = package.no_such_name


@pytest.mark.parametrize("name", PACKAGES)
def test_no_name_is_also_a_module(name):
    """A module of the same name would take the place of what is exported as soon as somebody imports it."""
    package = importlib.import_module(name)
    assert not {module.name for module in pkgutil.iter_modules(package.__path__)} & set(package.__all__)


def test_the_packages_themselves_load_nothing_heavy():
    code = (
        f"import sys, importlib\nfor name in {PACKAGES}:\n    importlib.import_module(name)\n"
        "import crossclr\nassert crossclr.__version__\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'scipy', 'sklearn', 'h5py', 'pyarrow'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_top_package_reaches_its_subpackages_and_lists_them():
    names = {"__version__", "errors", *(name.partition(".")[2] for name in PACKAGES[1:])}
    code = (
        "import crossclr\nassert crossclr.losses.CLIP and crossclr.errors.CrossCLRError\n"
        f"assert {names} <= set(dir(crossclr))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
