"""A mount namespace for a test that runs as a program of its own."""

import ctypes

_CLONE_NEWNS, _MS_REC_PRIVATE = 0x20000, 0x4000 | 1 << 18


def enter_own_mounts() -> None:
    """What others mount is not seen, what others start does not hold our disks, and our death leaves no mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) or libc.mount(None, b"/", None, _MS_REC_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "no mount namespace")
