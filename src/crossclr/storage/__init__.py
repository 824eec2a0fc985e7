"""Files and folders that are complete or absent, their manifests, reading, leftovers of dead processes and locks.

This package lies below all others and imports none of them, not even PyTorch.
"""

from crossclr.storage.atomic import new_file, write_file, write_json
from crossclr.storage.atomic_folders import complete_folder, new_folder, restore_folder
from crossclr.storage.disk_full import DiskFullError, naming_full_disk
from crossclr.storage.leftovers import sweep
from crossclr.storage.lock import FolderLock, LockedError

__all__ = [
    "DiskFullError",
    "FolderLock",
    "LockedError",
    "complete_folder",
    "naming_full_disk",
    "new_file",
    "new_folder",
    "restore_folder",
    "sweep",
    "write_file",
    "write_json",
]
