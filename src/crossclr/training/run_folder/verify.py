"""Compare a run folder, an index or an export with its manifests, and a run with its data."""

from dataclasses import dataclass
from pathlib import Path

from crossclr.features.check.fingerprint import data_changes, fingerprint
from crossclr.storage import write_json
from crossclr.storage.checksums import NAME, changes, renew, seal, sealed_folders
from crossclr.storage.json_files import read_json_object
from crossclr.storage.read_error import ReadError
from crossclr.training.run_folder.checkpoint import MODEL as WEIGHTS
from crossclr.training.run_folder.checkpoint import REST, TENSORS
from crossclr.training.run_folder.folder import CONFIG, DATA, ENVIRONMENT, MODEL, RESULTS
from crossclr.training.run_folder.run import SPACE, SPACE_TENSORS, Run

LISTED = [CONFIG, ENVIRONMENT, MODEL, DATA, RESULTS, SPACE, SPACE_TENSORS, WEIGHTS, TENSORS, REST]


@dataclass(frozen=True)
class Verified:
    """What `verify` found."""

    folders: int  # folders that were compared
    differences: list[str]  # what differs, in words


def verify(path: str | Path, *, accept: bool = False) -> Verified:
    """Compare every file with its checksum, and the data of a run with its fingerprint.

    Args:
        path: a run folder, a folder of runs, an index or an export.
        accept: take what is found as the new truth, after you changed it on purpose.
    """
    path = Path(path)
    if accept:
        _seal_runs(path)
    folders = sealed_folders(path)
    if not folders:
        raise FileNotFoundError(f"{path} has no {NAME}, so there is nothing to verify; name a run folder or an index")
    differences = []
    for folder in folders:
        differences += [f"{folder}: {change}" for change in changes(folder, everything=True)]
        if accept:
            renew(folder)
        if (folder / DATA).is_file() and (folder / CONFIG).is_file():
            differences += [f"data of {folder}: {change}" for change in _compare_data(folder, accept)]
    return Verified(len(folders), differences)


def _seal_runs(path: Path) -> None:
    """Write the manifests that run folders and checkpoints lack."""
    for folder in sorted(found.parent for name in (CONFIG, WEIGHTS) for found in path.rglob(name)):
        if not (folder / NAME).exists():
            seal(folder, LISTED)


def _compare_data(folder: Path, accept: bool) -> list[str]:
    try:
        source = Run.open(folder).open_source(check=False)
        before = read_json_object(folder / DATA)
        found = data_changes(before, source)
        if accept and found:
            write_json(folder / DATA, fingerprint(source, [split for split in before if split in source.splits]))
            renew(folder)
    except (ReadError, OSError) as error:
        return [str(error)]
    return found
