"""How a check is run, and what it can come to. A check is a function named for a promise, which its docstring says."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sandlot.contracts import CallStream, Host
from sandlot.model import (
    AUTO,
    CallOutput,
    CallRequest,
    CallResult,
    Capability,
    SessionInfo,
    SessionNotFound,
    SessionSpec,
    Stream,
)

CHECK_DEADLINE_S = 120.0
_POLL_S = 0.02
_Stage = TypeVar("_Stage")


class Broken(Exception):
    """A promise that was not kept."""


class Verdict(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    DEVIATES = "deviates"  # as it is known to
    PASSES_NOW = "passes now"  # though it is listed as a deviation: the list is wrong
    SKIPPED = "skipped"  # it needs what was not declared


@dataclass(frozen=True, slots=True)
class Ran:
    """A call that has ended: its result and both streams."""

    result: CallResult
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        return self.stdout.decode(errors="surrogateescape").strip()


@dataclass(slots=True)
class Stage:
    """What a check is given: a host, a fresh session, and a few short words for what every check does."""

    host: Host
    runtime: str
    session: SessionInfo
    made: list[str] = field(default_factory=list[str])
    storage: str = AUTO

    def request(self, *argv: str, **options: Any) -> CallRequest:
        return CallRequest(self.session.session_id, argv, **options)

    async def run(self, *argv: str, **options: Any) -> Ran:
        async with self.host.call(self.request(*argv, **options)) as stream:
            return await collect(stream)

    async def sh(self, script: str, **options: Any) -> Ran:
        return await self.run("sh", "-c", script, **options)

    async def another(self, **wishes: Any) -> "Stage":
        """One more session, with wishes of its own; it goes with the stage."""
        session = await self.host.create(SessionSpec(runtime=self.runtime, storage=self.storage, **wishes))
        return self.on(session)

    def on(self, session: SessionInfo) -> "Stage":
        """One that someone else made; it goes with the stage too."""
        self.made.append(session.session_id)
        return Stage(self.host, self.runtime, session, self.made, self.storage)

    async def is_alive(self, pid: int) -> bool:
        # One that has ended and was not waited for still has its number, and it is not alive.
        script = f"grep -q '^State:[[:space:]]*[^ZX]' /proc/{pid}/status 2>/dev/null"
        return (await self.sh(script)).result.exit_code == 0

    async def wait_gone(self, pid: int) -> None:
        """Until no process has this number any more. The check's own deadline ends the waiting."""
        while (await self.sh(f"test -e /proc/{pid}")).result.exit_code == 0:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(_POLL_S)


@dataclass(frozen=True, slots=True)
class Check(Generic[_Stage]):
    run: Callable[[_Stage], Awaitable[None]]
    needs: tuple[str, ...] = ()  # capabilities, as what is checked declares them
    unless: str | None = None  # it is promised only where this is missing
    deadline_s: float = CHECK_DEADLINE_S  # a promise that is kept later than that is not kept

    @property
    def name(self) -> str:
        return getattr(self.run, "__name__", "")

    def skipped(self, have: frozenset[str] | None) -> str:
        """Why it is not run; empty when it is. None: everything that there is."""
        if have is None:
            return ""
        if self.unless in have:
            return f"it is about what has no {self.unless}"
        return ", ".join(f"no {one}" for one in self.needs if one not in have)

    @property
    def promise(self) -> str:
        return " ".join((self.run.__doc__ or "").split())


@dataclass(frozen=True, slots=True)
class Outcome:
    check: str
    promise: str
    verdict: Verdict
    seconds: float
    detail: str = ""

    @property
    def is_good(self) -> bool:
        return self.verdict in (Verdict.PASSED, Verdict.DEVIATES, Verdict.SKIPPED)


def expect(condition: bool, what: object) -> None:
    """Not an assert: a suite that ships must not become silent when Python optimises."""
    if not condition:
        raise Broken(str(what))


def equal(found: object, expected: object) -> None:
    expect(found == expected, f"{found!r}, expected {expected!r}"[:2000])


async def collect(stream: CallStream) -> Ran:
    """Read a call to its end. Raises Broken when its output has a hole."""
    parts = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    async for event in stream:
        if isinstance(event, CallOutput):
            equal(event.offset, len(parts[event.stream]))
            parts[event.stream] += event.data
    return Ran(await stream.result(), bytes(parts[Stream.STDOUT]), bytes(parts[Stream.STDERR]))


async def read_until(stream: CallStream, wanted: bytes) -> bytes:
    """Both streams together, as they come, until this has been heard."""
    heard = bytearray()
    async for event in stream:
        if isinstance(event, CallOutput):
            heard += event.data
            if wanted in heard:
                return bytes(heard)
    raise Broken(f"{bytes(heard)!r} is all that came, {wanted!r} is not in it")


async def conform(
    host: Host,
    runtime: str,
    checks: Sequence[Check[Stage]],
    deviations: Mapping[str, str],
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
) -> AsyncIterator[Outcome]:
    """Each check on a session of its own, one after another. Nothing is left of them. `have`: what such sessions can
    do; a check that needs more is skipped."""

    async def on_a_session(check: Check[Stage]) -> None:
        made: list[str] = []
        try:
            session = await host.create(SessionSpec(runtime=runtime, storage=storage))
            made.append(session.session_id)
            await check.run(Stage(host, runtime, session, made, storage))
        finally:
            for session_id in made:
                with suppress(SessionNotFound):
                    await host.destroy(session_id)

    async for outcome in judge(checks, deviations, have, on_a_session):
        yield outcome


async def judge(
    checks: Sequence[Check[_Stage]],
    deviations: Mapping[str, str],
    have: frozenset[str] | None,
    attempt: Callable[[Check[_Stage]], Awaitable[None]],
) -> AsyncIterator[Outcome]:
    """Each check in turn, by whoever sets its stage."""
    for name in deviations.keys() - {check.name for check in checks}:
        yield Outcome(name, "", Verdict.FAILED, 0.0, "a deviation is listed for a check that does not exist")
    for check in checks:
        if skipped := check.skipped(have):
            yield Outcome(check.name, check.promise, Verdict.SKIPPED, 0.0, skipped)
            continue
        began = time.monotonic()
        wrong = await _try(attempt, check)
        seconds = time.monotonic() - began
        reason = deviations.get(check.name)
        if wrong is None:
            verdict, told = (Verdict.PASSED, "") if reason is None else (Verdict.PASSES_NOW, f"listed: {reason}")
        else:
            verdict, told = (Verdict.FAILED, wrong) if reason is None else (Verdict.DEVIATES, reason)
        yield Outcome(check.name, check.promise, verdict, seconds, told)


def is_conforming(outcomes: Sequence[Outcome]) -> bool:
    """Nothing at all is not a success, and neither is what was only skipped."""
    ran = [outcome for outcome in outcomes if outcome.verdict is not Verdict.SKIPPED]
    return bool(ran) and all(outcome.is_good for outcome in ran)


async def _try(attempt: Callable[[Check[_Stage]], Awaitable[None]], check: Check[_Stage]) -> str | None:
    """What is wrong; None when the promise was kept."""
    deadline = asyncio.timeout(check.deadline_s)
    try:
        async with deadline:
            await attempt(check)
    except Broken as broken:
        return str(broken)
    except Exception as error:  # noqa: BLE001 - the root of a check: however it ends, the others are run
        if isinstance(error, TimeoutError) and deadline.expired():
            return f"it took longer than {check.deadline_s:g} s"
        return f"{type(error).__name__}: {error}"
    return None
