"""What the same attacks meet under a kernel that is not the machine's. Each difference is listed with its reason; what
is not listed must be as it is under Linux."""

import errno
from collections.abc import Mapping

_OWN_DEV = "/dev is a tmpfs in the sandbox's memory, writable for its root, and its devices are gVisor's own"
_OWN_IDS = "ids in the sandbox's memory are gVisor's; files on disk are written through the session's range"
_NO_XATTR = "gVisor keeps no such attributes"
_OWN_SYS = "/proc/sys is gVisor's own, and changes nothing on the machine"
_OWN_PROC = "pid 1 of the sandbox holds no secret, and its line is a socket, which cannot be opened again"
_LESS = "gVisor does not have this file"
_NO_SETUID = "this gVisor ignores the set-uid bit, so nothing is gained by it"
_OWN_MOUNTS = "the mounts are gVisor's, with no path of the machine"
_FEWER = "one capability less than under `namespaces`, CAP_SYS_CHROOT"
_ENDS = "the program is ended by gVisor, or nothing happens"
_OWN_TIME = "priorities are gVisor's own, and change nothing on the machine"

# By runtime and row.
ROWS: Mapping[str, Mapping[str, str]] = {
    "gvisor": {
        **dict.fromkeys(("node in shm", "nodes on the root", "/dev", "new file in /dev", "remove from /dev"), _OWN_DEV),
        **dict.fromkeys(
            (
                "give a file to the host's root",
                "give a file to a host id",
                "files of nobody",
                "other people's ids",
                "ids of the host",
            ),
            _OWN_IDS,
        ),
        **dict.fromkeys(("attribute user.overlay.opaque", "program with CAP_SYS_ADMIN"), _NO_XATTR),
        **dict.fromkeys(
            ("setns to the own namespace", "raise max_user_namespaces", "kernel addresses", "ipc of others"), _LESS
        ),
        **dict.fromkeys(
            (
                "write kernel/hostname",
                "write vm/overcommit_memory",
                "masked /proc/cmdline",
                "everything in /proc that can be written",
                "cgroups",
            ),
            _OWN_SYS,
        ),
        **dict.fromkeys(
            (
                *(f"read pid 1's {name}" for name in ("environ", "maps", "smaps", "auxv", "io")),
                *(f"pid 1's {name}" for name in ("ns/user", "ns/net", "ns/pid", "fd/0")),
                *(f"list pid 1's {name}" for name in ("fd", "ns", "fdinfo", "task/1/fd")),
                *(f"write pid 1's {name}" for name in ("comm", "oom_score_adj", "uid_map")),
            ),
            _OWN_PROC,
        ),
        **dict.fromkeys(("host paths in mountinfo", "mounts and their options"), _OWN_MOUNTS),
        **dict.fromkeys(("powers of root", "powers of a user", "leave a chroot"), _FEWER),
        **dict.fromkeys(
            ("powers by sudo", "powers by a setuid program", "mount by sudo", "Dirty COW", "Dirty Pipe"), _NO_SETUID
        ),
        "id map": "gVisor's own map; outside, the session's range is all that there is",
        "32-bit entry": _ENDS,
        **dict.fromkeys(("real-time priority", "higher priority"), _OWN_TIME),
        "write the own program": "gVisor lets a running program be written; it is the session's own file",
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


def is_refusal(said: str, expected: str) -> bool:
    """Another kernel may refuse with another number. Refused is refused."""
    return said in errno.errorcode.values() and expected in errno.errorcode.values()


def is_known(runtime: str, row: str, said: str, expected: str) -> bool:
    """Whether what a row saw under this runtime is as good, or listed."""
    if runtime not in ROWS:
        return False
    return is_refusal(said, expected) or row in ROWS[runtime]
