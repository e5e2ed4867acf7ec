"""Who runs the program, and what the kernel lets this one do."""

import os
from collections.abc import Iterator, Mapping

from sandlot.cli.checks import MOUNT_PROC, Check, Section, Verdict, read

# Found by taking them away one by one: without any of these no session starts, or its files cannot be touched.
NEEDED: Mapping[int, str] = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    19: "CAP_SYS_PTRACE",
    21: "CAP_SYS_ADMIN",
    27: "CAP_MKNOD",
    31: "CAP_SETFCAP",
}
_ALL_IDS = ["0", "0", "4294967295"]
_NO_SECCOMP = "use a kernel with CONFIG_SECCOMP_FILTER"


def look() -> Iterator[Check]:
    yield user(os.geteuid(), read("/proc/self/uid_map"))
    status = read("/proc/self/status")
    if not status:
        told = "not there, and it would tell what may be done"
        yield Check(Section.RIGHTS, "/proc", Verdict.MISSING, told, MOUNT_PROC)
        return
    yield capabilities(status, is_root=os.geteuid() == 0)
    yield seccomp(status, read("/proc/sys/kernel/seccomp/actions_avail"))


def user(uid: int, uid_map: str) -> Check:
    if uid != 0:
        step = "run as root to get sessions that are isolated"
        return Check(Section.RIGHTS, "user", Verdict.MISSING, f"uid {uid}, not root", step)
    if uid_map.split() == _ALL_IDS:
        return Check(Section.RIGHTS, "user", Verdict.OK, "root")
    if not uid_map:
        return Check(Section.RIGHTS, "user", Verdict.NOTE, "root, of which user ids cannot be told")
    what = "root of a user namespace, which has not all user ids"
    step = "run as root of the machine, or in a container with the machine's user ids"
    return Check(Section.RIGHTS, "user", Verdict.MISSING, what, step)


def capabilities(status: str, *, is_root: bool) -> Check:
    """`status`: the text of /proc/self/status."""
    have = int(_field(status, "CapEff") or "0", 16)
    missing = [name for bit, name in NEEDED.items() if not have >> bit & 1]
    if not missing:
        return Check(Section.RIGHTS, "capabilities", Verdict.OK, f"all {len(NEEDED)} that are needed")
    what = "none of those that are needed" if len(missing) == len(NEEDED) else f"without {', '.join(missing)}"
    if not is_root:
        return Check(Section.RIGHTS, "capabilities", Verdict.MISSING, what, "run as root")
    options = "--privileged" if len(missing) == len(NEEDED) else " ".join(_docker_option(name) for name in missing)
    step = f"run on the machine itself, or start the container with them (docker and podman: {options})"
    return Check(Section.RIGHTS, "capabilities", Verdict.MISSING, what, step)


def _docker_option(name: str) -> str:
    return f"--cap-add={name.removeprefix('CAP_')}"


def seccomp(status: str, actions: str) -> Check:
    """The guest puts a filter on every command; a container may have put one on us."""
    if "errno" not in actions.split() and not _field(status, "Seccomp"):
        return Check(Section.RIGHTS, "seccomp", Verdict.MISSING, "the kernel knows no filters", _NO_SECCOMP)
    if _field(status, "Seccomp") == "2":
        step = "if no runtime below isolates, try the container with --security-opt seccomp=unconfined"
        return Check(Section.RIGHTS, "seccomp", Verdict.NOTE, "a filter lies on this process, as in a container", step)
    return Check(Section.RIGHTS, "seccomp", Verdict.OK, "the kernel knows filters, and none lies on this process")


def _field(status: str, name: str) -> str:
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value.strip()
    return ""
