"""What a template starts in each of its sessions, and when it is ready.

It is a call like any other, with a name of its own; nobody waits for its end. In a guest that waits for a session it
begins before there is one, and belongs to nobody until then."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sandlot.contracts.runtime import Guest, SpawnPlan
from sandlot.host.call_streams import LiveStream
from sandlot.host.calls import LiveCall, Ticket
from sandlot.host.errands import run_errand
from sandlot.host.session import Session, start_call_id
from sandlot.host.vessels import Vessel
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallResult,
    DeadlineExceeded,
    Ready,
    ReadyKind,
    SandlotError,
    SessionState,
    Start,
    StartFailed,
    Unavailable,
)

_SETTLE_S = 0.05  # a program that cannot even begin has ended by then
_POLL_S, _POLL_S_MAX = 0.01, 0.2
_TAIL_BYTES = 1000
_STATUS = re.compile(rb"HTTP/1\.[01] ([23])[0-9]{2}\b")
_FIRST = 1


def begin(session: Session) -> LiveCall:
    """Raises as a call does."""
    start = session.start
    assert start is not None, "asked before"
    live = session.start_call(_request(session.row.session_id, start, session.last_process_id + 1))
    session.started = live
    return live


async def serve(session: Session) -> None:
    """Start it, and wait until it is ready. Raises StartFailed."""
    if session.start is None:
        return
    with session.in_use():  # one that is not ready yet is not idle
        await wait_ready(begin(session), session.start, lambda: session.guest)
    session.is_serving = True


async def wait_serving(session: Session) -> None:
    """For whoever finds a session that an earlier engine did not see ready. Raises StartFailed."""
    if session.start is None or session.is_serving or session.started is None:
        return
    with session.in_use():
        await wait_ready(session.started, session.start, lambda: session.guest)
    session.is_serving = True


def _request(session_id: str, start: Start, process_id: int) -> CallRequest:
    return CallRequest(session_id, start.argv, timeout_s=None, detach=True, call_id=start_call_id(process_id))


class Serving:
    """Starts again what something ended: a rollback, a recovery, a move."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def again(self, session: Session) -> None:
        """One at a time; who asks meanwhile waits for the same. Raises StartFailed: the session is there then, and does
        not serve."""
        if session.start is None or session.row.state is not SessionState.ACTIVE:
            return
        session_id = session.row.session_id
        task = self._tasks.get(session_id)
        if task is None:
            task = self._tasks[session_id] = asyncio.create_task(serve(session), name=f"serve {session_id}")
            task.add_done_callback(lambda _task: self._tasks.pop(session_id, None))
        await asyncio.shield(task)

    def give_up(self) -> None:
        """The commands run on; whoever asks the next engine waits there."""
        for task in tuple(self._tasks.values()):
            task.cancel()


# ---- before there is a session ------------------------------------------------------------------------------------


class Unclaimed:
    """Has a start command until a session has it."""

    def __init__(self, vessel: Vessel, outputs: Path) -> None:
        self._folder = outputs / vessel.volume.name
        self._vessel = vessel
        self._session: Session | None = None
        self.live: LiveCall | None = None

    def begin(self, draft: Session, guest: Guest) -> LiveCall:
        """`draft`: a session like those that will be made of the guest. Raises Unavailable, LimitReached."""
        assert draft.start is not None, "asked before"
        request = _request(draft.row.session_id, draft.start, _FIRST)
        ticket = Ticket.of(request, _FIRST, start_call_id(_FIRST))
        self.live = live = LiveCall(ticket, self._path, self._record_start, self._record, self._wedged)
        live.begin(guest.spawn(_FIRST, draft.plan(request, ticket), live))
        return live

    def claim(self, session: Session) -> None:
        assert self.live is not None, "it has begun"
        self._session = session
        self.live.ticket = replace(self.live.ticket, session_id=session.row.session_id)
        session.take_start(self.live)

    def _path(self, process_id: int) -> Path:
        return self._session.output_path(process_id) if self._session else self._folder / f"{process_id}.log"

    def _record_start(self, ticket: Ticket) -> None:
        if self._session:
            self._session.record_start(ticket)

    def _record(self, live: LiveCall, result: CallResult, output: bytes | None, release: Callable[[], None]) -> None:
        if self._session:
            self._session.record(live, result, output, release)
        else:
            self._vessel.lost = True  # nobody wants a guest that has ceased to serve

    def _wedged(self, reason: str) -> None:
        if self._session:
            self._session.on_wedged(reason)
        else:
            self._vessel.ended(reason)


async def start_early(vessel: Vessel, draft: Session, outputs: Path) -> None:
    """In a guest that waits for a session. Raises StartFailed, and what a call raises."""
    unclaimed = Unclaimed(vessel, outputs)
    assert vessel.guest is not None, "it was started"
    assert draft.start is not None, "asked before"
    live = unclaimed.begin(draft, vessel.guest)
    await wait_ready(live, draft.start, lambda: None if vessel.lost else vessel.guest)
    vessel.claim = unclaimed.claim


# ---- readiness ----------------------------------------------------------------------------------------------------


async def wait_ready(live: LiveCall, start: Start, guest: Callable[[], Guest | None]) -> None:
    """Raises StartFailed, which tells what it printed last."""
    try:
        async with asyncio.timeout(start.timeout_s):
            match start.ready.kind:
                case ReadyKind.RUNNING:
                    await _wait_running(live)
                case ReadyKind.LOG:
                    await _wait_logged(live, start.ready.text.encode())
                case ReadyKind.PORT | ReadyKind.HTTP:
                    await _wait_answered(live, start.ready, guest)
    except TimeoutError as error:
        if isinstance(error, SandlotError) and not isinstance(error, DeadlineExceeded):
            raise
        raise await _failed(live, f"was not ready ({start.ready}) within {start.timeout_s:g} s") from None


async def _wait_running(live: LiveCall) -> None:
    while live.pid is None and live.result is None and live.lost is None:
        await live.changed()
    with suppress(TimeoutError, SandlotError):
        async with asyncio.timeout(_SETTLE_S):
            await live.wait()
    if live.lost is not None or (live.result is not None and live.result.exit_code):
        raise await _ended(live)


async def _wait_logged(live: LiveCall, text: bytes) -> None:
    seen: dict[str, bytes] = {}
    with suppress(SandlotError):  # it was lost
        async for event in LiveStream(live):
            if isinstance(event, CallOutput):
                known = seen.get(event.stream, b"") + event.data
                if text in known:
                    return
                seen[event.stream] = known[-len(text) :]
    raise await _ended(live)


async def _wait_answered(live: LiveCall, ready: Ready, guest: Callable[[], Guest | None]) -> None:
    """What goes into the background leaves its port behind: only a failure ends the wait."""
    pause_s = _POLL_S
    while live.lost is None and not (live.result and live.result.exit_code):
        if (there := guest()) is not None and await _answers(there, ready):
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_S_MAX)
    raise await _ended(live)


async def _answers(guest: Guest, ready: Ready) -> bool:
    head = f"GET {ready.text} HTTP/1.0\r\nHost: localhost:{ready.port}\r\nConnection: close\r\n\r\n"
    words = (str(ready.port), head) if ready.kind is ReadyKind.HTTP else (str(ready.port),)
    try:
        code, answer = await run_errand(guest, SpawnPlan(words, "/", {}, "", is_probe=True))
    except (DeadlineExceeded, Unavailable):
        return False  # whoever waits hears of it when the guest is gone
    return code == 0 and (ready.kind is ReadyKind.PORT or _STATUS.match(answer) is not None)


async def _ended(live: LiveCall) -> StartFailed:
    if live.lost is not None:
        return await _failed(live, f"was lost before it was ready: {live.lost}")
    result = live.result
    told = f"ended with {result.exit_code} before it was ready" if result else "ended before it was ready"
    return await _failed(live, f"{told}: {result.reason}" if result and result.reason else told)


async def _failed(live: LiveCall, what: str) -> StartFailed:
    tail = (await asyncio.to_thread(_tail, live)).decode(errors="replace").strip()
    said = f"; it printed last: {tail}" if tail else "; it printed nothing"
    return StartFailed(
        f"what the template starts, {' '.join(live.ticket.argv)[:200]}, {what}{said}",
        next_step="mend the command, or give it more time",
        output=tail,
    )


def _tail(live: LiveCall) -> bytes:
    tail, position = b"", 0
    with suppress(OSError):  # its file went with its session
        while found := live.log.read(position):
            tail, position = (tail + found.event.data)[-_TAIL_BYTES:], found.position
    return tail
