"""Things on the host and in another session that the rows try to reach."""

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.security.stage import USER, Stage

_SHM_CREATE = 0o1000 | 0o400 | 0o2000  # IPC_CREAT, IPC_EXCL, and readable for its owner
_SHM_REMOVE = 0

_OTHER_SERVES = """
import socket, time
tcp = socket.create_server(("127.0.0.1", 0))
line = socket.socket(socket.AF_UNIX)
line.bind(chr(0) + "%other_mark%")
line.listen()
print(tcp.getsockname()[1], flush=True)
time.sleep(600)
"""


@contextmanager
def shared_memory() -> Generator[int]:
    """A System V segment of the host, by its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = secrets.randbelow(2**30) + 1
    segment = libc.shmget(key, 4096, _SHM_CREATE)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        yield key
    finally:
        libc.shmctl(segment, _SHM_REMOVE, None)


@contextmanager
def host_facts(place: Path, data: Path, mark: str) -> Generator[dict[str, str]]:
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        marker = place / f"marker-{mark}"
        marker.write_text(mark)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        for name in (f"\0{mark}", str(place / "s")):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.bind(name)
            line.listen()
        sleeper = stack.enter_context(subprocess.Popen(["sleep", "600"], env={"MARK": mark}))
        stack.callback(sleeper.kill)
        yield {
            "host_mark": mark,
            "host_mark_backwards": mark[::-1],
            "marker": str(marker),
            "socket": str(place / "s"),
            "data": str(data),
            "host_port": str(tcp.getsockname()[1]),
            "host_pid": str(sleeper.pid),
            "host_uid": "1000000",
            "shm_key": str(stack.enter_context(shared_memory())),
        }


def other_facts(stage: Stage) -> dict[str, str]:
    """A second session with a secret in a file, in a name, in an environment and behind two sockets."""
    mark = secrets.token_hex(16)
    session = stage.create()
    stage.shell(session, f"echo {mark} >/workspace/secret-{mark}; echo {mark} >/dev/shm/{mark}", USER)
    serves = _OTHER_SERVES.replace("%other_mark%", mark)
    stage.place(session, "/workspace/serves.py", serves.encode())
    port = stage.shell(
        session,
        f"cd /tmp; MARK={mark} setsid python3 /workspace/serves.py >port 2>&1 & "
        "while ! grep -q . /tmp/port; do sleep 0.02; done; cat /tmp/port",
        USER,
    )
    return {"other": session, "other_mark": mark, "other_mark_backwards": mark[::-1], "other_port": str(int(port))}
