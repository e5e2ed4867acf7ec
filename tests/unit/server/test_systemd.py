"""What systemd gives and is told."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from sandlot.server.systemd import Notifier, inherited_sockets

CHILD = """
import os, socket, sys
from sandlot.server.systemd import inherited_sockets
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[1]))
found = inherited_sockets(os.environ, os.getpid())
print(len(found), *(one.getsockname()[1] for one in found), *(os.get_inheritable(one.fileno()) for one in found))
"""


def sockets_of_child(listening: socket.socket, off_by: int) -> list[str]:
    """systemd puts what it listens on at descriptor 3."""

    def place() -> None:
        os.dup2(listening.fileno(), 3)

    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(off_by)],
        env={**os.environ, "LISTEN_FDS": "1"},
        pass_fds=(3,),
        preexec_fn=place,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.split()


def test_sockets_are_taken_over_by_the_process_that_they_are_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
        assert sockets_of_child(listening, 0) == ["1", port, "False"]
        assert sockets_of_child(listening, 1) == ["0"]


def test_nothing_is_taken_without_systemd() -> None:
    assert inherited_sockets({}, os.getpid()) == []
    assert inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}, os.getpid()) == []


def test_systemd_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hearing:
        hearing.settimeout(30)
        hearing.bind(str(tmp_path / "notify"))
        notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
        notifier.ready("serving")
        assert hearing.recv(1000) == b"READY=1\nSTATUS=serving"
        notifier.reloading(12)
        assert hearing.recv(1000) == b"RELOADING=1\nMONOTONIC_USEC=12"
        notifier.stopping()
        assert hearing.recv(1000) == b"STOPPING=1"
    notifier.stopping()
    Notifier({}).stopping()
