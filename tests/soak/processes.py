"""`python -m tests.soak.processes [--sessions N] [--each N]`: processes by the thousand, an engine that is killed among
them, floods, who runs away, and a websocket that is held meanwhile."""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    ProcessLogs,
    ProcessSpec,
    ProcessState,
    Ready,
    ReadyKind,
    SessionFilter,
    SessionSpec,
    Stream,
)
from sandlot.wiring.embedded import build
from tests.own_mounts import enter_own_mounts
from tests.soak.leaks import memory_kib
from tests.soak.process_engine import AT_ONCE, expected, names, spec
from tests.waiting import until
from tests.websocket_client import connect

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
# What an engine may take more than it took before it looked at any process.
GROWN_KIB = 64 << 10
GROWN_EACH_KIB = 64
FLOOD_KIB = 64 << 10
KEPT = 1 << 20
PORT = 3000
MESSAGE_S = 2.0
# Two that leave: one into a session of its own, one also out of its group by itself. None of the three listens to TERM.
AWAY = """
trap "" TERM
setsid sh -c 'trap "" TERM HUP; echo away; while :; do sleep 1000; done' &
python3 -c 'import os, time; os.setpgid(0, 0); print("away", flush=True); time.sleep(86400)' &
while :; do sleep 1000; done
"""
# A websocket that says what it hears: short messages alone.
WEBSOCKET = """
import base64, hashlib, socket, sys, threading
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
def serve(line):
    with line, line.makefile("rb") as heard:
        key = b""
        while (said := heard.readline()) not in (b"\\r\\n", b""):
            name, _, value = said.partition(b":")
            key = value.strip() if name.lower() == b"sec-websocket-key" else key
        accept = base64.b64encode(hashlib.sha1(key + GUID).digest())
        line.sendall(b"HTTP/1.1 101 Yes\\r\\nConnection: Upgrade\\r\\nUpgrade: websocket\\r\\n"
                     b"Sec-WebSocket-Accept: " + accept + b"\\r\\n\\r\\n")
        while len(head := heard.read(2)) == 2:
            mask, count = heard.read(4), head[1] & 127
            data = bytes(byte ^ mask[at % 4] for at, byte in enumerate(heard.read(count)))
            line.sendall(head[:1] + bytes([count]) + data)
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Size:
    sessions: int = 100
    each: int = 10
    bursts: int = 20
    flood_bytes: int = 1 << 30
    held_s: float = 120.0

    @property
    def count(self) -> int:
        return self.sessions * self.each


@dataclass
class Story:
    told: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        self.told.append(text)
        print(f"  {text}", flush=True)

    def need(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)


def kill_an_engine(data: Path, size: Size) -> list[str]:
    """In the middle of its launches. What it said that it had launched."""
    words = (str(data), str(size.sessions), str(size.each), str(size.bursts))
    command = [sys.executable, "-m", "tests.soak.process_engine", *words]
    engine = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert engine.stdout
    told: list[str] = []
    try:
        assert engine.stdout.readline() == "sessions\n"
        while len(told) < 6 * size.count // 10 and (line := engine.stdout.readline()):
            told.append(line.strip())
    finally:
        engine.kill()
        engine.wait(30)
    told += engine.stdout.read().split()
    engine.stdout.close()
    return told


def below(pid: int) -> dict[int, str]:
    """The state of all that descends from the guests of a keeper, and of no guest itself."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for found in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = found.read_text(errors="replace").rpartition(") ")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it ended meanwhile
        children.setdefault(int(parent), []).append(int(found.parent.name))
        states[int(found.parent.name)] = state
    reached = [one for guest in children.get(pid, []) for one in children.get(guest, [])]
    for one in reached:
        reached += children.get(one, [])
    return {one: states[one] for one in reached}


async def each_of(works: Sequence[Awaitable[_T]], at_once: int) -> list[_T]:
    room = asyncio.Semaphore(at_once)

    async def one(work: Awaitable[_T]) -> _T:
        async with room:
            return await work

    return await asyncio.gather(*map(one, works))


async def printed(host: SandboxHostService, session_id: str, name: str, bursts: int) -> tuple[bytes, bytes]:
    """Followed until as much has come as it prints; a hole is told."""
    streams = {Stream.STDOUT: b"", Stream.STDERR: b""}
    whole = sum(map(len, expected(name, bursts)))
    async with host.process_logs(ProcessLogs(session_id, name, follow=True)) as logs:
        async for piece in logs:
            if piece.lost or piece.offset != len(streams[piece.stream]):
                raise RuntimeError(f"{name}: {piece.lost} bytes lost at {piece.offset}")
            streams[piece.stream] += piece.data
            if sum(map(len, streams.values())) >= whole:
                break
    return streams[Stream.STDOUT], streams[Stream.STDERR]


async def thousand(host: SandboxHostService, story: Story, size: Size, acknowledged: list[str]) -> None:
    began = time.monotonic()
    places = names(size.sessions, size.each)
    listed = await each_of([host.list_processes(f"s{number}") for number in range(size.sessions)], AT_ONCE)
    known = {each.process_id: each for one in listed for each in one}
    lost = [name for name in acknowledged if name not in known or known[name].state is not ProcessState.RUNNING]
    story.need(not lost, f"launched, and not there any more: {lost[:5]} of {len(lost)}")
    story.say(f"{len(acknowledged)} of {size.count} were launched when the engine was killed; {len(known)} found")
    await each_of([host.launch_process(spec(*place, size.bursts)) for place in places], AT_ONCE)
    before = memory_kib("self")
    outputs = await asyncio.gather(*(printed(host, *place, size.bursts) for place in places))
    grown = memory_kib("self") - before
    broken = [name for (_, name), heard in zip(places, outputs, strict=True) if heard != expected(name, size.bursts)]
    story.need(not broken, f"lines of {len(broken)} are not what they printed: {broken[:5]}")
    lines = sum(out.count(b"\n") + err.count(b"\n") for out, err in outputs)
    heard = sum(len(out) + len(err) for out, err in outputs)
    story.say(f"{lines} lines of {size.count} processes counted, {time.monotonic() - began:.1f} s")
    bound = GROWN_KIB + GROWN_EACH_KIB * size.count + (heard >> 10)
    story.need(grown <= bound, f"following took {grown} KiB, not {bound}")
    story.say(f"memory of the engine: {grown >> 10} MiB more while {size.count} are followed")
    await kill_all(host, story, places, counted=heard)


async def kill_all(host: SandboxHostService, story: Story, places: Sequence[tuple[str, str]], counted: int) -> None:
    alive = len(below(host.keeper_pid))
    story.need(alive >= len(places), f"{alive} processes run, not {len(places)}: the look sees too little")
    began = time.monotonic()
    ended = await asyncio.gather(*(host.kill_process(*place) for place in places))
    took = time.monotonic() - began
    ends = {(each.state, each.signal) for each in ended}
    story.need(ends == {(ProcessState.EXITED, 15)}, f"they ended as {ends}")
    told = sum(each.stdout_bytes + each.stderr_bytes for each in ended)
    story.need(told == counted, f"they printed {told} bytes, and {counted} were counted")
    is_gone = await until(lambda: not below(host.keeper_pid), 30)
    story.need(is_gone, f"left of them: {list(below(host.keeper_pid).items())[:10]}")
    story.say(f"{len(places)} killed at once, {took:.1f} s; left of {alive}: {len(below(host.keeper_pid))}")


@asynccontextmanager
async def watched() -> AsyncGenerator[list[int]]:
    """The memory of this engine, in KiB, as long as it is inside."""
    seen = [memory_kib("self")]

    async def watch() -> None:
        while True:
            await asyncio.sleep(0.05)
            seen.append(memory_kib("self"))

    watching = asyncio.create_task(watch())
    try:
        yield seen
    finally:
        watching.cancel()


async def flood(host: SandboxHostService, story: Story, size: Size) -> None:
    """One reader reads all, one never reads."""
    began = time.monotonic()
    session_id = (await host.create(SessionSpec())).session_id
    argv = ("sh", "-c", f"head -c {size.flood_bytes} /dev/zero; echo end")
    process = await host.launch_process(ProcessSpec(session_id, argv, log_bytes_max=KEPT))
    request = ProcessLogs(session_id, process.process_id, follow=True)
    async with watched() as seen, host.process_logs(request) as unread, host.process_logs(request) as logs:
        heard = lost = 0
        async for piece in logs:
            heard, lost = heard + len(piece.data), lost + piece.lost
        ended = await host.wait_process(session_id, process.process_id, timeout_s=PATIENCE_S)
        late = late_lost = 0
        async for piece in unread:
            late, late_lost = late + len(piece.data), late_lost + piece.lost
    whole = size.flood_bytes + 4
    grown = max(seen) - seen[0]
    story.need((ended.exit_code, ended.stdout_bytes) == (0, whole), f"the flood ended as {ended}")
    story.need(heard + lost == whole, f"who read was told {heard} bytes and {lost} lost of {whole}")
    story.need(late + late_lost == whole and late <= KEPT, f"who came late was told {late} and {late_lost} of {whole}")
    story.need(grown < FLOOD_KIB, f"the flood took {grown} KiB")
    took = time.monotonic() - began
    story.say(f"a flood of {size.flood_bytes >> 20} MiB, {took:.1f} s: {grown >> 10} MiB more; {late >> 10} KiB kept")


async def run_away(host: SandboxHostService, story: Story) -> None:
    before = len(below(host.keeper_pid))
    session_id = (await host.create(SessionSpec())).session_id
    process = await host.launch_process(ProcessSpec(session_id, ("sh", "-c", AWAY)))
    heard = b""
    async with host.process_logs(ProcessLogs(session_id, process.process_id, follow=True)) as logs:
        async for piece in logs:
            heard += piece.data
            if heard.count(b"away") == 2:
                break
    there = len(below(host.keeper_pid)) - before
    story.need(there >= 3, f"{there} run, and nobody ran away")
    await host.kill_process(session_id, process.process_id)
    is_gone = await until(lambda: len(below(host.keeper_pid)) <= before, 30)
    story.need(is_gone, f"it left {len(below(host.keeper_pid)) - before} behind")
    story.say(f"who forked away from its group: {there} ran, {len(below(host.keeper_pid)) - before} after its stop")


async def hold(address: str, story: Story, seconds: float) -> None:
    """A message now and then; meanwhile others come and go."""
    end = time.monotonic() + seconds
    said = 0
    async with connect(f"{address}/held") as held:
        while time.monotonic() < end:
            await held.say(f"message {said}")
            if (answer := await held.hear()) != f"message {said}":
                story.wrong.append(f"the websocket said {answer!r} to message {said}")
                return
            said += 1
            async with connect(f"{address}/other") as other:
                await other.say("other")
                story.need(await other.hear() == "other", "another websocket was not answered")
            await asyncio.sleep(min(MESSAGE_S, seconds / 5))
    story.say(f"a websocket held for {seconds:.0f} s: {said} messages, and as many others that came and went")


async def soak(data: Path, size: Size) -> Story:
    story = Story()
    acknowledged = await asyncio.to_thread(kill_an_engine, data, size)
    story.need(len(acknowledged) < size.count, "the engine was killed too late to prove anything")
    async with build(load({**os.environ, "SANDLOT_DATA_DIR": str(data)})) as host:
        try:
            async with asyncio.timeout(PATIENCE_S):
                await thousand(host, story, size, acknowledged)
                await run_away(host, story)
                session_id = (await host.create(SessionSpec())).session_id
                argv = ("python3", "-c", WEBSOCKET, str(PORT))
                ready = Ready(ReadyKind.PORT, PORT)
                server = await host.launch_process(ProcessSpec(session_id, argv, port=PORT, ready=ready))
                await host.wait_process(session_id, server.process_id, until=ProcessState.RUNNING, timeout_s=60)
                await asyncio.gather(hold(server.address, story, size.held_s), flood(host, story, size))
        finally:
            while page := (await host.list(SessionFilter(limit=100))).sessions:
                await each_of([host.destroy(session.session_id) for session in page], AT_ONCE)
    return story


def main() -> int:
    parser = argparse.ArgumentParser(prog="processes", description=__doc__)
    parser.add_argument("--sessions", type=int, default=Size.sessions)
    parser.add_argument("--each", type=int, default=Size.each)
    parser.add_argument("--templates", type=Path, default=ROOT / "build" / "test-templates")
    arguments = parser.parse_args()
    enter_own_mounts()
    (ROOT / "build").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sandlot-processes-", dir=ROOT / "build"))
    data = folder / "data"
    data.mkdir(mode=0o700)
    if arguments.templates.is_dir():
        (data / "templates").symlink_to(arguments.templates.absolute())
    began = time.monotonic()
    try:
        story = asyncio.run(soak(data, Size(arguments.sessions, arguments.each)))
    finally:
        (data / "templates").unlink(missing_ok=True) if (data / "templates").is_symlink() else None
        shutil.rmtree(folder)
    print(f"{time.monotonic() - began:.0f} s; wrong: {len(story.wrong)}")
    for wrong in story.wrong:
        print(f"  {wrong}")
    return 1 if story.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
