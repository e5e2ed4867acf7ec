"""What the same attacks meet under a kernel that is not the machine's. Each difference is listed, with what is said
there and why that is as good; what is not listed must be as it is under Linux. Seen with the gVisor of Debian 12."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Difference(NamedTuple):
    said: str  # a pattern for all of it
    why: str


def _all(said: str, why: str, rows: Iterable[str]) -> dict[str, Difference]:
    return dict.fromkeys(rows, Difference(said, why))


_OWN_DEV = "/dev is a tmpfs in the sandbox's memory, writable for its root, and its devices are gVisor's own"
_OWN_IDS = "ids in the sandbox's memory are gVisor's; files on disk are written through the session's range"
_NO_XATTR = "gVisor keeps no such attributes"
_OWN_SYS = "/proc/sys is gVisor's own, and changes nothing on the machine"
_OWN_PROC = "pid 1 of the sandbox holds no secret, and its line is a socket, which cannot be opened again"
_NO_FILE = "gVisor does not have this file"
_NO_CALL = "gVisor does not have this call"
_NO_REQUEST = "gVisor does not know this request"
_NO_ROUTE = "the sandbox has a loopback and no way out; only the number of the refusal differs"
_NO_SETUID = "this gVisor ignores the set-uid bit, so nothing is gained by it"
_NOT_LAID = "not tried: the bait is laid by sudo, which this gVisor does not let work"
_OWN_MOUNTS = "the mounts are gVisor's, with no path of the machine"
_FEWER = "one capability less than under `namespaces`, CAP_SYS_CHROOT"
_OWN_TIME = "priorities are gVisor's own, and change nothing on the machine"
_POWERS = r"CapInh:0{16} CapPrm:%s CapEff:%s CapBnd:00000000a80005fb.* Seccomp:2"
_ADDRESSES = ("198.18.0.1", "198.19.255.254", "192.0.2.1")
_KINDS = ("user", "user and mount", "time", "mount", "cgroup", "uts", "ipc", "pid", "net")

# By runtime and row.
ROWS: Mapping[str, Mapping[str, Difference]] = {
    "gvisor": {
        "node in shm": Difference("reached|EEXIST", _OWN_DEV),
        "nodes on the root": Difference("0", _OWN_DEV),
        "/dev": Difference("fd full null ptmx pts random shm stderr stdin stdout tty urandom zero", _OWN_DEV),
        **_all("reached", _OWN_DEV, ("new file in /dev", "remove from /dev")),
        **_all(
            "reached|EPERM",
            _OWN_IDS,
            ("give a file to the host's root", "give a file to a host id", "other people's ids", "ids of the host"),
        ),
        "files of nobody": Difference("reached", _OWN_IDS),
        **_all("", _NO_XATTR, ("attribute user.overlay.opaque", "program with CAP_SYS_ADMIN")),
        **_all(
            "ENOTSUP",
            _NO_XATTR,
            (f"attribute trusted.{name}" for name in ("x", "overlay.opaque", "overlay.redirect", "overlay.metacopy")),
        ),
        **_all(
            "",
            _NO_FILE,
            ("setns to the own namespace", "raise max_user_namespaces", "kernel addresses", "ipc of others"),
        ),
        **_all(
            "ENOENT",
            _NO_FILE,
            (
                *(f"read pid 1's {name}" for name in ("stack", "syscall", "pagemap", "mountstats")),
                *(f"write pid 1's {name}" for name in ("coredump_filter", "clear_refs", "setgroups", "sched")),
                *("pid 1's ns/mnt", "list pid 1's map_files"),
            ),
        ),
        **_all(
            "ENOSYS",
            _NO_CALL,
            (
                *(f"clone3 new {kind}" for kind in _KINDS),
                *("clone3 forty times", "process_vm_readv", "process_vm_writev", "pidfd of a process of the host"),
                *("memory of a process of the host", "descriptor of a process of the host"),
            ),
        ),
        **_all("ENOTTY", _NO_REQUEST, ("immutable flag", "parent of the user namespace", "new address")),
        "new link": Difference("EACCES", "gVisor asks for CAP_NET_ADMIN, which is not there, with another number"),
        "mount namespace by pidfd": Difference("EPERM", "the filter refuses pidfd_open of pid 1"),
        **_all(
            "EHOSTUNREACH", _NO_ROUTE, (f"{kind} {each}" for kind in ("address", "datagram to") for each in _ADDRESSES)
        ),
        **_all(
            "",
            "the file can be opened, and what is written there is refused (EIO): /proc/sys is gVisor's own",
            ("write kernel/hostname", "write vm/overcommit_memory"),
        ),
        "masked /proc/cmdline": Difference(r"0:0\n\d+", _OWN_SYS),
        "everything in /proc that can be written": Difference(r"(/proc/\S+ ?)*", _OWN_SYS),
        "cgroups": Difference("/all", "a group of gVisor's own, which our guest made to count processes"),
        **_all(
            "reached",
            _OWN_PROC,
            (
                *(f"read pid 1's {name}" for name in ("environ", "maps", "smaps", "auxv", "io")),
                *(f"pid 1's {name}" for name in ("ns/user", "ns/net", "ns/pid", "fd/0")),
                *(f"list pid 1's {name}" for name in ("fd", "ns", "fdinfo", "task/1/fd")),
                *(f"write pid 1's {name}" for name in ("comm", "oom_score_adj", "uid_map")),
            ),
        ),
        "host paths in mountinfo": Difference(r"[^\n]*\n0", _OWN_MOUNTS),
        "mounts and their options": Difference(r"(/(dev|proc)\S* (tmpfs|devpts|proc) [a-z ]+\n?)+", _OWN_MOUNTS),
        "powers of root": Difference(_POWERS % (("00000000a80005fb",) * 2), _FEWER),
        "powers of a user": Difference(_POWERS % (("0{16}",) * 2), _FEWER),
        "leave a chroot": Difference("EPERM", _FEWER),
        **_all("", _NO_SETUID, ("powers by sudo", "powers by a setuid program", "mount by sudo")),
        "Dirty COW": Difference("EACCES|ENOENT", _NOT_LAID),
        "Dirty Pipe": Difference("EACCES|ENOENT", _NOT_LAID),
        "id map": Difference(
            r"0 4294967295\n\s+0\s+0 4294967295", "gVisor's own map; outside, the session's range is all that there is"
        ),
        "32-bit entry": Difference(
            "",
            "gVisor takes it for the usual entry, so the number is that of another call, and meets the filter",
        ),
        "real-time priority": Difference("EINVAL", _OWN_TIME),
        "higher priority": Difference("reached", _OWN_TIME),
        "write the own program": Difference(
            "reached", "gVisor lets a running program be written; it is the session's own file"
        ),
    },
}

# By runtime and case: what cannot be tried there, and why.
CASES: Mapping[str, Mapping[str, str]] = {
    "gvisor": {
        "05-odd-files": "pipes and sockets live in the sandbox's memory, so the host never meets them",
        "22-memory-bomb": "without memory the sandbox ends, not the program; tests/e2e/test_gvisor.py has it",
        "22-shared-memory": "files in /dev/shm have no number of their own; the memory of the session bounds them",
        "24-terminals": "terminals are the sandbox's own memory, and have no number of their own",
        "27-views": "gVisor tells of the machine, not of the limits",
        "28-spin": "programs are told of time that the machine did not give: the limit holds, unseen from inside",
    },
}
# Walking whole trees takes longer there.
PATIENCE: Mapping[str, float] = {"gvisor": 4.0}


def is_known(runtime: str, row: str, said: str) -> bool:
    """Whether what a row said under this runtime is what is listed for it."""
    known = ROWS.get(runtime, {}).get(row)
    return known is not None and re.fullmatch(known.said, said) is not None
