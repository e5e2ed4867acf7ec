"""What a runtime promises that can keep processes on disk with their memory, and let them go on from there."""

import asyncio

from sandlot.conformance.checks import Check, Stage, collect, equal, expect, read_until
from sandlot.contracts import CallStream
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    ForkRequest,
    PauseRequest,
    RollbackRequest,
    SessionPaused,
    SessionState,
    SnapshotRequest,
)

_LOOK_S = 0.02
# Holds memory, and adds to an open file when it is asked; what it says depends on both.
_HOLDS = """
import os
held, log, said = os.urandom(4 << 20), open("log", "w"), 0
first = hash(held)
print("ready", flush=True)
while line := input():
    said += 1
    print(said, file=log, flush=True)
    print(line, said, hash(bytes(held)) == first, flush=True)
"""
_COUNTS = "import os, time\nfor number in range(100000):\n open('log', 'a').write(f'{number}\\n')\n time.sleep(0.02)\n"


async def _ask(stream: CallStream, word: str, expected: str) -> None:
    await stream.write_stdin(f"{word}\n".encode())
    await read_until(stream, f"{word} {expected} True\n".encode())


async def a_program_sleeps_and_goes_on(stage: Stage) -> None:
    """Paused with memory, a session takes no calls; resumed, what ran goes on with its memory, its open files, its
    input and its output."""
    session_id = stage.session.session_id
    async with stage.host.call(stage.request("python3", "-c", _HOLDS, stdin=True)) as stream:
        await read_until(stream, b"ready\n")
        await _ask(stream, "before", "1")
        asleep = await stage.host.pause(PauseRequest(session_id, memory=True))
        equal((asleep.state, asleep.sleeps), (SessionState.PAUSED, True))
        try:
            await stage.sh("true")
            expect(False, "a call was taken")
        except SessionPaused:
            pass
        awake = await stage.host.resume(session_id)
        equal((awake.state, awake.sleeps), (SessionState.ACTIVE, False))
        await _ask(stream, "after", "2")
        await stream.write_stdin(b"\n")
        equal((await collect(stream)).result.exit_code, 0)
    equal((await stage.run("cat", "log")).text, "1\n2")


async def _count(stage: Stage) -> int:
    return len((await stage.sh("cat log 2>/dev/null")).text.split())


async def _until_more(stage: Stage, than: int) -> int:
    """The check's own deadline ends it."""
    while (now := await _count(stage)) <= than:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_LOOK_S)
    return now


async def a_snapshot_brings_processes_back(stage: Stage) -> None:
    """A rollback to a snapshot with memory brings the processes of that moment back; a fork can have them too."""
    session_id = stage.session.session_id
    async with stage.host.call(stage.request("python3", "-c", _COUNTS, detach=True)):
        at = await _until_more(stage, 3)
    expect(
        (await stage.host.create_snapshot(SnapshotRequest(session_id, "m", memory=True))).memory, "no memory is told"
    )
    await _until_more(stage, at + 3)
    (fork,) = await stage.host.fork(ForkRequest(session_id, "m", memory=True))
    other = stage.on(fork)
    await _until_more(other, await _count(other))
    await stage.sh("touch later")
    await stage.host.rollback(RollbackRequest(session_id, "m"))
    await _until_more(stage, await _count(stage))
    equal((await stage.sh("test -e later || pgrep -c python3")).text, "1")


async def without_memory_it_is_refused(stage: Stage) -> None:
    """Where memory cannot be kept, whoever asks for that is told so, and nothing is changed."""
    session_id = stage.session.session_id
    for attempt in (
        stage.host.pause(PauseRequest(session_id, memory=True)),
        stage.host.create_snapshot(SnapshotRequest(session_id, "m", memory=True)),
    ):
        try:
            await attempt
        except CapabilityNotSupported:
            continue
        expect(False, "it was not refused")
    equal((await stage.sh("echo here")).text, "here")


MEMORY_CHECKS: tuple[Check[Stage], ...] = (
    Check(a_program_sleeps_and_goes_on, (Capability.MEMORY,)),
    Check(a_snapshot_brings_processes_back, (Capability.MEMORY, Capability.SNAPSHOTS)),
    Check(without_memory_it_is_refused, (Capability.SNAPSHOTS,), unless=Capability.MEMORY),
)
