"""Things of the host that attacks try to reach. They are real, so that no attack fails for want of a target."""

import ctypes
import os
import secrets
import shutil
import socket
import stat
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from sandlot.model import FileInfo

_SHM_CREATE = 0o1000 | 0o400 | 0o2000  # IPC_CREAT, IPC_EXCL, and readable for its owner
_SHM_REMOVE = 0
_MODIFIED = 1_000_000_007
_LASTS_S = "900"


class Mark(NamedTuple):
    """What can be told of one file of the host."""

    content: bytes
    mode: int
    uid: int
    modified_ns: int


class Sentinel:
    """A directory of the host that no session may reach, and what it looked like at first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.secret = secrets.token_bytes(16)
        (folder / "sub" / "below").mkdir(parents=True)
        for name in ("secret", "f", "g", "sub/f", "sub/below/f"):
            file = folder / name
            file.write_bytes(self.secret * 100)
            file.chmod(0o666)
            os.utime(file, (_MODIFIED, _MODIFIED))
        # Open to everyone: nothing but the walls keeps a session out.
        for path in (folder, folder / "sub", folder / "sub" / "below"):
            path.chmod(0o777)
            os.utime(path, (_MODIFIED, _MODIFIED))
        self._before = self._look()

    def _look(self) -> dict[str, Mark]:
        found: dict[str, Mark] = {}
        for path in (self.folder, *sorted(self.folder.rglob("*"))):
            status = path.lstat()
            content = path.read_bytes() if stat.S_ISREG(status.st_mode) else b""
            found[str(path)] = Mark(content, status.st_mode, status.st_uid, status.st_mtime_ns)
        return found

    def is_untouched(self) -> bool:
        return self._look() == self._before

    def is_told_by(self, answer: object) -> bool:
        """Whether an answer of a verb knows something of the directory."""
        if isinstance(answer, bytes):
            return self.secret in answer
        if isinstance(answer, FileInfo):
            return answer.modified == _MODIFIED
        if isinstance(answer, list):
            # An answer may be anything that a host gave: what its members are is asked of each.
            return any(isinstance(one, FileInfo) and self.is_told_by(one) for one in answer)  # pyright: ignore[reportUnknownVariableType]
        return False


@dataclass(frozen=True, slots=True)
class Bait:
    """What lies outside. `mark` stands in files, names, sockets and an environment of the host."""

    mark: str
    folder: Path
    sentinel: Sentinel
    marker: Path
    socket: Path
    port: int
    pid: int
    shm_key: int

    def facts(self) -> dict[str, str]:
        return {
            "host_mark": self.mark,
            "host_mark_backwards": self.mark[::-1],
            "marker": str(self.marker),
            "socket": str(self.socket),
            "host_port": str(self.port),
            "host_pid": str(self.pid),
            "host_uid": "1000000",
            "shm_key": str(self.shm_key),
        }

    def missing(self) -> list[str]:
        """What is not there any more, or not as it was."""
        targets = ((socket.AF_INET, ("127.0.0.1", self.port)), (socket.AF_UNIX, f"\0{self.mark}"))
        gone = [f"socket {address}" for family, address in targets if not _answers(family, address)]
        if not _answers(socket.AF_UNIX, str(self.socket)):
            gone.append("the socket file")
        if not self.marker.exists() or self.marker.read_text() != self.mark:
            gone.append("the marked file")
        if not self.sentinel.is_untouched():
            gone.append("the directory beside the sessions")
        if Path(f"/proc/{self.pid}/stat").read_text().split()[2] in "ZX":
            gone.append("the process")
        return gone


def _answers(family: int, address: object) -> bool:
    with socket.socket(family) as line:
        line.settimeout(10)
        return line.connect_ex(address) == 0  # pyright: ignore[reportArgumentType] - of either family


@contextmanager
def _shared_memory() -> Generator[int]:
    """A System V segment of the host, by its key."""
    libc = ctypes.CDLL(None, use_errno=True)
    key = secrets.randbelow(2**30) + 1
    segment = libc.shmget(key, 4096, _SHM_CREATE)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "shmget")
    try:
        yield key
    finally:
        libc.shmctl(segment, _SHM_REMOVE, None)


@contextmanager
def lay_bait() -> Generator[Bait]:
    mark = secrets.token_hex(16)
    with ExitStack() as stack:
        above = Path(tempfile.mkdtemp(prefix="sandlot-outside-"))
        stack.callback(shutil.rmtree, above)
        # Users of any number could walk to it.
        above.chmod(0o755)
        # By the name that races look for: an escape would find it.
        (above / "x").mkdir()
        marker = above / f"marker-{mark}"
        marker.write_text(mark)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=1024))
        for name in (f"\0{mark}", str(above / "s")):
            line = stack.enter_context(socket.socket(socket.AF_UNIX))
            line.bind(name)
            line.listen(1024)
        sleeper = stack.enter_context(subprocess.Popen(["sleep", _LASTS_S], env={"PATH": os.defpath, "MARK": mark}))
        stack.callback(sleeper.kill)
        key = stack.enter_context(_shared_memory())
        yield Bait(mark, above, Sentinel(above / "x"), marker, above / "s", tcp.getsockname()[1], sleeper.pid, key)


@dataclass(frozen=True, slots=True)
class Machine:
    """What of the machine must be the same before and after every attack."""

    mounts: frozenset[str]
    name: str
    core_pattern: str
    tainted: str
    programs: tuple[int, int, int]  # a program of /usr, which templates link to: size, mode, time

    @classmethod
    def look(cls) -> "Machine":
        program = Path("/usr/bin/env").stat()
        mounts = Path("/proc/self/mountinfo").read_text()
        return cls(
            mounts=frozenset(line.split()[4] for line in mounts.splitlines() if "sandlot" in line),
            name=os.uname().nodename,
            core_pattern=Path("/proc/sys/kernel/core_pattern").read_text(),
            tainted=Path("/proc/sys/kernel/tainted").read_text(),
            programs=(program.st_size, program.st_mode, program.st_mtime_ns),
        )

    def changed(self, before: "Machine") -> list[str]:
        names = ("mounts", "name", "core_pattern", "tainted", "programs")
        return [name for name in names if getattr(self, name) != getattr(before, name)]
