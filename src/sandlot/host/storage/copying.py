"""A tree copied whole: owners, modes, times, links among its files, extended attributes, and what overlay marks with
devices and attributes. Blocking, and by descriptor: nothing in it is followed."""

import os
import stat
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

_PIECE_BYTES = 8 << 20
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def copy_tree(source: Path, target: Path) -> None:
    """Into a directory that is there and empty. Raises OSError."""
    links: dict[tuple[int, int], Path] = {}
    pending = [(source, target)]
    while pending:
        folder, copy = pending.pop()
        here, there = os.open(folder, _DIRECTORY), os.open(copy, _DIRECTORY)
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    _copy_entry(here, there, entry, links, copy)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((folder / entry.name, copy / entry.name))
            copy_attributes(here, there, os.fstat(here))
        finally:
            os.close(here)
            os.close(there)
    # Making entries changed the times of their directories.
    _copy_directory_times(source, target)


def _copy_entry(
    here: int, there: int, entry: os.DirEntry[str], links: dict[tuple[int, int], Path], folder: Path
) -> None:
    found = entry.stat(follow_symlinks=False)
    key = (found.st_dev, found.st_ino)
    if found.st_nlink > 1 and key in links and not stat.S_ISDIR(found.st_mode):
        os.link(links[key], entry.name, dst_dir_fd=there, follow_symlinks=False)
        return
    if stat.S_ISREG(found.st_mode):
        _copy_file(here, there, entry.name, found)
    elif stat.S_ISDIR(found.st_mode):
        os.mkdir(entry.name, 0o700, dir_fd=there)
    elif stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(entry.name, dir_fd=here), entry.name, dir_fd=there)
        _finish_special(here, there, entry.name, found)
    else:
        # Pipes, sockets, devices; a whiteout of overlay is a device too.
        os.mknod(entry.name, found.st_mode, found.st_rdev, dir_fd=there)
        _finish_special(here, there, entry.name, found)
    if found.st_nlink > 1:
        links[key] = folder / entry.name


def _copy_file(here: int, there: int, name: str, found: os.stat_result) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=here)
    try:
        target = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=there)
        try:
            for _piece in copy_data(source, target, found.st_size):
                pass
            copy_attributes(source, target, found)
        finally:
            os.close(target)
    finally:
        os.close(source)


def copy_data(source: int, target: int, size: int) -> Generator[None]:
    """Piece by piece. Holes stay holes."""
    os.ftruncate(target, size)
    at = 0
    while at < size:
        try:
            begin = os.lseek(source, at, os.SEEK_DATA)
        except OSError:
            return  # nothing but a hole from here on
        end = os.lseek(source, begin, os.SEEK_HOLE)
        while begin < end:
            count = os.copy_file_range(source, target, min(_PIECE_BYTES, end - begin), begin, begin)
            if count == 0:
                return
            begin += count
            yield
        at = end


def copy_attributes(
    source: int | str, target: int, found: os.stat_result, without: frozenset[str] = frozenset()
) -> None:
    for name in os.listxattr(source):
        if name not in without:
            os.setxattr(target, name, os.getxattr(source, name))
    os.fchown(target, found.st_uid, found.st_gid)
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    # File capabilities go when the owner changes.
    with suppress(OSError):
        os.setxattr(target, "security.capability", os.getxattr(source, "security.capability"))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _finish_special(here: int, there: int, name: str, found: os.stat_result) -> None:
    os.chown(name, found.st_uid, found.st_gid, dir_fd=there, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=there)
    # Afterwards: file capabilities go when the owner changes.
    source, target = f"/proc/self/fd/{here}/{name}", f"/proc/self/fd/{there}/{name}"
    for attribute in os.listxattr(source, follow_symlinks=False):
        value = os.getxattr(source, attribute, follow_symlinks=False)
        os.setxattr(target, attribute, value, follow_symlinks=False)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=there, follow_symlinks=False)


def _copy_directory_times(source: Path, target: Path) -> None:
    for folder, _names, _files in os.walk(source):
        found = os.stat(folder)
        os.utime(target / Path(folder).relative_to(source), ns=(found.st_atime_ns, found.st_mtime_ns))
