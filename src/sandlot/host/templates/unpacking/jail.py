"""Takes every right from the calling process but that of writing one tree. What it reads next may be hostile, and may
find a fault in Python or in a decompressor; then there is nothing that it could reach.

User, mount, network, process, ipc, uts and cgroup namespaces of its own; the tree as its root; the ids of sessions on
disk and no others; five capabilities, inside only; a filter that knows the calls of reading and writing files; limits.
"""

import ctypes
import os
import platform
import resource
import struct
from typing import Final

_NEW: Final = 0x10000000 | 0x00020000 | 0x40000000 | 0x20000000 | 0x08000000 | 0x04000000 | 0x02000000
_MOVE_MOUNT: Final = 429
_MOVE_EMPTY_PATH: Final = 0x4
_MS_REC_PRIVATE: Final = 0x4000 | 0x40000
_MNT_DETACH: Final = 2
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_NO_NEW_PRIVS = 1, 4, 22, 24, 38
_KILL: Final = 9
_CAP_LAST: Final = 63
_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _SETFCAP = 0, 1, 3, 4, 31
_KEPT: Final = (_CHOWN, _DAC_OVERRIDE, _FOWNER, _FSETID, _SETFCAP)
_CAPABILITY_VERSION: Final = 0x20080522

# Memory, time, signals to oneself, and files by handle. No process, no socket, no mount, no program, no namespace.
_CALLS = {
    "x86_64": (
        0xC000003E,
        155,
        """
        0 1 2 3 4 5 6 8 9 10 11 12 13 14 15 17 18 19 20 24 25 28 32 33 39 60 63 72 73 74 75 76 77 78 79 80
        81 83 84 86 87 88 90 91 92 93 94 95 96 98 99 131 137 138 186 188 189 190 191 192 193 202 204 217
        221 228 230 231 234 257 258 260 262 263 264 265 266 267 268 269 280 285 295 296 306 316 318 326 327 328 332
        334 436 437 439
        """,
    ),
    "aarch64": (
        0xC00000B7,
        41,
        """
        5 6 7 8 9 10 17 23 24 25 34 35 36 37 38 43 44 45 46 47 48 49 50 52 53 54 55 56 57 61 62 63 64 65 66
        67 68 69 70 78 79 80 81 82 83 84 88 93 94 96 98 99 101 113 115 123 124 131 132 134 135 139 153 160
        165 166 169 172 178 214 215 216 222 223 226 233 267 276 278 285 286 287 291 293 436 437 439
        """,
    ),
}


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Data(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def _need(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def leave_namespaces() -> None:
    """The first step. Whoever started us writes the id map then."""
    _need(_libc.unshare(_NEW), "unshare")


def die_with_parent() -> None:
    _need(_libc.prctl(_PR_SET_PDEATHSIG, _KILL, 0, 0, 0), "prctl")


def become_root_inside() -> None:
    os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def stand_on(tree: int) -> None:
    """The tree, a mount that is attached nowhere, becomes all that there is."""
    _need(_libc.mount(None, b"/", None, _MS_REC_PRIVATE, None), "private mounts")
    _need(_libc.syscall(_MOVE_MOUNT, tree, b"", -100, b"/", _MOVE_EMPTY_PATH), "attach the tree")
    os.fchdir(tree)
    _need(_libc.syscall(_CALLS[platform.machine()][1], b".", b"."), "pivot_root")
    _need(_libc.umount2(b".", _MNT_DETACH), "leave the old root")
    os.chdir("/")


def limit(memory_bytes: int, file_bytes: int) -> None:
    for kind, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 2048),
    ):
        resource.setrlimit(kind, (most, most))


def drop_rights() -> None:
    for capability in range(_CAP_LAST + 1):
        if capability not in _KEPT:
            _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    data = (_Data * 2)()
    data[0].effective = data[0].permitted = sum(1 << capability for capability in _KEPT)
    header = _Header(_CAPABILITY_VERSION, 0)
    _need(_libc.capset(ctypes.byref(header), data), "capset")
    _need(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")
    _need(_libc.prctl(_PR_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def install_filter() -> None:
    """Any call that is not listed fails with EPERM; one of another table ends the process."""
    architecture, _pivot, calls = _CALLS[platform.machine()]
    load, jump_equal, give = 0x20, 0x15, 0x06
    kill, allow, refuse = 0x80000000, 0x7FFF0000, 0x00050000 | 1
    program = [(load, 0, 0, 4), (jump_equal, 1, 0, architecture), (give, 0, 0, kill), (load, 0, 0, 0)]
    for call in calls.split():
        program += [(jump_equal, 0, 1, int(call)), (give, 0, 0, allow)]
    program.append((give, 0, 0, refuse))
    packed = b"".join(struct.pack("=HBBI", *one) for one in program)
    filled = _Program(len(program), packed)
    _need(_libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(filled), 0, 0), "seccomp")
