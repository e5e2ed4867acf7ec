"""What the machine has to offer, looked at from outside: nothing is started but the guest program's own `version`."""

import ctypes
import errno
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from sandlot.cli import cgroups, rights
from sandlot.cli.checks import Check, Section, Verdict, guarded, read
from sandlot.cli.show import size_text
from sandlot.config.settings import Settings

_KERNEL_MIN = (6, 15)
_MACHINES = ("x86_64", "aarch64")
_OPENAT2 = 437
_OPEN_FILES_MIN = 1024
_OPEN_FILES_NEEDED = 128  # for an engine without sessions
_FREE_BYTES_MIN = 1024**3
_VERSION_S = 5.0
# The built-in template takes nothing from /usr/local.
_TEMPLATE_PATH = "/usr/bin:/usr/sbin:/bin:/sbin"
_TOOLS = {"sudo": "sudo", "git": "git", "python3": "python3", "pip": "python3-pip"}


def look(settings: Settings) -> Iterator[Check]:
    yield from guarded(Section.RIGHTS, "rights", rights.look)
    yield from guarded(Section.KERNEL, "kernel", _kernel)
    yield from guarded(Section.LIMITS, "open files", _open_files)
    yield from guarded(Section.LIMITS, "cgroups", cgroups.look)
    yield from guarded(Section.DATA, "data directory", lambda: _data_directory(settings.data))
    yield from guarded(Section.TEMPLATE, "tools", _tools)
    yield from guarded(Section.ENGINE, "guest program", lambda: _guest_program(settings.keeper))


# ---- kernel ------------------------------------------------------------------------------------------------------


def _kernel() -> Iterator[Check]:
    system = os.uname()
    yield version(system.sysname, system.release)
    yield architecture(system.machine)
    if os.access("/proc/self", os.F_OK):
        yield _overlay()
        yield _user_namespaces()
    yield _tried("openat2", _try_openat2, "files of sessions are reached with it", "Linux 5.6")
    yield _tried("pidfd", _try_pidfd, "the ends of guests are seen with it", "Linux 5.3")


def version(name: str, release: str) -> Check:
    match = re.match(r"(\d+)\.(\d+)", release)
    if name == "Linux" and match and (int(match[1]), int(match[2])) >= _KERNEL_MIN:
        return Check(Section.KERNEL, "kernel", Verdict.OK, f"{name} {release}")
    step = f"use Linux {_KERNEL_MIN[0]}.{_KERNEL_MIN[1]} or later, which mounts the layers of a session by descriptor"
    return Check(Section.KERNEL, "kernel", Verdict.MISSING, f"{name} {release}", step)


def architecture(machine: str) -> Check:
    if machine in _MACHINES:
        return Check(Section.KERNEL, "architecture", Verdict.OK, machine)
    step = f"the guest program is written for {' and '.join(_MACHINES)}"
    return Check(Section.KERNEL, "architecture", Verdict.MISSING, machine, step)


def _overlay() -> Check:
    if "overlay" in read("/proc/filesystems").split():
        return Check(Section.KERNEL, "overlayfs", Verdict.OK, "known to the kernel; the runtime below mounts one")
    step = "run `modprobe overlay` as root, or use a kernel that has it"
    return Check(Section.KERNEL, "overlayfs", Verdict.MISSING, "not in /proc/filesystems", step)


def _user_namespaces() -> Check:
    allowed = read("/proc/sys/user/max_user_namespaces").strip()
    if allowed.isdigit() and int(allowed) > 0:
        return Check(Section.KERNEL, "user namespaces", Verdict.OK, f"up to {allowed}")
    step = "set the sysctl user.max_user_namespaces above 0"
    told = f"max_user_namespaces is {allowed or 'not there'}"
    return Check(Section.KERNEL, "user namespaces", Verdict.MISSING, told, step)


def _tried(name: str, attempt: Callable[[], None], why: str, since: str) -> Check:
    try:
        attempt()
    except OSError as error:
        unknown = error.errno == errno.ENOSYS
        step = f"use {since} or later" if unknown else "a filter of the container forbids it: allow it there"
        return Check(Section.KERNEL, name, Verdict.MISSING, f"{error.strerror}; {why}", step)
    return Check(Section.KERNEL, name, Verdict.OK, "works")


def _try_openat2() -> None:
    how = (ctypes.c_uint64 * 3)(os.O_PATH | os.O_CLOEXEC, 0, 0)
    libc = ctypes.CDLL(None, use_errno=True)
    folder = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        fd = libc.syscall(_OPENAT2, folder, b".", ctypes.byref(how), ctypes.sizeof(how))
        if fd < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(fd)
    finally:
        os.close(folder)


def _try_pidfd() -> None:
    fd = os.pidfd_open(os.getpid())
    try:
        signal.pidfd_send_signal(fd, 0)  # none: only whether it may be sent
    finally:
        os.close(fd)


def _open_files() -> Iterator[Check]:
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= _OPEN_FILES_MIN:
        yield Check(Section.LIMITS, "open files", Verdict.OK, f"{soft} at once")
        return
    verdict = Verdict.NOTE if soft >= _OPEN_FILES_NEEDED else Verdict.MISSING
    told = f"only {soft} at once; every session takes some"
    yield Check(Section.LIMITS, "open files", verdict, told, f"raise it: `ulimit -n {_OPEN_FILES_MIN}`")


# ---- data directory ----------------------------------------------------------------------------------------------


def _data_directory(data: Path) -> Iterator[Check]:
    name, there = "data directory", nearest(data)
    try:
        free = shutil.disk_usage(there).free
        same = there.stat().st_dev == Path("/usr").stat().st_dev
    except OSError as error:
        told = f"{data}: {error.strerror}"
        yield Check(Section.DATA, name, Verdict.MISSING, told, "give another with --data-dir")
        return
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        told = f"{there} cannot be written" if there.is_dir() else f"{there} is no directory"
        yield Check(Section.DATA, name, Verdict.MISSING, told, "give another with --data-dir")
    else:
        yield Check(Section.DATA, name, Verdict.OK, str(data) if there == data else f"{data}, to be made")
    if free < _FREE_BYTES_MIN:
        step = "free some, or give another --data-dir"
        yield Check(Section.DATA, "free space", Verdict.NOTE, f"only {size_text(free)}", step)
    else:
        yield Check(Section.DATA, "free space", Verdict.OK, size_text(free))
    yield filesystem(read("/proc/self/mountinfo"), there.stat().st_dev)
    if same:
        yield Check(Section.DATA, "hard links", Verdict.OK, "the data directory is on the filesystem of /usr")
    else:
        step = "a data directory on the filesystem of /usr makes the template quicker and smaller"
        told = "the built-in template copies /usr, which is elsewhere"
        yield Check(Section.DATA, "hard links", Verdict.NOTE, told, step)


def filesystem(mounts: str, device: int) -> Check:
    """`mounts`: the text of /proc/self/mountinfo."""
    number = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in mounts.splitlines() if f" {number} " in line]
    if "overlay" in kinds:
        step = "give a --data-dir that is not on it; in a container: a volume (docker: -v NAME:/var/lib/sandlot)"
        told = "overlay, which cannot hold what another overlay writes"
        return Check(Section.DATA, "filesystem", Verdict.MISSING, told, step)
    return Check(Section.DATA, "filesystem", Verdict.OK, kinds[0] if kinds else "of a kind that /proc does not tell")


def nearest(path: Path) -> Path:
    """The path itself, or the directory above it that exists and can be seen."""
    while not os.access(path, os.F_OK) and path != path.parent:
        path = path.parent
    return path


# ---- programs ----------------------------------------------------------------------------------------------------


def _tools() -> Iterator[Check]:
    for tool, package in _TOOLS.items():
        found = shutil.which(tool, path=_TEMPLATE_PATH)
        if found:
            yield Check(Section.TEMPLATE, tool, Verdict.OK, found)
        else:
            step = f"`apt-get install {package}` puts it into the built-in template"
            told = f"not in {_TEMPLATE_PATH}; sessions go without"
            yield Check(Section.TEMPLATE, tool, Verdict.NOTE, told, step)


def _guest_program(program: Path) -> Iterator[Check]:
    told, works = _ask_version(program)
    if works:
        yield Check(Section.ENGINE, "guest program", Verdict.OK, told)
        return
    step = "install gcc and libc6-dev, then run `make guest`"
    yield Check(Section.ENGINE, "guest program", Verdict.MISSING, told, step)
    yield _compiler()


def _ask_version(program: Path) -> tuple[str, bool]:
    if not program.is_file():
        return f"{program} is not there", False
    try:
        ran = subprocess.run([program, "version"], capture_output=True, text=True, timeout=_VERSION_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program} does not run: {error}", False
    if not ran.stdout.startswith("keeper "):
        return f"{program} is another program", False
    return ran.stdout.strip(), True


def _compiler() -> Check:
    """Asked for only where the guest program has to be built."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found:
        return Check(Section.ENGINE, "C compiler", Verdict.OK, found)
    step = "`apt-get install gcc libc6-dev`, to build the guest program"
    return Check(Section.ENGINE, "C compiler", Verdict.MISSING, "none", step)
