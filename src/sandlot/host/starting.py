"""What a template starts in each of its sessions, and when it is ready.

It is a call like any other, with a name of its own; nobody waits for its end. In a guest that waits for a session it
begins before there is one, and belongs to nobody until then."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sandlot.contracts.runtime import Guest
from sandlot.host.calls import LiveCall, Ticket
from sandlot.host.readiness import answers, asks, wait_ready
from sandlot.host.session import Session, start_call_id
from sandlot.host.vessels import Vessel
from sandlot.model import CallRequest, CallResult, Ready, SessionState, Start

_FIRST = 1
_WHO = "what the template starts"


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
        await wait_ready(begin(session), session.start.ready, session.start.timeout_s, _WHO, asks(session))
    session.is_serving = True


async def wait_serving(session: Session) -> None:
    """For whoever finds a session that an earlier engine did not see ready. Raises StartFailed."""
    if session.start is None or session.is_serving or session.started is None:
        return
    with session.in_use():
        await wait_ready(session.started, session.start.ready, session.start.timeout_s, _WHO, asks(session))
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
        session.processes.again()
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
    ready, timeout_s = draft.start.ready, draft.start.timeout_s
    have = vessel.runtime.capabilities

    async def answer(to: Ready) -> bool:
        return await answers(None if vessel.lost else vessel.guest, have, to)

    await wait_ready(live, ready, timeout_s, _WHO, answer)
    vessel.claim = unclaimed.claim
