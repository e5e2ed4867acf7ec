"""What a filesystem says of itself, for storages that have no pool of their own."""

import asyncio
import os
from pathlib import Path

from sandlot.host.kernel import sync_filesystem
from sandlot.model import DeadlineExceeded, PoolSpace, Share, StorageHealth, Unavailable, limits
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


def used_bytes(path: Path) -> int:
    """Of a tree, on disk. Blocking; what cannot be looked at, or goes meanwhile, is left out."""
    total = 0
    pending = [str(path)]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue  # removed by its session meanwhile
        for entry in entries:
            try:
                total += entry.stat(follow_symlinks=False).st_blocks * 512
            except OSError:
                continue
            if entry.is_dir(follow_symlinks=False):
                pending.append(entry.path)
    return total


async def sync(path: Path) -> None:
    """Everything that was written to the filesystem of a path is on disk. Raises Unavailable, DeadlineExceeded."""
    try:
        async with asyncio.timeout(limits.SYNC_DEADLINE_S):
            await asyncio.to_thread(sync_filesystem, path)
    except TimeoutError:
        raise DeadlineExceeded(f"the disk took longer than {limits.SYNC_DEADLINE_S:g} s", limit="sync") from None
    except OSError as error:
        raise Unavailable(f"files cannot be brought to disk: {error.strerror}") from error
