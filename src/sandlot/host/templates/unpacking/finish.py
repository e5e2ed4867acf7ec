"""What a root must have before a session can stand on it, whatever its maker thought of."""

import errno
import os
import posixpath
import stat
from contextlib import suppress

from sandlot.host.accounts import TEXT_BYTES_MAX, find_account
from sandlot.host.kernel import IN_ROOT, NO_MAGICLINKS, NO_XDEV, open_inside
from sandlot.host.templates.unpacking.refusal import Refused, shown

WORKSPACE = "/workspace"
_CONFINED = IN_ROOT | NO_MAGICLINKS | NO_XDEV
_MOUNT_POINTS = ("proc", "dev", "sys")
_HOSTS = b"127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n"


def make_ready(root: int, user: str, cwd: str, first_id: int = 0) -> str:
    """`first_id`: the number that user 0 of a session has on this disk, as the caller sees it. Gives the user, with
    names of groups made numbers. Raises Refused, OSError."""
    user, uid, gid = _resolve(root, user)
    for name in _MOUNT_POINTS:
        _real_directory(root, name, 0o755, first_id)
    with suppress(FileExistsError):
        os.mkdir("tmp", 0o700, dir_fd=root)
        _give(root, "tmp", 0o1777, first_id, first_id)
    with suppress(FileExistsError):
        os.mkdir("etc", 0o700, dir_fd=root)
        _give(root, "etc", 0o755, first_id, first_id)
    _write_hosts(root, first_id)
    for path in {cwd, WORKSPACE} if cwd else {WORKSPACE}:
        _make_path(root, path, first_id, first_id + uid, first_id + gid)
    return user


def _give(root: int, name: str, mode: int, uid: int, gid: int) -> None:
    os.chown(name, uid, gid, dir_fd=root, follow_symlinks=False)
    os.chmod(name, mode, dir_fd=root)


def _real_directory(root: int, name: str, mode: int, owner: int) -> None:
    """Something is mounted there before the session's root is the root: a link would lead out of it."""
    try:
        found = os.stat(name, dir_fd=root, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return
        os.unlink(name, dir_fd=root)
    except FileNotFoundError:
        pass
    os.mkdir(name, 0o700, dir_fd=root)
    _give(root, name, mode, owner, owner)


def _write_hosts(root: int, owner: int) -> None:
    """A root without names for itself is usual; what someone wrote stays."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(OSError):
        etc = open_inside(root, "etc", os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
        try:
            fd = os.open("hosts", flags, 0o644, dir_fd=etc)
            try:
                found = os.fstat(fd)
                if stat.S_ISREG(found.st_mode) and found.st_size == 0:
                    os.write(fd, _HOSTS)
                    os.fchown(fd, owner, owner)
                    os.fchmod(fd, 0o644)
            finally:
                os.close(fd)
        finally:
            os.close(etc)


def _make_path(root: int, path: str, owner: int, uid: int, gid: int) -> None:
    """A directory that is there stays as it is; one that is made belongs to who works in it."""
    parts = [part for part in posixpath.normpath(path).split("/") if part]
    for at in range(1, len(parts) + 1):
        here = "/".join(parts[:at])
        try:
            os.close(open_inside(root, here, os.O_PATH | os.O_DIRECTORY, _CONFINED))
            continue
        except FileNotFoundError:
            pass
        except OSError as error:
            raise Refused(
                f"{shown(path)} is to be the directory of commands, and cannot be: {error.strerror}"
            ) from error
        above = open_inside(root, "/".join(parts[: at - 1]) or ".", os.O_RDONLY | os.O_DIRECTORY, _CONFINED)
        try:
            os.mkdir(parts[at - 1], 0o700, dir_fd=above)
            is_last = at == len(parts)
            _give(above, parts[at - 1], 0o755, uid if is_last else owner, gid if is_last else owner)
        except FileExistsError as error:
            raise Refused(
                f"{shown(path)} is to be the directory of commands, and a link to nowhere is there"
            ) from error
        finally:
            os.close(above)


def _read(root: int, path: str) -> bytes:
    try:
        fd = open_inside(root, path, os.O_RDONLY | os.O_NONBLOCK, _CONFINED)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return b""
        raise
    try:
        return os.read(fd, TEXT_BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    finally:
        os.close(fd)


def _resolve(root: int, user: str) -> tuple[str, int, int]:
    """A guest knows names, numbers and two numbers; an image may also say the name of a group."""
    passwd, group = _read(root, "etc/passwd"), _read(root, "etc/group")
    who, colon, of_group = user.partition(":")
    found = find_account(who or "0", passwd, group)
    if found is None:
        raise Refused(f"commands are to run as {shown(user)}, and /etc/passwd knows nobody with that name")
    if not colon:
        return who or "0", found.uid, found.gid
    gid = _group_id(of_group, group)
    return f"{found.uid}:{gid}", found.uid, gid


def _group_id(name: str, group: bytes) -> int:
    if name.isascii() and name.isdigit() and int(name) <= 65535:
        return int(name)
    for line in group.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= 3 and fields[0] == os.fsencode(name) and fields[2].isdigit() and int(fields[2]) <= 65535:
            return int(fields[2])
    raise Refused(f"commands are to run in the group {shown(name)}, and /etc/group does not know it")
