"""What travels when a model is shared: safetensors, JSON, YAML and the model card; and what is refused on arrival."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from crossclr.errors import ReadError
from crossclr.storage import new_folder, write_file
from crossclr.storage.manifest import NAME, changes, seal, unlist
from crossclr.storage.reading import check_nesting, read_json_object
from crossclr.storage.yaml_files import MOST_VALUES, read_yaml
from crossclr.training.checkpoint import MODEL as WEIGHTS
from crossclr.training.config_files import dump_config
from crossclr.training.run_config import RunConfig
from crossclr.training.run_folder import CONFIG, DATA, ENVIRONMENT, MODEL, RESULTS, RunFolder

SHARED = (CONFIG, ENVIRONMENT, MODEL, DATA, RESULTS, "README.md", "results.svg", "space.json", "space.safetensors")
EDITABLE = ("README.md", "results.svg")  # the owner of a repository may edit its card
ESTIMATOR = "estimator.json"  # of `JointEmbedding.save`
FILES = frozenset([*SHARED, NAME, f"best/{WEIGHTS}", f"best/{NAME}", ESTIMATOR, WEIGHTS])
UNSAFE = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".py", ".so")  # may run code when they are read
PRIVATE = ("command", "launch", "platform")  # of the environment: names of folders and machines
MAX_FILES, MAX_BYTES, MAX_TEXT = 1000, 20 << 30, 64 << 20  # of a repository; of a file that is not safetensors


class SharingError(ReadError):
    """A repository or folder that cannot be shared or loaded."""


def write_shared(run: RunFolder[RunConfig], out: Path, name: str, use: str = "") -> None:
    """Write what others need of a run: weights, config, results and card, without folders and commands of yours."""
    if run.results is None:
        raise SharingError(f"{run.path} is not finished; resume it with: crossclr train --resume {run.path}")
    environment = read_json_object(run.path / ENVIRONMENT)
    data = run.config.data
    paths = _public_paths(data.model_dump(mode="json", by_alias=True), Path(getattr(data, "root", None) or "").name)
    config = run.config.model_copy(update={"data": type(data).model_validate(paths)})
    card = run.path / "README.md"
    use = use or f"\n```sh\ncrossclr pull {name}\n```\n"
    public = {
        ENVIRONMENT: json.dumps({key: value for key, value in environment.items() if key not in PRIVATE}, indent=2),
        CONFIG: dump_config(config),
        card.name: card.read_text(encoding="utf-8") + use if card.is_file() else use,
    }
    copy_shared(run.path, out, public)


def copy_shared(source: Path, out: Path, instead: Mapping[str, str] | None = None) -> None:
    """Copy the files that travel to a new folder, some with other content."""
    with new_folder(out) as folder:
        for name in sorted(FILES - {NAME, f"best/{NAME}"}):
            if name in (instead or {}) or (source / name).is_file():
                (folder / name).parent.mkdir(exist_ok=True)
                write_file(folder / name, (instead or {}).get(name) or (source / name).read_bytes())
        if (folder / "best").is_dir():
            seal(folder / "best")
    unlist(out, EDITABLE)


def check_files(files: Mapping[str, int], name: str, max_bytes: int = MAX_BYTES) -> None:
    """Refuse a repository by the names and sizes of its files, before anything is downloaded."""
    if len(files) > MAX_FILES:
        raise SharingError(f"{name} has {len(files):,} files; a shared model has at most {MAX_FILES:,}")
    for file in files:
        if ".." in PurePosixPath(file).parts or file.startswith("/") or re.search(r"[\\:\0]", file):
            raise SharingError(f"{name} has a file outside its folder, {file!r}; nothing was loaded")
        if file.lower().endswith(UNSAFE):
            raise SharingError(f"{name} has a file that can run code when it is read, {file!r}; nothing was loaded")
    wanted = {file: size for file, size in files.items() if file in FILES}
    if not {MODEL, ESTIMATOR} & wanted.keys():
        raise SharingError(f"{name} is not a model of crossclr: it has neither {MODEL} nor {ESTIMATOR}")
    for file, size in wanted.items():
        if size > MAX_TEXT and not file.endswith(".safetensors"):
            raise SharingError(f"{name}: {file} has {size:,} bytes; at most {MAX_TEXT:,} are loaded")
    if sum(wanted.values()) > max_bytes:
        raise SharingError(f"{name} has {sum(wanted.values()):,} bytes; at most {max_bytes:,} are loaded")


def check_content(folder: Path, name: str) -> None:
    """Refuse a folder whose files differ from their checksums, or whose config names code."""
    present = {file: (folder / file).stat().st_size for file in FILES if (folder / file).is_file()}
    check_files(present, name)
    for part in (folder, folder / "best"):
        if part.is_dir() and not (part / NAME).is_file():
            raise SharingError(f"{name}: {NAME} is missing, so the files cannot be checked")
        if part.is_dir() and (found := changes(part, everything=True)):
            raise SharingError(f"{name} is damaged: {'; '.join(found)}; get it again")
    for file in {CONFIG, ESTIMATOR} & present.keys():
        content = read_yaml(folder / file) if file == CONFIG else read_json_object(folder / file)
        check_nesting(content, folder / file, MOST_VALUES)
        if code := next(_code_names(content), None):
            raise SharingError(f"{name}: {file} names code, {code!r}; nothing was loaded")


def _code_names(value: Any) -> Iterator[str]:
    """The names of losses of your own, ``package.module:Class``, which would be imported."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if key in ("name", "loss") and isinstance(inner, str) and ":" in inner:
                yield inner
            yield from _code_names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _code_names(inner)


def _public_paths(value: Any, root: str) -> Any:
    """The section ``data`` of a config with paths that start at its root, or names of files, for absolute paths."""
    if isinstance(value, Mapping):
        return {key: _public_paths(inner, root) for key, inner in value.items()}
    if isinstance(value, list):
        return [_public_paths(inner, root) for inner in value]
    if not isinstance(value, str) or not Path(value).is_absolute():
        return value
    parts = Path(value).parts
    return str(Path(*parts[parts.index(root) + 1 :])) if root in parts[:-1] else parts[-1]
