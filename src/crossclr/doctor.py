"""What is installed, what is missing and how to get it: the findings of `crossclr doctor`."""

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import Requirement

EXTRAS = {
    "train": "HDF5 files, several devices, TensorBoard",
    "experts": "features from videos, images, sound and text",
    "search": "index, search and serve",
    "captions": "caption metrics",
    "milvus": "an index in Milvus",
    "export": "ONNX encoders",
    "ray": "embedding on a cluster",
    "report": "experiments and the HTML report",
    "hub": "sharing runs by name",
    "sentence-transformers": "export to sentence-transformers",
    "mteb": "benchmarks of MTEB",
}
"""The extras that a user may want, and what each is for."""

WITHOUT_DEPENDENCIES = {
    "openwakeword": "0.5.1",
}
"""Packages that bring weights, with the version to install. They require packages that they do not need and that are
not available everywhere, so no extra can name them."""

_MODULES = {"pyyaml": "yaml", "scikit-learn": "sklearn"}  # where the module is not named like its package


@dataclass(frozen=True)
class Package:
    """One required package."""

    name: str  # its name on PyPI
    version: str  # the installed version; empty if it is not installed
    problem: str  # why it cannot be used; empty if it can


@dataclass(frozen=True)
class Extra:
    """The packages of one extra."""

    name: str
    purpose: str
    packages: tuple[Package, ...]

    @property
    def problems(self) -> list[str]:
        """One text for each package that cannot be used."""
        return [f"{package.name}: {package.problem}" for package in self.packages if package.problem]


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `crossclr doctor` reports."""

    system: dict[str, str]  # Python, operating system, cores and GPUs, by name
    core: tuple[Package, ...]  # the packages that every command needs
    extras: tuple[Extra, ...]  # the packages that some commands need
    bare: tuple[Package, ...]  # the packages of `WITHOUT_DEPENDENCIES`
    weights: dict[str, str]  # for each expert, whether it works offline

    @property
    def healthy(self) -> bool:
        """Whether every core package can be used."""
        return not any(package.problem for package in self.core)

    def commands(self) -> Iterator[str]:
        """The commands that install what is missing."""
        if not self.healthy:
            yield "pip install --force-reinstall crossclr"
        missing = [extra.name for extra in self.extras if extra.problems]
        if missing:
            yield f"pip install 'crossclr[{','.join(missing)}]'"
        if any(package.problem for package in self.bare):
            yield "crossclr doctor --fix"


def diagnose() -> Diagnosis:
    """Look at this installation and machine.

    Example:
        >>> found = diagnose()
        >>> found.healthy, [extra.name for extra in found.extras][:2]
        (True, ['train', 'experts'])
    """
    core = tuple(_imported(_installed(requirement)) for requirement in _requirements())
    extras = tuple(
        Extra(name, purpose, tuple(map(_installed, _requirements(name)))) for name, purpose in EXTRAS.items()
    )
    bare = tuple(
        _installed(Requirement(f"{name}=={version}" if version else name))
        for name, version in WITHOUT_DEPENDENCIES.items()
    )
    usable = not any(package.problem for package in core)
    return Diagnosis(_system(), core, extras, bare, _weights() if usable else {})


def install_without_dependencies(packages: tuple[Package, ...]) -> None:
    """Install the packages of `WITHOUT_DEPENDENCIES` that cannot be used, without what they depend on."""
    wanted = [
        package.name + (f"=={version}" if (version := WITHOUT_DEPENDENCIES[package.name]) else "")
        for package in packages
        if package.problem
    ]
    if wanted:
        done = subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", *wanted], check=False)  # noqa: S603
        if done.returncode:
            raise OSError(f"pip install --no-deps {' '.join(wanted)} failed with exit code {done.returncode}")


def _requirements(extra: str = "") -> Iterator[Requirement]:
    """What the package metadata requires: for the core, or on top of it for an extra."""
    for line in metadata.requires("crossclr") or ():
        requirement = Requirement(line)
        for_core = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        for_extra = requirement.marker is not None and requirement.marker.evaluate({"extra": extra})
        if for_core if not extra else for_extra and not for_core:
            yield requirement


def _installed(requirement: Requirement) -> Package:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Package(requirement.name, "", "not installed")
    fits = requirement.specifier.contains(version, prereleases=True)
    return Package(requirement.name, version, "" if fits else f"{version} found, {requirement.specifier} required")


def _imported(package: Package) -> Package:
    """The package, with a problem if importing it fails."""
    if package.problem:
        return package
    try:
        importlib.import_module(_MODULES.get(package.name.lower(), package.name.replace("-", "_")))
    except Exception as error:  # a broken package may raise anything; all of it is a finding
        return Package(package.name, package.version, f"cannot be imported ({type(error).__name__}: {error})")
    return package


def _system() -> dict[str, str]:
    system = {
        "python": f"{platform.python_version()} ({sys.executable})",
        "system": f"{platform.system()} {platform.machine()}",
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "java": shutil.which("java") or "not found (only METEOR, a caption metric, needs it)",
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        system["gpu"] = ", ".join(gpus) or "none found"
    return system


def _weights() -> dict[str, str]:
    from crossclr.extract.registry import expert_names, works_offline

    return {name: works_offline(name) for name in expert_names()}
