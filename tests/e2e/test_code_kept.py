"""What contexts remember when their session is put away, brought back, forked or moved."""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from sandlot.config.settings import Settings, load
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CodeError,
    CodeRequest,
    CodeStatus,
    CodeValue,
    ContextRequest,
    ContextState,
    ForkRequest,
    InvalidState,
    MoveRequest,
    PauseRequest,
    RollbackRequest,
    SessionPaused,
    SessionSpec,
    SnapshotRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up
from tests.e2e.test_code import result, told
from tests.e2e.test_gvisor import NO_RUNSC
from tests.soak.shelf import SHELF, build_two

pytestmark = pytest.mark.root
SOON_S = 60
needs_runsc = pytest.mark.skipif(shutil.which("runsc") is None, reason=NO_RUNSC)


@pytest.fixture
def gvisor(data_dir: Path) -> Settings:
    known = {"SANDLOT_DATA_DIR": str(data_dir), "SANDLOT_STORAGE": "", "SANDLOT_RUNTIME": "gvisor"}
    return load({**os.environ, **known})


async def value(host: SandboxHostService, session_id: str, code: str, context: str | None = None) -> str:
    """What the code shows, or the name of what it raises."""
    async with asyncio.timeout(SOON_S):
        events = await told(host, CodeRequest(session_id, code, context_id=context))
    failed = [event.name for event in events if isinstance(event, CodeError)]
    assert result(events).status is (CodeStatus.ERROR if failed else CodeStatus.OK)
    return "".join(failed + [event.data["text/plain"] for event in events if isinstance(event, CodeValue)])


@needs_runsc
@pytest.mark.timeout(240)
async def test_a_context_sleeps_and_goes_back_with_its_session(gvisor: Settings) -> None:
    async with build(gvisor) as host:
        await host.create(SessionSpec(session_id="s"))
        await host.create_context(ContextRequest("s", "python", context_id="k"))
        assert (await value(host, "s", "x = 5\nx", "k"), await value(host, "s", "y = 6\ny")) == ("5", "6")
        await host.pause(PauseRequest("s", memory=True))
        with pytest.raises(SessionPaused):
            await value(host, "s", "x", "k")
        await host.resume("s")
        assert (await value(host, "s", "x", "k"), await value(host, "s", "y")) == ("5", "6")
        await host.create_snapshot(SnapshotRequest("s", "m", memory=True))
        for number in range(3):  # behind the snapshot: it never happened
            assert await value(host, "s", f"x = 'long {number} ' * 100\nlen(x)", "k") == "700"
        await host.rollback(RollbackRequest("s", "m"))
        assert (await value(host, "s", "x", "k"), await value(host, "s", "y")) == ("5", "6")
        await host.rollback(RollbackRequest("s", "m"))
    async with build(gvisor) as host:  # which knows that from files
        assert [each.state for each in await host.contexts("s")] == [ContextState.IDLE] * 2
        assert (await value(host, "s", "x", "k"), await value(host, "s", "y")) == ("5", "6")
    async with build(gvisor) as host:
        assert (await value(host, "s", "x + 1", "k"), await value(host, "s", "y + 1")) == ("6", "7")
        await clean_up(host)


@needs_runsc
async def test_a_fork_with_memory_has_contexts_of_its_own(gvisor: Settings) -> None:
    async with build(gvisor) as host:
        await host.create(SessionSpec(session_id="s"))
        assert await value(host, "s", "x = 5\nx") == "5"
        await host.create_snapshot(SnapshotRequest("s", "m", memory=True))
        (made,) = await host.fork(ForkRequest("s", "m", memory=True))
        assert await host.contexts(made.session_id) == ()
        assert await value(host, made.session_id, "x") == "NameError"
        assert await value(host, "s", "x") == "5"
        await clean_up(host)


async def test_a_move_ends_contexts_and_says_so(settings: Settings) -> None:
    async with build_two(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        await host.create_context(ContextRequest(session_id, "python", context_id="k"))
        assert await value(host, session_id, "x = 5\nx", "k") == "5"
        assert await value(host, session_id, "y = 6\ny") == "6"
        async with host.move(MoveRequest(session_id, SHELF)) as progress:
            async for _piece in progress:
                pass
        assert (await host.get(session_id)).storage == SHELF
        lost = {each.context_id: each for each in await host.contexts(session_id)}
        assert lost["k"].state is ContextState.LOST
        assert "moved" in lost["k"].reason
        with pytest.raises(InvalidState, match="restart it"):
            await value(host, session_id, "x", "k")
        assert await value(host, session_id, "y") == "NameError", "it is made anew"
        await host.restart_context(session_id, "k")
        assert await value(host, session_id, "x", "k") == "NameError"
        await clean_up(host)
