"""Share a run by name through the hub of Hugging Face, and load it on another machine.

Only safetensors, JSON, YAML and the model card travel; whatever else a repository holds is not downloaded. See
`crossclr.training.shared_files` for what is refused.
"""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crossclr.errors import ReadError
from crossclr.extras import requires_extra
from crossclr.training.run_config import RunConfig
from crossclr.training.run_folder import MODEL, RunFolder
from crossclr.training.shared_files import (
    FILES,
    MAX_BYTES,
    SharingError,
    check_content,
    check_files,
    copy_shared,
    write_shared,
)


def push_folder(folder: Path, name: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a folder as the repository ``owner/name``, which is created if it does not exist; returns its address."""
    hub = _hub(token)
    _check_name(name)
    with _one_line(name):
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload with crossclr")
    return f"{hub.endpoint}/{name}"


def push_run(run: RunFolder[RunConfig], name: str, *, private: bool = False, token: str | None = None) -> str:
    """Upload a run; see `crossclr.Run.push_to_hub`."""
    with tempfile.TemporaryDirectory() as temporary:
        write_shared(run, Path(temporary) / "run", name)
        return push_folder(Path(temporary) / "run", name, private=private, token=token)


def fetch(name: str, *, revision: str | None = None, token: str | None = None, max_bytes: int = MAX_BYTES) -> Path:
    """A checked folder with a shared run or estimator.

    Args:
        name: a folder, which is used as it is, or ``owner/name`` on the hub, which is downloaded to the hub's cache.
        revision: a branch, a tag or a commit; default: the newest.
        token: an access token for a private repository.
        max_bytes: larger repositories are refused.

    Raises:
        SharingError: there is no such model, or it is damaged, foreign or malicious.
    """
    folder = Path(name)
    if not folder.is_dir():
        folder = _download(name, revision, token, max_bytes)
    check_content(folder, name)
    return folder


def pull_run(name: str, out: Path, *, revision: str | None = None, token: str | None = None) -> Path:
    """Copy a shared run from the hub or a folder to a run folder of your own; see `fetch`."""
    if out.exists():
        raise FileExistsError(f"{out} already exists; choose another --out")
    source = fetch(name, revision=revision, token=token)
    if not (source / MODEL).is_file():
        raise SharingError(f"{name} is an estimator; load it in Python: JointEmbedding.from_pretrained({name!r})")
    copy_shared(source, out)
    return out


def _hub(token: str | None) -> Any:
    with requires_extra("hub", "Sharing a model by name"):
        from huggingface_hub import HfApi
    return HfApi(os.environ.get("HF_ENDPOINT"), token=token)


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[\w.-]{1,96}/[\w.-]{1,96}", name) or ".." in name:
        raise SharingError(f"{name!r} is neither a folder nor a name on the hub, such as owner/name")


def _download(name: str, revision: str | None, token: str | None, max_bytes: int) -> Path:
    hub = _hub(token)
    _check_name(name)
    from huggingface_hub.errors import OfflineModeIsEnabled

    options: dict[str, Any] = {"revision": revision, "allow_patterns": sorted(FILES)}
    with _one_line(name):
        try:
            info = hub.model_info(name, revision=revision, files_metadata=True)
        except OfflineModeIsEnabled:
            return Path(hub.snapshot_download(name, local_files_only=True, **options))
        check_files({file.rfilename: file.size or 0 for file in info.siblings or []}, name, max_bytes)
        return Path(hub.snapshot_download(name, **options))


@contextmanager
def _one_line(name: str) -> Iterator[None]:
    """Turn what the library of the hub raises into one line."""
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except ReadError:
        raise
    except RepositoryNotFoundError as error:
        raise SharingError(f"the hub has no model {name!r}, or it is private; set HF_TOKEN to your token") from error
    except RevisionNotFoundError as error:
        raise SharingError(f"{name} has no such revision") from error
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "?")
        raise SharingError(f"the hub refused {name} (HTTP {status}); check the name and your token") from error
    except Exception as error:  # libraries of HTTP raise many kinds of error for a broken connection
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SharingError(f"{name} cannot be transferred ({reason[:200]}); check the connection") from error
