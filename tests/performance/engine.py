"""Real engines for the benchmark, on a data directory of its own that never outlives it."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sandlot.config.settings import load
from sandlot.host.service import SandboxHostService
from sandlot.host.templates.builtin import ROOT, fingerprint
from sandlot.host.templates.builtin import build as build_template
from sandlot.model import CallRequest, CallResult, SandlotError, SessionFilter, SessionSpec, Unavailable, limits
from sandlot.wiring.embedded import build
from tests.performance.measure import Raw, Rounds, milliseconds_since
from tests.performance.report import Report

CONCURRENCY = 8
_PAGES_MAX = 20
_CLEAR_ATTEMPTS = 5
_T = TypeVar("_T")
# In the template, so that a session can run it before anything was brought into it.
TRUE_IN_TEMPLATE = ("/usr/local/bin/sandlot-keeper", "true")
TRUE_IN_WORKSPACE = ("/workspace/sandlot-keeper", "true")


@dataclass(frozen=True)
class Bench:
    """What every section gets."""

    folder: Path
    program: Path  # the yardstick, and the engine's own guest program
    quick: bool
    report: Report

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def raw(self) -> Raw:
        return Raw(self.program)

    def rounds(self, full: int, quick: int) -> Rounds:
        count = quick if self.quick else full
        return Rounds(count, warm_up=max(2, count // 10))

    @asynccontextmanager
    async def engine(self, warm_pool: int = 0, runtime: str = "") -> AsyncGenerator[SandboxHostService]:
        """Whatever happens inside, its sessions are destroyed behind it."""
        self._prepare_template()
        environment = {
            "SANDLOT_DATA_DIR": str(self.data),
            "SANDLOT_KEEPER": str(self.program),
            "SANDLOT_WARM_POOL": str(warm_pool),
            "SANDLOT_RUNTIME": runtime,
        }
        async with build(load(environment)) as host:
            try:
                yield host
            finally:
                await self.destroy_all(host)

    def share_template(self, data: Path) -> None:
        """Another data directory starts with the same template."""
        data.mkdir(mode=0o700, exist_ok=True)
        if not (data / "templates").exists():
            (data / "templates").symlink_to(self.data / "templates")

    async def destroy_all(self, host: SandboxHostService) -> None:
        for _page in range(_PAGES_MAX):
            page = (await host.list(SessionFilter(limit=limits.LIST_PAGE_MAX))).sessions
            if not page:
                return
            for error in await for_each((session.session_id for session in page), host.destroy):
                self.report.say(f"  could not destroy a session: {error}")

    def _prepare_template(self) -> None:
        """As an engine would at its first session, plus the yardstick inside."""
        templates = self.data / "templates"
        templates.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = build_template(templates / f"builtin-{fingerprint()}")
        inside = made.path / ROOT / TRUE_IN_TEMPLATE[0].lstrip("/")
        if not inside.exists():
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.program, inside)
            inside.chmod(0o755)

    async def clear(self) -> None:
        """Remove the data directory, and first the sessions that a killed run may have left in it."""
        volumes = self.data / "volumes"
        for attempt in range(_CLEAR_ATTEMPTS):
            if not volumes.is_dir() or not any(volumes.iterdir()):
                break
            try:
                async with self.engine():
                    pass
            except Unavailable:  # the keeper of the engine before may still be on its way out
                if attempt + 1 == _CLEAR_ATTEMPTS:
                    raise
                await asyncio.sleep(1)
        if self.data.exists():
            shutil.rmtree(self.data)


async def run(host: SandboxHostService, session_id: str, *argv: str) -> CallResult:
    """A command to its end; one that fails would make every number beside it worthless."""
    async with host.call(CallRequest(session_id, argv=argv)) as stream:
        result = await stream.result()
    if result.exit_code != 0:
        raise RuntimeError(f"{argv} ended with {result.exit_code}: {result.reason}")
    return result


async def timed(work: Awaitable[object]) -> float:
    began = time.perf_counter_ns()
    await work
    return milliseconds_since(began)


async def session_with_true(host: SandboxHostService, program: Path) -> str:
    """A session that has the yardstick in its workspace."""
    session_id = (await host.create(SessionSpec())).session_id
    script = f"cat >{TRUE_IN_WORKSPACE[0]} && chmod 755 {TRUE_IN_WORKSPACE[0]}"
    async with host.call(CallRequest(session_id, argv=("sh", "-c", script), stdin=True)) as stream:
        await stream.write_stdin(program.read_bytes())
        await stream.close_stdin()
        result = await stream.result()
    if result.exit_code != 0:
        raise RuntimeError(f"the yardstick could not be brought into the session: {result}")
    return session_id


async def for_each(
    items: Iterable[_T], work: Callable[[_T], Awaitable[object]], concurrency: int = CONCURRENCY
) -> list[SandlotError]:
    """Do all, some at a time; gives what failed."""
    pending = iter(items)
    failed: list[SandlotError] = []

    async def worker() -> None:
        for item in pending:
            try:
                await work(item)
            except SandlotError as error:
                failed.append(error)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return failed
