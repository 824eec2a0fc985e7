"""Files and folders that are complete or absent, their manifests, reading, leftovers of dead processes and locks.

This package lies below all others and imports none of them, not even PyTorch.
"""

from crossclr.storage.files import DiskFullError, check_free, naming_full_disk, new_file, sweep, write_file, write_json
from crossclr.storage.lock import FolderLock, LockedError
from crossclr.storage.manifest import complete_folder, new_folder, restore_folder

__all__ = [
    "DiskFullError",
    "FolderLock",
    "LockedError",
    "check_free",
    "complete_folder",
    "naming_full_disk",
    "new_file",
    "new_folder",
    "restore_folder",
    "sweep",
    "write_file",
    "write_json",
]
