"""Sessions that take a snapshot after every call, and how snapshots are named and kept."""

import asyncio
from dataclasses import replace

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CapabilityNotSupported,
    ForkRequest,
    InvalidArgument,
    RollbackRequest,
    SessionSpec,
    SnapshotKind,
    SnapshotRequest,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import Ran, clean_up, run

pytestmark = pytest.mark.root


async def make(host: SandboxHostService) -> str:
    return (await host.create(SessionSpec(call_snapshots=True))).session_id


async def sh(host: SandboxHostService, session_id: str, script: str, call_id: str | None = None) -> Ran:
    return await run(host, CallRequest(session_id, ("sh", "-c", script), call_id=call_id))


async def names(host: SandboxHostService, session_id: str) -> list[str]:
    return [shot.name for shot in await host.list_snapshots(session_id)]


async def test_every_call_leaves_a_snapshot_that_its_result_names(host: SandboxHostService) -> None:
    session_id = await make(host)
    one = await sh(host, session_id, "echo 1 > a", "one")
    two = await sh(host, session_id, "echo 2 > a; exit 3", "two")
    assert (one.result.snapshot, two.result.snapshot) == ("call-one", "call-two")
    assert two.exit_code == 3
    assert {shot.kind for shot in await host.list_snapshots(session_id)} == {SnapshotKind.CALL}
    await host.rollback(RollbackRequest(session_id, "call-one"))
    assert (await sh(host, session_id, "cat a")).stdout == b"1\n"
    assert "call-two" not in await names(host, session_id)


async def test_without_the_wish_there_is_none(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    assert (await sh(host, session_id, "echo 1 > a")).result.snapshot is None
    assert await names(host, session_id) == []


async def test_calls_that_end_together_all_get_theirs(host: SandboxHostService) -> None:
    session_id = await make(host)
    ran = await asyncio.gather(*(sh(host, session_id, f"echo {n} > {n}", f"n{n}") for n in range(8)))
    assert {one.result.snapshot for one in ran} == {f"call-n{n}" for n in range(8)}
    for n in (0, 7):
        await host.rollback(RollbackRequest(session_id, f"call-n{n}", keep=True))
        assert (await sh(host, session_id, f"cat {n}")).stdout == f"{n}\n".encode()


async def test_a_detached_call_has_none(host: SandboxHostService) -> None:
    session_id = await make(host)
    ran = await run(host, CallRequest(session_id, ("true",), detach=True))
    assert ran.result.snapshot is None


async def test_forks_and_later_engines_go_on_taking_them(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = await make(host)
        await sh(host, session_id, "echo 1 > a", "one")
        [fork] = await host.fork(ForkRequest(session_id, "call-one"))
        assert (await sh(host, fork.session_id, "true", "forked")).result.snapshot == "call-forked"
    async with build(settings) as host:
        assert (await sh(host, session_id, "true", "two")).result.snapshot == "call-two"
        await clean_up(host)


async def test_an_id_that_leaves_no_room_is_refused_and_runs_nothing(host: SandboxHostService) -> None:
    session_id = await make(host)
    with pytest.raises(InvalidArgument):
        await sh(host, session_id, "echo 1 > a", "c" * 128)
    assert (await sh(host, session_id, "ls")).stdout == b""


async def test_where_there_are_no_snapshots_the_wish_is_refused(host: SandboxHostService) -> None:
    with pytest.raises(CapabilityNotSupported):
        await host.create(SessionSpec(runtime="none", call_snapshots=True))


async def test_calls_are_pruned_with_their_turns(settings: Settings) -> None:
    async with build(replace(settings, turns_kept=1)) as host:
        session_id = await make(host)
        for number in range(3):
            await sh(host, session_id, f"echo {number} > a", f"c{number}")
            await host.turn_complete(TurnRequest(session_id))
        assert await names(host, session_id) == ["call-c2", "turn-0003"]
        await clean_up(host)


async def test_a_prefix_names_turns_and_is_kept_from_users(settings: Settings) -> None:
    async with build(settings) as host:
        session_id = (await host.create(SessionSpec())).session_id
        await host.turn_complete(TurnRequest(session_id))
    async with build(replace(settings, snapshot_prefix="step")) as host:
        await sh(host, session_id, "echo 2 > a")
        assert (await host.turn_complete(TurnRequest(session_id))).snapshot == "step-0002"
        with pytest.raises(InvalidArgument):
            await host.create_snapshot(SnapshotRequest(session_id, "step-0009"))
        # A number means the turn, whatever its snapshot is called.
        await host.rollback(RollbackRequest(session_id, "1"))
        assert await names(host, session_id) == ["turn-0001"]
        await clean_up(host)


async def test_turns_tell_their_space(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec())).session_id
    for size in (1, 4):
        await sh(host, session_id, f"head -c {size}M /dev/urandom > f{size}")
        await host.turn_complete(TurnRequest(session_id))
    small, large = [turn.space_bytes or 0 for turn in await host.turns(session_id)]
    assert 1 << 20 <= small < 3 << 20
    assert 4 << 20 <= large < 6 << 20


async def test_a_host_can_want_them_for_every_session(settings: Settings) -> None:
    async with build(replace(settings, call_snapshots=True)) as host:
        session_id = (await host.create(SessionSpec())).session_id
        assert (await sh(host, session_id, "echo 1 > a", "one")).result.snapshot == "call-one"
        await clean_up(host)
