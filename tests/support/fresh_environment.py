"""A new virtual environment outside the project: the built wheel, and only the packages that it requires.

The packages are linked from the environment of the tests, so nothing is downloaded. What the metadata of the wheel does
not name is absent, as after `pip install`.
"""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    pip("wheel", ROOT, "--no-deps", "--no-build-isolation", "--quiet", "--wheel-dir", folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


class FreshEnvironment:
    """A virtual environment with a wheel.

    Args:
        folder: where to create it.
        wheel: the wheel to install.
        extras: its extras to install.
        bare: further packages, without their requirements.
    """

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str] = (), bare: Iterable[str] = ()) -> None:
        venv.create(folder, with_pip=False)
        self.python = folder / "bin" / "python"
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        self.packages = folder / "lib" / version / "site-packages"
        for found in {*required(wheel, extras), *map(canonicalize_name, bare)}:
            self._link(found)
        pip("--python", self.python, "install", "--quiet", "--no-deps", "--no-index", wheel)

    def _link(self, name: str) -> None:
        distribution = metadata.distribution(name)
        site = Path(sysconfig.get_path("purelib"))
        tops = {Path(str(file)).parts[0] for file in distribution.files or ()}
        for top in tops - {"..", "__pycache__"}:
            if not (self.packages / top).exists():
                (self.packages / top).symlink_to(site / top)

    def run(self, *words: object, folder: Path, seconds: float = 900) -> subprocess.CompletedProcess[str]:
        """Run ``crossclr WORDS`` in a folder."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}
        command = [str(self.python.parent / "crossclr"), *map(str, words)]
        return subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=seconds
        )


def required(wheel: Path, extras: Iterable[str]) -> set[str]:
    """The installed packages that a wheel with extras needs, directly or through others."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        own = HeaderParser().parsestr(archive.read(name).decode())
    lines, wanted = own.get_all("Requires-Dist") or [], [("", extra) for extra in ("", *extras)]
    found: set[tuple[str, str]] = set()
    while wanted:
        package, extra = wanted.pop()
        if (package, extra) in found:
            continue
        found.add((package, extra))
        listed = lines if not package or package == "crossclr" else metadata.distribution(package).requires or []
        wanted += list(_next(listed, extra))
    return {package for package, _ in found} - {"", "crossclr"}


def _next(lines: Iterable[str], extra: str) -> Iterator[tuple[str, str]]:
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            for inner in ("", *requirement.extras):
                yield canonicalize_name(requirement.name), inner


def pip(*words: object) -> None:
    """Run pip of the tests' environment; its errors are shown."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
