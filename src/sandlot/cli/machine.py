"""What the machine has to offer, looked at from outside: nothing is started but the guest program's own `version`."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sandlot.cli.show import size_text
from sandlot.config.settings import Settings

_FREE_BYTES_MIN = 1024**3
_VERSION_S = 5.0
# The built-in template takes nothing from /usr/local.
_TEMPLATE_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
_TOOLS = {"sudo": "sudo", "git": "git", "python3": "python3", "pip": "python3-pip"}


class Verdict(StrEnum):
    OK = "ok"
    MISSING = "missing"
    NOTE = "note"  # good to know; nothing depends on it


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    detail: str
    next_step: str = ""


def look(settings: Settings) -> Iterator[Check]:
    yield _user()
    yield Check("kernel", Verdict.NOTE, f"{os.uname().sysname} {os.uname().release} {os.uname().machine}")
    yield _overlay()
    yield _user_namespaces()
    yield Check("cgroups", Verdict.NOTE, _cgroups())
    yield _guest_program(settings.keeper)
    yield from _data_directory(settings.data)
    yield from _tools()
    yield _compiler(needed=not settings.keeper.is_file())


def _user() -> Check:
    if os.geteuid() == 0 and _read(Path("/proc/self/uid_map")).split() == ["0", "0", "4294967295"]:
        return Check("user", Verdict.OK, "root")
    if os.geteuid() == 0:
        step = "run as root of the machine, or in a container with the machine's user ids"
        return Check("user", Verdict.MISSING, "root of a user namespace, which has not all user ids", step)
    step = "run as root to get sessions that are isolated"
    return Check("user", Verdict.MISSING, f"uid {os.geteuid()}, not root", step)


def _overlay() -> Check:
    if "overlay" in _read(Path("/proc/filesystems")).split():
        return Check("overlayfs", Verdict.OK, "known to the kernel")
    step = "run `modprobe overlay` as root, or use a kernel that has it"
    return Check("overlayfs", Verdict.MISSING, "not in /proc/filesystems", step)


def _user_namespaces() -> Check:
    allowed = _read(Path("/proc/sys/user/max_user_namespaces")).strip()
    if allowed.isdigit() and int(allowed) > 0:
        return Check("user namespaces", Verdict.OK, f"up to {allowed}")
    step = "set the sysctl user.max_user_namespaces above 0"
    return Check("user namespaces", Verdict.MISSING, f"max_user_namespaces is {allowed or 'not there'}", step)


def _cgroups() -> str:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return "v2"
    if (root / "unified").is_dir():
        return "hybrid, v1 and v2"
    if (root / "memory").is_dir() or (root / "pids").is_dir():
        return "v1"
    return "none mounted"


def _guest_program(program: Path) -> Check:
    name, step = "guest program", "install gcc and libc6-dev, then run `make guest`"
    if not program.is_file():
        return Check(name, Verdict.MISSING, f"{program} is not there", step)
    try:
        told = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return Check(name, Verdict.MISSING, f"{program} does not run: {error}", step)
    return Check(name, Verdict.OK, told.stdout.strip())


def _data_directory(data: Path) -> Iterator[Check]:
    name, there = "data directory", _nearest(data)
    try:
        free = shutil.disk_usage(there).free
        same = there.stat().st_dev == Path("/usr").stat().st_dev
    except OSError as error:
        yield Check(name, Verdict.MISSING, f"{data}: {error.strerror}", "give another with --data-dir")
        return
    if not os.access(there, os.W_OK | os.X_OK):
        yield Check(name, Verdict.MISSING, f"{there} cannot be written", "give another with --data-dir")
    else:
        yield Check(name, Verdict.OK, str(data) if there == data else f"{data}, to be made")
    if free < _FREE_BYTES_MIN:
        yield Check("free space", Verdict.MISSING, size_text(free), "free some, or give another --data-dir")
    else:
        yield Check("free space", Verdict.OK, size_text(free))
    if same:
        yield Check("hard links", Verdict.OK, "the data directory is on the filesystem of /usr")
    else:
        step = "a data directory on the filesystem of /usr makes the template quicker and smaller"
        yield Check("hard links", Verdict.NOTE, "the built-in template copies /usr, which is elsewhere", step)


def _nearest(path: Path) -> Path:
    """The path itself, or the directory above it that exists and can be seen."""
    while not os.access(path, os.F_OK) and path != path.parent:
        path = path.parent
    return path


def _tools() -> Iterator[Check]:
    for tool, package in _TOOLS.items():
        found = shutil.which(tool, path=_TEMPLATE_PATH)
        if found:
            yield Check(tool, Verdict.OK, found)
        else:
            step = f"`apt-get install {package}` puts it into the built-in template"
            yield Check(tool, Verdict.NOTE, f"not in {_TEMPLATE_PATH}; sessions go without", step)


def _compiler(*, needed: bool) -> Check:
    found = shutil.which("cc") or shutil.which("gcc")
    if found:
        return Check("C compiler", Verdict.OK, found)
    step = "`apt-get install gcc libc6-dev`, to build the guest program"
    return Check("C compiler", Verdict.MISSING if needed else Verdict.NOTE, "none", step)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
