"""What a filesystem says of itself, for storages that have no pool of their own."""

import os
from pathlib import Path

from sandlot.model import PoolSpace, Share, StorageHealth
from sandlot.model.health import ONLINE


def filesystem_health(path: Path) -> StorageHealth:
    """Blocking. Raises OSError."""
    told = os.statvfs(path)
    allocated = (told.f_blocks - told.f_bfree) * told.f_frsize
    # What the filesystem keeps back counts as neither used nor free, as `df` has it.
    free = told.f_bavail * told.f_frsize
    capacity = allocated / (allocated + free) if allocated + free else 0.0
    inodes = Share(told.f_files - told.f_ffree, told.f_files)  # both 0 where inodes are made as they are needed
    return StorageHealth(ONLINE, PoolSpace(told.f_blocks * told.f_frsize, allocated, free, capacity), inodes)
