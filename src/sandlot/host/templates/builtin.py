"""The built-in template: the machine's own /usr, with a clean /etc and a working package database.

It needs no network and nearly no disk: files of /usr are hard links to the machine's. Hence two duties of whoever uses
it. Nothing may ever be written through the template: it is mounted read-only, below an overlay. And the directory that
holds it stays closed to others (0700), because it keeps the setuid programs of the machine, old versions included.
Package upgrades on the machine write new files and do not reach a template; the fingerprint then changes.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, cast

from sandlot.host.templates.accounts import accounts_from, groups_from
from sandlot.host.templates.certificates import take_certificates
from sandlot.host.templates.etc_files import TAKEN, EtcCopy, matches, packaged_sums
from sandlot.host.templates.link_farm import LinkFarm
from sandlot.host.templates.package_state import take_package_state
from sandlot.host.templates.tree import Tree
from sandlot.host.templates.written_files import write_accounts, write_directories, write_home, write_settings

FORMAT: Final = 1  # part of the fingerprint: raise it when what a build produces changes
RECORD: Final = "template.json"
ROOT: Final = "root"
_PARTIAL: Final = ".partial-"
_ATTEMPTS_MAX: Final = 3
_STATUS: Final = "var/lib/dpkg/status"
# Real directories on a machine without merged /usr, links into /usr on the others.
_TOP: Final = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Both hold what was set up by hand on this machine, npm's registry tokens among it.
_REFUSED_PATHS: Final = frozenset({"usr/local", "usr/etc"})
_REFUSED_NAMES: Final = frozenset(
    {
        "EXTERNALLY-MANAGED",  # it stops `pip install`, and in a sandbox there is nothing to protect from it
        ".git-credentials",
        ".netrc",
        ".npmrc",
        ".pypirc",
        "npmrc",
        "pip.conf",
    }
)


class TemplateBuildError(Exception):
    """The built-in template could not be made; says what to do next."""

    def __init__(self, message: str, next_step: str) -> None:
        super().__init__(f"{message} ({next_step})")
        self.message = message
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """A complete template: its root filesystem is `path / "root"`."""

    path: Path
    fingerprint: str
    entries: int
    seconds: float
    how: str


def fingerprint(machine: Path = Path("/")) -> str:
    """A short name for all that a build would read, from file times and dpkg's status, in milliseconds."""
    parts = [f"format {FORMAT}", f"device {(machine / 'usr').stat().st_dev}"]
    status = machine / _STATUS
    if status.is_file():
        found = status.stat()
        parts.append(f"status {found.st_size} {found.st_mtime_ns} {hashlib.sha256(status.read_bytes()).hexdigest()}")
    etc = machine / "etc"
    names = ["passwd", "group", "ssl/certs", *(name for row in TAKEN for name in matches(etc, row))]
    for name in names:
        path = etc / name
        if os.path.lexists(path):
            found = path.lstat()
            parts.append(f"{name} {found.st_size} {found.st_mtime_ns}")
    parts.append(f"sudo {(machine / 'usr/bin/sudo').exists()}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def build(into: Path, machine: Path = Path("/"), progress: Callable[[int], None] | None = None) -> BuiltTemplate:
    """Make the template at `into`, or return the complete one that is there; `progress` gets the count of entries.

    Everything happens in a sibling that is renamed when it is on disk, so `into` is whole or absent at any time.
    Siblings that a crash left behind are removed; those of a build that still runs are not.
    """
    ready = _load(into)
    if ready is not None:
        return ready
    if os.geteuid() != 0:
        raise TemplateBuildError("the built-in template keeps the owners of files", "run the host as root")
    if into.exists() and any(into.iterdir()):
        raise TemplateBuildError(f"{into} is not a template and not empty", "move it away or choose another directory")
    try:
        into.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(into.parent)
        for _attempt in range(_ATTEMPTS_MAX):
            built = _attempt_build(into, machine, progress)
            if built is not None:
                return built
    except OSError as error:
        raise TemplateBuildError(
            f"the template was not built: {error}", f"check space and permissions below {into.parent}, then try again"
        ) from error
    raise TemplateBuildError(
        f"packages of the machine changed during all of {_ATTEMPTS_MAX} attempts",
        "wait until the package manager is done, then try again",
    )


def _attempt_build(into: Path, machine: Path, progress: Callable[[int], None] | None) -> BuiltTemplate | None:
    """One attempt; None when the machine changed under it."""
    began = time.monotonic()
    before = fingerprint(machine)
    partial, lock = _make_partial(into.parent)
    try:
        how, entries, left_out = _fill(partial / ROOT, machine, progress)
        if fingerprint(machine) != before:
            return None
        seconds = round(time.monotonic() - began, 3)
        record = {
            "format": FORMAT,
            "fingerprint": before,
            "how": how,
            "entries": entries,
            "seconds": seconds,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "left_out": dict(sorted(left_out.items())),
        }
        (partial / RECORD).write_text(json.dumps(record, indent=2) + "\n")
        _sync_filesystem(lock)
        return _publish(partial, into)
    finally:
        if partial.exists():
            shutil.rmtree(partial)
        os.close(lock)


def _fill(root: Path, machine: Path, progress: Callable[[int], None] | None) -> tuple[str, int, Counter[str]]:
    root.mkdir()
    root.chmod(0o755)
    tree = Tree(root)
    farm = LinkFarm(_REFUSED_PATHS, _REFUSED_NAMES, progress)
    farm.plant(machine / "usr", root / "usr", "usr")
    for name in _TOP:
        top = machine / name
        if top.is_symlink():
            tree.symlink(name, os.readlink(top))
        elif top.is_dir():
            farm.plant(top, root / name, name)
    accounts = accounts_from((machine / "etc/passwd").read_text(errors="replace"))
    groups = groups_from((machine / "etc/group").read_text(errors="replace"), accounts)
    status = machine / _STATUS
    etc = EtcCopy(machine, tree, packaged_sums(status.read_text(errors="replace") if status.is_file() else ""))
    write_directories(tree, groups)
    write_accounts(tree, accounts, groups)
    write_settings(machine, tree)
    etc.take_all()
    write_home(tree)
    local_authorities = take_certificates(machine, tree)
    take_package_state(machine, tree, farm, accounts, groups)
    left_out = Counter({f"usr: {reason}": count for reason, count in farm.left_out.items()})
    left_out.update({f"etc: {reason}": count for reason, count in etc.left_out.items()})
    left_out["etc: certificate not from a package"] = local_authorities
    entries = farm.entries + tree.entries
    if progress is not None:
        progress(entries)
    return farm.how, entries, +left_out


def _load(into: Path) -> BuiltTemplate | None:
    """The complete template at `into`. The record comes into place with the rename, so it proves the rest."""
    try:
        record = cast("dict[str, object]", json.loads((into / RECORD).read_text()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise TemplateBuildError(f"{into / RECORD} cannot be read", f"remove {into} and build again") from error
    match record:
        case {
            "fingerprint": str(name),
            "entries": int(entries),
            "seconds": int() | float() as seconds,
            "how": str(how),
        }:
            return BuiltTemplate(into, name, entries, float(seconds), how)
        case _:
            raise TemplateBuildError(f"{into / RECORD} lacks fields", f"remove {into} and build again")


def _publish(partial: Path, into: Path) -> BuiltTemplate:
    try:
        partial.rename(into)
    except OSError:
        # Another build was faster: its template is as good as ours.
        ready = _load(into)
        if ready is None:
            raise
        return ready
    parent = os.open(into.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(parent)
    finally:
        os.close(parent)
    ready = _load(into)
    assert ready is not None
    return ready


def _make_partial(parent: Path) -> tuple[Path, int]:
    """A new partial directory and its lock, which lives as long as this build."""
    while True:
        partial = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=parent))
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if partial.exists():
            return partial, lock
        os.close(lock)  # a build that started meanwhile took it for abandoned


def _remove_abandoned(parent: Path) -> None:
    for partial in parent.glob(f"{_PARTIAL}*"):
        if not stat.S_ISDIR(partial.lstat().st_mode):
            continue
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(partial)
        except BlockingIOError:
            pass  # its builder is alive
        finally:
            os.close(lock)


def _sync_filesystem(descriptor: int) -> None:
    """One call for the whole template: a sync per file would take minutes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
