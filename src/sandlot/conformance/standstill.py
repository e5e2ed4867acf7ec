"""What every runtime promises of a session that is paused."""

import asyncio

from sandlot.conformance.checks import Broken, Check, Stage, collect, equal, expect
from sandlot.contracts import CallStream
from sandlot.model import CallOutput, CapabilityNotSupported, PauseRequest, SessionPaused, SessionState

_MOMENT_S = 0.3
_COUNT = "i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done"


async def a_pause_stops_everything(stage: Stage) -> None:
    """What runs in a paused session does nothing, and goes on where it stood."""
    heard = bytearray()

    async def listen(stream: CallStream) -> None:
        async for event in stream:
            if isinstance(event, CallOutput):
                heard.extend(event.data)

    async def wait_for_more() -> None:
        known = len(heard)
        while len(heard) == known:  # noqa: ASYNC110 - the check's own deadline ends it
            await asyncio.sleep(_MOMENT_S / 10)

    async with stage.host.call(stage.request("sh", "-c", _COUNT, timeout_s=60)) as stream, asyncio.TaskGroup() as group:
        listening = group.create_task(listen(stream))
        await wait_for_more()
        if await _pause(stage):
            await asyncio.sleep(_MOMENT_S)  # what was said before arrives
            before = len(heard)
            await asyncio.sleep(_MOMENT_S)
            equal(len(heard), before)
            await stage.host.resume(stage.session.session_id)
            await wait_for_more()
        listening.cancel()
    numbers = bytes(heard).split(b"\n")[:-1]
    equal(numbers, [b"%d" % number for number in range(1, len(numbers) + 1)])


async def a_paused_session_takes_no_calls(stage: Stage) -> None:
    """Who calls is told that the session is paused, and nothing is run."""
    if not await _pause(stage):
        return
    try:
        await stage.sh("touch ran")
        raise Broken("a call was taken")
    except SessionPaused:
        pass
    await stage.host.resume(stage.session.session_id)
    expect((await stage.sh("test -e ran")).result.exit_code == 1, "what was refused has run")


async def a_call_outlives_a_pause(stage: Stage) -> None:
    """A call that was frozen ends as if nothing had been, and has lost nothing of what it was sent."""
    script = "read line; echo heard $line; exit 7"
    async with stage.host.call(stage.request("sh", "-c", script, stdin=True, timeout_s=60)) as stream:
        if await _pause(stage):
            await stage.host.resume(stage.session.session_id)
        await stream.write_stdin(b"a line\n")
        ran = await collect(stream)
    equal((ran.result.exit_code, ran.text), (7, "heard a line"))


async def a_pause_is_told(stage: Stage) -> None:
    """The state of a session says whether it is paused; what is done twice is done once."""
    session_id = stage.session.session_id
    for _time in range(2):
        if not await _pause(stage):
            return
        equal((await stage.host.get(session_id)).state, SessionState.PAUSED)
    for _time in range(2):
        equal((await stage.host.resume(session_id)).state, SessionState.ACTIVE)
    equal((await stage.run("echo", "alive")).text, "alive")


async def _pause(stage: Stage) -> bool:
    """Where processes cannot be frozen, the promise is that this is said."""
    try:
        await stage.host.pause(PauseRequest(stage.session.session_id))
    except CapabilityNotSupported:
        equal((await stage.run("echo", "alive")).text, "alive")
        return False
    return True


STANDSTILL_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(run)
    for run in (
        a_pause_stops_everything,
        a_paused_session_takes_no_calls,
        a_call_outlives_a_pause,
        a_pause_is_told,
    )
)
