"""Defences taken away, one at a time, so that the suite of attacks can be seen to notice.

A guest is weakened by an edit of a copy of its source, an engine by a patch in the test's process. What is shipped has
no switch for any of it. A text that is not found any more means that a defence has moved: point the edit at it again.
"""

import shutil
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sandlot.attack.cases import CASES
from sandlot.model import Capability

SOURCE = Path(__file__).parents[2] / "guest" / "src"
COMPILE = ("gcc", "-std=gnu11", "-O1", "-fPIE", "-w")
LINK_S = 60
ACT = ""  # what got through is not a row


@dataclass(frozen=True, slots=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Weakening:
    """`breaks` tells, by case, the rows that must fail now, each with a piece of what it sees instead."""

    name: str
    breaks: Mapping[str, Mapping[str, str]]
    edits: tuple[Edit, ...] = ()
    untried: frozenset[str] = frozenset()  # rows that would break the test itself, or depend on the machine
    needs: frozenset[Capability] = frozenset()  # of the machine, for the defence to be there at all


class Workshop:
    """Builds guests. What no edit touches is compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._objects = folder / "objects"
        self._objects.mkdir()
        with ThreadPoolExecutor(2) as pool:
            for done in [pool.submit(self._compile, file, SOURCE, self._objects) for file in SOURCE.glob("*.c")]:
                done.result()

    def build(self, weakening: Weakening) -> Path:
        place = self._folder / weakening.name.replace(" ", "-")
        place.mkdir()
        texts: dict[str, str] = {}
        for edit in weakening.edits:
            text = texts.get(edit.file) or (SOURCE / edit.file).read_text()
            assert text.count(edit.old) == 1, f"{weakening.name}: {edit.file} has {edit.old!r} {text.count(edit.old)}x"
            texts[edit.file] = text.replace(edit.old, edit.new)
        for name, text in texts.items():
            (place / name).write_text(text)
            self._compile(place / name, SOURCE, place)
        own = {f"{Path(name).stem}.o" for name in texts}
        objects = [place / name if name in own else self._objects / name for name in self._names()]
        keeper = place / "sandlot-keeper"
        subprocess.run(["gcc", "-static-pie", "-o", keeper, *objects], check=True, timeout=LINK_S)
        return keeper

    def _names(self) -> list[str]:
        return sorted(path.name for path in self._objects.glob("*.o"))

    def _compile(self, file: Path, headers: Path, to: Path) -> None:
        command = [*COMPILE, f"-I{headers}", "-c", file, "-o", to / f"{file.stem}.o"]
        subprocess.run(command, check=True, timeout=LINK_S)

    def close(self) -> None:
        shutil.rmtree(self._folder)


def _filter_lets_pass(call: str) -> Edit:
    return Edit("filter.c", "if (refused[i] == call)", f"if (refused[i] == call && call != {call})")


def _keeps(capability: str) -> Edit:
    return Edit("boot.c", "CAP_NET_BIND_SERVICE, ", f"CAP_NET_BIND_SERVICE, {capability}, ")


REACHED = "'reached'"
_MORE_POWERS = {
    "powers of root": "CapEff",
    "powers of a user": "CapBnd",
    "powers by sudo": "CapEff",
    "powers by a setuid program": "00000000a8",
}
_NEW_NAMESPACES = {f"clone3 new {name}": REACHED for name in ("time", "mount", "cgroup", "uts", "ipc", "pid", "net")}
_USER_NAMESPACES = {
    "clone3 new user": REACHED,
    "clone3 new user and mount": REACHED,
    "clone3 forty times": REACHED,
    "raise max_user_namespaces": "999",
}
_ADMIN = {
    "11-namespaces": _NEW_NAMESPACES,
    "17-powers": _MORE_POWERS,
    "28-priority": {"sethostname": REACHED, "setdomainname": REACHED},
}
_PASS_FILTER = {
    "add_key": "add a key",
    "io_uring_setup": "an io_uring",
    "userfaultfd": "faults of the own memory",
    "fanotify_init": "a watch of all files",
    "modify_ldt": "a table of segments",
    "set_mempolicy": "a policy for memory",
}
# To trace pid 1 would stop the session that the test looks from.
_ABOUT_PID_ONE = frozenset(
    row.name for case in CASES for row in case.rows if "undumpable" in row.reason or "pid 1" in row.name
)
_UNLIMITED_USERS = Edit("boot.c", 'max_user_namespaces", "0"', 'max_user_namespaces", "999"')

GUESTS = (
    Weakening(
        "pid 1 can be dumped",
        {
            "13-pid-one-in-proc": {
                **{f"read pid 1's {name}": REACHED for name in ("environ", "maps", "auxv", "io")},
                **{f"pid 1's {name}": REACHED for name in ("root", "cwd", "exe", "ns/mnt", "ns/user", "fd/0")},
                "list pid 1's fd": REACHED,
                "through pid 1's root": REACHED,
            },
            "14-trace": {"process_vm_readv": "yet it said"},
        },
        (
            Edit("boot.c", "PR_SET_DUMPABLE, 0", "PR_SET_DUMPABLE, 1"),
            # A child that becomes somebody else makes the memory that it shares with pid 1 undumpable again.
            Edit("spawn.c", "raw(SYS_umask, 022, 0, 0, 0)", "raw(SYS_umask, 022, 0, 0, 0), raw(SYS_prctl, 4, 1, 0, 0)"),
        ),
        untried=_ABOUT_PID_ONE,
    ),
    Weakening("user namespaces", {"11-namespaces": _USER_NAMESPACES}, (_UNLIMITED_USERS,)),
    Weakening(
        "user namespaces by clone",
        {"11-namespaces": {**_USER_NAMESPACES, "clone new user": REACHED}},
        (_UNLIMITED_USERS, Edit("filter.c", "NEW_NAMESPACES = 0x7e020080", "NEW_NAMESPACES = 0x6e020080")),
    ),
    Weakening(
        "nothing of proc is masked",
        {"12-kernel-settings": {f"masked /proc/{name}": "0:0" for name in ("keys", "key-users", "kmsg", "cmdline")}},
        (Edit("boot.c", "i < sizeof masked_files /", "i < 0 * sizeof masked_files /"),),
    ),
    Weakening(
        "settings of the kernel can be written",
        {
            "12-kernel-settings": {
                "write kernel/pid_max": "yet it said ''",
                "everything in /proc that can be written": "/proc/sys/",
            },
            "17-report": {"mounts and their options": "/proc/sys proc nodev noexec nosuid rw"},
        },
        (Edit("boot.c", ".attr_set = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID", ".attr_set = MOUNT_ATTR_NOSUID"),),
    ),
    Weakening(
        "a chroot instead of an own root",
        {"28-priority": {"leave a chroot": REACHED}},
        (
            Edit("boot.c", 'sys_move_mount(root, "", AT_FDCWD, "/"', 'sys_move_mount(root, "", AT_FDCWD, "/mnt"'),
            Edit("boot.c", 'need(sys_pivot_root(".", ".") == 0', 'need(chroot(".") == 0'),
            Edit("boot.c", 'need(umount2(".", MNT_DETACH) == 0, "leave the old root");', ""),
        ),
    ),
    Weakening(
        "core files",
        {
            "16-descriptors": {"larger core limit": "2048", "core file": "yet it said"},
            "17-report": {"core files": "2048"},
        },
        (Edit("boot.c", "struct rlimit core = {1, 1}", "struct rlimit core = {1 << 20, 1 << 20}"),),
    ),
    Weakening(
        "the view of control groups",
        {"12-kernel-settings": {"cgroups": "sandlot-"}},
        (Edit("boot.c", "need(unshare(CLONE_NEWCGROUP) == 0", "need(true"),),
        needs=frozenset({Capability.LIMIT_PIDS}),
    ),
    Weakening(
        "a descriptor that leaks",
        {
            "16-descriptors": {"descriptors": "15", "descriptors at a terminal": "15"},
            "16-working-directory": {ACT: "stands in /proc/self/fd/"},
            "escape-runc-2024-21626": {ACT: "stands in /proc/self/fd/"},
        },
        (
            Edit(
                "boot.c",
                "need(sethostname(",
                'int leak = open("/", O_PATH | O_DIRECTORY);\n    dup2(leak, 15);\n    need(sethostname(',
            ),
            Edit("spawn.c", "must(plan, raw(SYS_close_range, 4, INT_MAX, 0, 0), STAGE_RESOURCES);", ""),
        ),
    ),
    Weakening(
        "raw sockets",
        {"17-powers": _MORE_POWERS, "18-sockets": {"raw socket": REACHED, "raw socket, version 6": REACHED}},
        (_keeps("CAP_NET_RAW"),),
    ),
    Weakening(
        "settings of the network",
        {"17-powers": _MORE_POWERS, "18-network": {"new address": REACHED}},
        (_keeps("CAP_NET_ADMIN"),),
    ),
    Weakening("CAP_SYS_ADMIN", _ADMIN, (_keeps("CAP_SYS_ADMIN"),)),
    Weakening(
        "mounts",
        {
            **_ADMIN,
            "11-mounts": {"mount": REACHED, "bind mount": REACHED},
            "17-filter": {"refused calls": "mount EFAULT"},
            "17-powers": {**_MORE_POWERS, "mount by sudo": REACHED},
            "escape-sys-admin": {"mount a cgroup, version 2": REACHED},
        },
        (_keeps("CAP_SYS_ADMIN"), _filter_lets_pass("SYS_mount")),
    ),
    *(
        Weakening(
            f"the call {name}",
            {"18-kernel-calls": {row: REACHED}},
            (_filter_lets_pass(f"SYS_{name}"),),
            untried=frozenset({"refused calls"}),
        )
        for name, row in _PASS_FILTER.items()
    ),
    Weakening(
        "packet sockets",
        {
            "17-powers": _MORE_POWERS,
            "18-sockets": {"AF_PACKET": REACHED, "raw socket": REACHED, "raw socket, version 6": REACHED},
            "escape-packet-socket": {"packet socket": REACHED, "packet socket, cooked": REACHED},
        },
        (_keeps("CAP_NET_RAW"), Edit("filter.c", "AF_INET6, AF_NETLINK}", "AF_INET6, AF_PACKET}")),
    ),
    Weakening(
        "personalities",
        {"28-priority": {"personality": REACHED}},
        (Edit("filter.c", "{0, 0x0008, 0x00040000,", "{0, 0x0400000, 0x00040000,"),),
    ),
    Weakening(
        "limits of pid 1",
        {"14-trace": {"limits of pid 1": REACHED, "priority of pid 1": "yet it said"}},
        (Edit("filter.c", "BPF_JEQ | BPF_K, 1, 0, 1", "BPF_JEQ | BPF_K, 0x7fffffff, 0, 1"),),
    ),
    Weakening(
        "calls that nobody has read",
        {"17-filter": {"calls that nobody has read": "E"}, "11-mounts": {"open_tree_attr": "yet it said"}},
        (Edit("filter.c", "LAST_KNOWN = 466", "LAST_KNOWN = 600"),),
    ),
    Weakening(
        "the machine's network",
        # Only what stays on this machine is tried.
        {
            "18-network": {
                "loopback of the host": REACHED,
                "all addresses of the host": REACHED,
                "loopback of another session": REACHED,
                "abstract socket of the host": REACHED,
                "abstract socket of another session": REACHED,
                "sockets of others": "yet it said",
            },
        },
        (
            Edit("keeper.c", "CLONE_NEWUSER | CLONE_NEWNET", "CLONE_NEWUSER"),
            Edit("ahead.c", " || setns(made->network, CLONE_NEWNET) < 0", ""),
            Edit("boot.c", "need(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &request) == 0", "need(fd >= 0"),
        ),
        untried=frozenset({"routes"}),
    ),
    Weakening(
        "the machine's ipc",
        {"18-network": {"shared memory of the host": "yet it said", "ipc of others": "yet it said"}},
        (Edit("keeper.c", "CLONE_NEWIPC | ", ""),),
    ),
    Weakening(
        "one user for all sessions",
        {"24-watches": {ACT: "watches of all"}},
        (Edit("root.c", "uid_t owner = range_first_id(range)", "uid_t owner = 0"),),
    ),
    Weakening(
        "shared memory without a size",
        {"22-shared-memory": {ACT: "MiB of the machine's memory"}},
        (Edit("boot.c", "size=64m,", ""),),
    ),
    Weakening(
        "shared memory without a number of files",
        {"22-shared-memory": {ACT: "files were made"}},
        (Edit("boot.c", ",nr_inodes=16384", ",nr_inodes=0"),),
    ),
    Weakening(
        "terminals without a number",
        {"24-terminals": {ACT: "terminals"}},
        (Edit("boot.c", ",max=512", ""),),
    ),
)

# What some kernels do not have, by what has to hold for it to be there.
ON_SOME_KERNELS = (
    Weakening(
        "typing into terminals",
        {"18-terminals": {"TIOCSTI": REACHED}},
        (Edit("filter.c", "BPF_K, TIOCSTI, 1, 0", "BPF_K, TIOCLINUX, 1, 0"),),
    ),
    Weakening(
        "the 32-bit table",
        {"18-entries": {"32-bit entry": "yet it said ''"}},
        (Edit("filter.c", "answer(&w, ENOSYS); /* no second", "answer(&w, 0); /* a second"),),
    ),
)

# Engines with careless hands; how each is made so is in the test.
ENGINES = (
    Weakening(
        "paths without confinement",
        {"02-links": {ACT: "led out"}, "03-race": {ACT: "led out"}},
    ),
    Weakening("the kernel's files", {"05-kernel-files": {ACT: "was done"}}),
    Weakening("files of any kind", {"05-odd-files": {ACT: "was opened and read"}}),
    Weakening("rights of the engine", {"02-rights": {ACT: "was done for a user"}}),
    Weakening("ids as they come", {"09-ids": {ACT: "before it refused it"}}),
    Weakening(
        "limits that are not set",
        {
            "21-fork-bomb": {ACT: "300 processes"},
            "22-memory-bomb": {ACT: "has taken 256 MiB"},
        },
        needs=frozenset({Capability.LIMIT_PIDS, Capability.LIMIT_MEMORY}),
    ),
    Weakening("volumes that stay", {"29-rounds": {ACT: "stayed"}}),
)
