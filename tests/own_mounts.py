"""Mounts of our own: a namespace for a test that runs as a program, and those of ours among what the machine has."""

import ctypes
from pathlib import Path

_CLONE_NEWNS, _MS_REC_PRIVATE = 0x20000, 0x4000 | 1 << 18


def enter_own_mounts() -> None:
    """What others mount is not seen, what others start does not hold our disks, and our death leaves no mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")


def ours(data: Path, table: str | None = None) -> list[str]:
    """The lines of the machine's mount table that an engine on this data directory could have made: those that name it
    or its templates, and roots of sessions. What other programs mount meanwhile is their own."""
    told = Path("/proc/self/mountinfo").read_text(errors="replace") if table is None else table
    places = (str(data), str((data / "templates").resolve()))
    return [line for line in told.splitlines() if " sandlot " in line or any(place in line for place in places)]
