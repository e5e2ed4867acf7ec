"""When a program that serves is ready: it runs, takes connections, answers, or has printed a text.

Connections are asked for by the guest, in the session's own network. Where a session shares the machine's, only what a
program of that session listens on counts."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sandlot.contracts.runtime import Guest, SpawnPlan
from sandlot.host.call_streams import LiveStream
from sandlot.host.calls import LiveCall
from sandlot.host.errands import run_errand
from sandlot.host.runtimes.descendants import Descendants
from sandlot.host.runtimes.dialling import dial_own
from sandlot.host.session import Session
from sandlot.model import (
    CallOutput,
    Capability,
    DeadlineExceeded,
    LimitReached,
    NotFound,
    Ready,
    ReadyKind,
    SandlotError,
    StartFailed,
    Unavailable,
    limits,
)

_SETTLE_S = 0.05  # a program that cannot even begin has ended by then
_POLL_S, _POLL_S_MAX = 0.01, 0.2
_TAIL_BYTES = 1000
_ANSWER_BYTES = 4096
_STATUS = re.compile(rb"HTTP/1\.[01] ([23])[0-9]{2}\b")


async def wait_ready(
    live: LiveCall, ready: Ready, timeout_s: float, who: str, answers: Callable[[Ready], Awaitable[bool]]
) -> None:
    """Raises StartFailed, which tells what it printed last."""
    try:
        async with asyncio.timeout(timeout_s):
            match ready.kind:
                case ReadyKind.RUNNING:
                    await _wait_running(live, who)
                case ReadyKind.LOG:
                    await _wait_logged(live, who, ready.text.encode())
                case ReadyKind.PORT | ReadyKind.HTTP:
                    await _wait_answered(live, who, partial(answers, ready))
    except TimeoutError as error:
        if isinstance(error, SandlotError) and not isinstance(error, DeadlineExceeded):
            raise
        raise await start_failed(live, who, f"was not ready ({ready}) within {timeout_s:g} s") from None


async def _wait_running(live: LiveCall, who: str) -> None:
    while live.pid is None and live.result is None and live.lost is None:
        await live.changed()
    with suppress(TimeoutError, SandlotError):
        async with asyncio.timeout(_SETTLE_S):
            await live.wait()
    if live.lost is not None or (live.result is not None and live.result.exit_code):
        raise await ended_early(live, who)


async def _wait_logged(live: LiveCall, who: str, text: bytes) -> None:
    seen: dict[str, bytes] = {}
    with suppress(SandlotError):  # it was lost
        async for event in LiveStream(live):
            if isinstance(event, CallOutput):
                known = seen.get(event.stream, b"") + event.data
                if text in known:
                    return
                seen[event.stream] = known[-len(text) :]
    raise await ended_early(live, who)


async def _wait_answered(live: LiveCall, who: str, answers: Callable[[], Awaitable[bool]]) -> None:
    """What goes into the background leaves its port behind: only a failure ends the wait."""
    pause_s = _POLL_S
    while live.lost is None and not (live.result and live.result.exit_code):
        if await answers():
            return
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _POLL_S_MAX)
    raise await ended_early(live, who)


def asks(session: Session) -> Callable[[Ready], Awaitable[bool]]:
    """Whoever guards it then."""
    return lambda ready: answers(session.guest, session.runtime_capabilities, ready)


async def answers(guest: Guest | None, have: frozenset[Capability], ready: Ready) -> bool:
    """Whether someone of the session takes connections there, or gives the answer that is waited for. `have`: what its
    runtime can do."""
    if guest is None:
        return False
    head = f"GET {ready.text} HTTP/1.0\r\nHost: localhost:{ready.port}\r\nConnection: close\r\n\r\n"
    asked = head if ready.kind is ReadyKind.HTTP else ""
    ask = _ask_guest if Capability.ISOLATION in have else _ask_own
    try:
        answer = await ask(guest, ready.port, asked)
    except (NotFound, LimitReached, DeadlineExceeded, Unavailable):
        return False  # whoever waits hears of it when the guest is gone
    return not asked or _STATUS.match(answer) is not None


async def _ask_guest(guest: Guest, port: int, asked: str) -> bytes:
    words = (str(port), asked) if asked else (str(port),)
    code, answer = await run_errand(guest, SpawnPlan(words, "/", {}, "", is_probe=True))
    if code:
        raise NotFound(f"nobody listens on port {port} of the session")
    return answer


async def _ask_own(guest: Guest, port: int, asked: str) -> bytes:
    """On the machine's own network, where others listen too."""
    loop, answer = asyncio.get_running_loop(), b""
    with await dial_own(guest, Descendants(guest.pid, Path()).processes, port) as line:
        if asked:
            try:
                async with asyncio.timeout(limits.CONNECT_DEADLINE_S):
                    await loop.sock_sendall(line, asked.encode())
                    while b"\n" not in answer and len(answer) < _ANSWER_BYTES:
                        answer += (more := await loop.sock_recv(line, _ANSWER_BYTES))
                        if not more:
                            break
            except TimeoutError:
                raise DeadlineExceeded(f"whoever listens on port {port} gave no answer") from None
            except OSError as error:
                raise Unavailable(f"the connection to port {port} was broken off: {error.strerror}") from None
    return answer


async def ended_early(live: LiveCall, who: str) -> StartFailed:
    if live.lost is not None:
        return await start_failed(live, who, f"was lost before it was ready: {live.lost}")
    result = live.result
    told = f"ended with {result.exit_code} before it was ready" if result else "ended before it was ready"
    return await start_failed(live, who, f"{told}: {result.reason}" if result and result.reason else told)


async def start_failed(live: LiveCall, who: str, what: str) -> StartFailed:
    return start_failure(who, live.ticket.argv, what, await asyncio.to_thread(_tail, live))


def start_failure(who: str, argv: Sequence[str], what: str, printed: bytes) -> StartFailed:
    tail = printed.decode(errors="replace").strip()
    said = f"; it printed last: {tail}" if tail else "; it printed nothing"
    return StartFailed(
        f"{who}, {' '.join(argv)[:200]}, {what}{said}",
        next_step="mend the command, or give it more time",
        output=tail,
    )


def _tail(live: LiveCall) -> bytes:
    tail, position = b"", live.log.place_near_end(_TAIL_BYTES)
    with suppress(OSError):  # its file went with its session
        while found := live.log.read(position):
            tail, position = (tail + found.event.data)[-_TAIL_BYTES:], found.position
    return tail
