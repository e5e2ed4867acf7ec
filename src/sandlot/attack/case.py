"""One case of the suite, and how it is carried out."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from sandlot.attack import kernels
from sandlot.attack.arena import Arena, run_call
from sandlot.attack.bait import Machine
from sandlot.attack.rows import Row
from sandlot.attack.verdicts import Escaped, Finding, Leaked, NotApplicable, Severity, Verdict
from sandlot.model import Capability, SandlotError

DEADLINE_S = 120.0
_SHOWN_FAILURES = 5

Act = Callable[[Arena], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """`needs` holds what the host must declare. Without isolation an attack would hit the machine itself, so only what
    is harmless there does without."""

    name: str
    attack: str
    defence: str
    severity: Severity = Severity.CRITICAL
    rows: tuple[Row, ...] = ()
    act: Act | None = None
    not_yet: str = ""  # why there is nothing to attack
    needs: frozenset[Capability] = frozenset({Capability.ISOLATION})
    deadline_s: float = DEADLINE_S
    own_session: bool = False  # its rows leave traces in the session that they run in

    async def carry_out(self, arena: Arena) -> Finding:
        began = time.monotonic()
        verdict, detail, failed = await self._try(arena)
        seconds = time.monotonic() - began
        return Finding(
            self.name, self.attack, self.defence, self.severity, arena.runtime, verdict, seconds, detail, failed
        )

    async def _try(self, arena: Arena) -> tuple[Verdict, str, tuple[str, ...]]:
        lacking = sorted(self.needs - arena.capabilities)
        if not_there := kernels.CASES.get(arena.runtime, {}).get(self.name):
            return Verdict.NOT_APPLICABLE, not_there, ()
        if self.not_yet or lacking:
            return Verdict.NOT_APPLICABLE, self.not_yet or f"{arena.runtime} does not have: {', '.join(lacking)}", ()
        before = await asyncio.to_thread(Machine.look)
        sessions = set(await arena.sessions())
        failed: dict[str, str] = {}
        try:
            async with asyncio.timeout(self.deadline_s * kernels.PATIENCE.get(arena.runtime, 1.0)):
                failed = await self._try_rows(arena)
                if self.act:
                    await self.act(arena)
        except Escaped as escape:
            return Verdict.ESCAPED, str(escape), ()
        except Leaked as leak:
            return Verdict.LEAKED, str(leak), ()
        except NotApplicable as reason:
            return Verdict.NOT_APPLICABLE, str(reason), ()
        except TimeoutError:
            return Verdict.HUNG, f"no end after {self.deadline_s:g} s", ()
        except SandlotError as error:
            return Verdict.BROKEN, f"{type(error).__name__}: {error.message}", ()
        if failed:
            shown = [f"{name}: {why}" for name, why in list(failed.items())[:_SHOWN_FAILURES]]
            return Verdict.ESCAPED, "; ".join(shown), tuple(failed)
        return *await _look_behind(arena, before, sessions), ()

    async def _try_rows(self, arena: Arena) -> dict[str, str]:
        if not self.own_session:
            return await try_rows(arena, self.rows, arena.session)
        async with arena.fresh() as session:
            return await try_rows(arena, self.rows, session)


async def try_rows(arena: Arena, rows: Sequence[Row], session: str) -> dict[str, str]:
    """What did not end as it must, by row and user."""
    failed: dict[str, str] = {}
    for row in rows:
        for user in row.users:
            said = await run_call(arena.host, row.request(session, user, arena.facts))
            why = row.wrong(said.stdout, said.stderr, arena.facts)
            if why and not kernels.is_known(arena.runtime, row.name, said.text):
                failed[f"{row.name} ({user})"] = why
    return failed


async def _look_behind(arena: Arena, before: Machine, sessions: set[str]) -> tuple[Verdict, str]:
    """What the host looks like after an attack that saw what it should."""
    if gone := await asyncio.to_thread(arena.bait.missing):
        return Verdict.ESCAPED, f"on the machine, changed or gone: {', '.join(gone)}"
    if changed := (await asyncio.to_thread(Machine.look)).changed(before):
        return Verdict.ESCAPED, f"on the machine, changed: {', '.join(changed)}"
    if left := set(await arena.sessions()) - sessions:
        return Verdict.LEAKED, f"sessions that stayed: {', '.join(sorted(left))}"
    return Verdict.HELD, ""
