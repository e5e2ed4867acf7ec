"""What systemd gives to a service, and wants to hear from it. Without systemd nothing of it does anything."""

import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress

_FIRST_FD = 3


def inherited_sockets(environment: Mapping[str, str], pid: int) -> list[socket.socket]:
    """Those that systemd listens on already (LISTEN_FDS). They are ours alone: no program that is started has them."""
    if environment.get("LISTEN_PID") != str(pid):
        return []
    count = environment.get("LISTEN_FDS", "")
    found: list[socket.socket] = []
    for fd in range(_FIRST_FD, _FIRST_FD + (int(count) if count.isdigit() and len(count) < 4 else 0)):
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                os.set_inheritable(fd, False)
                listening = socket.socket(fileno=fd)
                listening.setblocking(False)
                found.append(listening)
    return found


class Notifier:
    """Tells systemd how far we are (NOTIFY_SOCKET)."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")

    def tell(self, *lines: str) -> None:
        if not self._path.startswith(("/", "@")):
            return
        to = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
            sending.settimeout(1)
            sending.sendto("\n".join(lines).encode(), to)

    def ready(self, told: str) -> None:
        self.tell("READY=1", f"STATUS={told}")

    def reloading(self, monotonic_us: int) -> None:
        self.tell("RELOADING=1", f"MONOTONIC_USEC={monotonic_us}")

    def stopping(self) -> None:
        self.tell("STOPPING=1")
