"""Where attacks take place: sessions of the host under test, and the bait outside of them."""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sandlot.attack.bait import Bait
from sandlot.attack.rows import ATTEMPT, ROOT, USER
from sandlot.contracts import Host
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallResult,
    Capability,
    FileWrite,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    Stream,
    Unavailable,
    limits,
)

PROGRAM = Path(__file__).parents[1] / "_bin" / "sandlot-attempt"
CALL_TIMEOUT_S = 60.0

# A second session with a secret in a file, in a name, in an environment and behind two sockets.
_OTHER_SERVES = """
import socket, time
tcp = socket.create_server(("127.0.0.1", 0))
line = socket.socket(socket.AF_UNIX)
line.bind(chr(0) + "%mark%")
line.listen()
with open("/tmp/port.new", "w") as file: file.write(str(tcp.getsockname()[1]))
import os
os.rename("/tmp/port.new", "/tmp/port")
time.sleep(3600)
"""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command in a session said, and how it ended."""

    result: CallResult
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="replace").strip()


async def run_call(host: Host, request: CallRequest) -> Said:
    """Run a command to its end."""
    streams = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    async with host.call(request) as events:
        async for event in events:
            if isinstance(event, CallOutput):
                streams[event.stream] += event.data
        return Said(await events.result(), bytes(streams[Stream.STDOUT]), bytes(streams[Stream.STDERR]))


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


def load_program() -> bytes:
    """Raises Unavailable when the package was built without it."""
    try:
        return PROGRAM.read_bytes()
    except OSError as error:
        raise Unavailable(
            f"the program that attacks from inside is not in this install: {error.strerror}",
            next_step="install gcc and libc6-dev, and run `make guest`, or install a wheel for this machine",
        ) from error


class Arena:
    """One session to attack from, one beside it. Sessions that an attack ruins are replaced."""

    def __init__(self, host: Host, bait: Bait, program: bytes, data: Path) -> None:
        self.host = host
        self.bait = bait
        self.data = data
        self.session = ""
        self.runtime = ""
        self.facts: Mapping[str, str] = {}
        self.capabilities: frozenset[Capability] = frozenset()
        self._program = program
        self._others: dict[str, str] = {}

    async def open(self) -> None:
        self.capabilities = await self.host.capabilities()
        if Capability.ISOLATION in self.capabilities:
            self._others = await self._make_other()
        await self.renew()

    async def renew(self) -> None:
        """A session to attack from, in place of the one before."""
        if self.session:
            await self.destroy(self.session)
        info = await self.host.create(SessionSpec())
        self.session, self.runtime = info.session_id, info.runtime
        if Capability.ISOLATION in self.capabilities:
            await self.arm(self.session)
        told = {"data": str(self.data), "session": self.session}
        self.facts = {**self.bait.facts(), **self._others, **told}

    async def close(self) -> None:
        for info in await self.sessions():
            await self.destroy(info)

    async def sessions(self) -> list[str]:
        page = await self.host.list(SessionFilter(limit=limits.LIST_PAGE_MAX))
        return [info.session_id for info in page.sessions]

    async def destroy(self, session: str) -> None:
        with suppress(SandlotError):
            await self.host.destroy(session)

    async def arm(self, session: str) -> None:
        """Put the attacking program into a session, and a file that its user owns."""
        await self.host.write_file(FileWrite(session, ATTEMPT, ROOT, mode=0o755), pieces(self._program))
        await self.host.write_file(FileWrite(session, "/workspace/mine", USER), pieces(b""))

    async def is_alive(self) -> bool:
        """Whether the attacked session still takes calls, and its attacker's tools are there."""
        try:
            info = await self.host.get(self.session)
            if Capability.ISOLATION not in self.capabilities:
                return info.state is SessionState.ACTIVE
            said = await self.sh(f"test -x {ATTEMPT} && test -f /workspace/mine && echo alive")
        except SandlotError:
            return False
        return info.state is SessionState.ACTIVE and said.text == "alive"

    @asynccontextmanager
    async def fresh(self, spec: SessionSpec | None = None) -> AsyncGenerator[str]:
        """A session of its own for one attack, gone afterwards."""
        session = (await self.host.create(spec or SessionSpec())).session_id
        try:
            if Capability.ISOLATION in self.capabilities:
                await self.arm(session)
            yield session
        finally:
            await self.destroy(session)

    async def sh(
        self, script: str, user: str = ROOT, session: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Said:
        argv = ("sh", "-c", script)
        return await run_call(self.host, CallRequest(session or self.session, argv, user=user, timeout_s=timeout_s))

    async def py(
        self, script: str, user: str = ROOT, session: str | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> Said:
        argv = ("python3", "-c", script)
        return await run_call(self.host, CallRequest(session or self.session, argv, user=user, timeout_s=timeout_s))

    async def _make_other(self) -> dict[str, str]:
        mark = secrets.token_hex(16)
        session = (await self.host.create(SessionSpec())).session_id
        serves = _OTHER_SERVES.replace("%mark%", mark).encode()
        await self.host.write_file(FileWrite(session, "/workspace/serves.py", USER), pieces(serves))
        said = await self.sh(
            f"echo {mark} >/workspace/secret-{mark}; echo {mark} >/dev/shm/{mark}; "
            f"MARK={mark} setsid python3 /workspace/serves.py >/tmp/log 2>&1 & "
            "until test -e /tmp/port; do sleep 0.05; done; cat /tmp/port",
            USER,
            session,
        )
        if not said.text.isdigit():
            raise Unavailable(f"the session beside the attacked one cannot be made ready: {said.stderr[-300:]!r}")
        return {"other": session, "other_mark": mark, "other_mark_backwards": mark[::-1], "other_port": said.text}

    async def other_is_there(self) -> bool:
        """Whether what attacks look for in the session beside is there: a file, shared memory, a socket."""
        if not self._others:
            return True
        mark = self._others["other_mark"]
        script = f"find / -xdev -name '*{mark}*' 2>/dev/null; ls /dev/shm; cat /proc/net/unix"
        return (await self.sh(script, ROOT, self._others["other"])).text.count(mark) >= 3
