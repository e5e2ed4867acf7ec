"""What every host promises of the history of a session: snapshots, turns, rollback, comparisons and forks."""

import asyncio
import secrets
from collections.abc import Sequence

from sandlot.conformance.checks import Broken, Check, Stage, equal, expect, read_until
from sandlot.conformance.file_stage import refused
from sandlot.model import (
    Capability,
    ChangeKind,
    Conflict,
    DiffRequest,
    ForkRequest,
    InvalidArgument,
    RollbackRequest,
    SessionInfo,
    SessionState,
    SnapshotKind,
    SnapshotNotFound,
    SnapshotRequest,
    SnapshotsNotAvailable,
    ToolsInFlight,
    Turn,
    TurnRequest,
)

_SNAPSHOTS = (Capability.SNAPSHOTS,)


async def _turn(stage: Stage, request_id: str | None = None) -> Turn:
    return await stage.host.turn_complete(TurnRequest(stage.session.session_id, request_id))


async def _back(stage: Stage, to: str, *, keep: bool = False) -> SessionInfo:
    return await stage.host.rollback(RollbackRequest(stage.session.session_id, to, keep))


async def _names(stage: Stage) -> list[str]:
    return [one.name for one in await stage.host.list_snapshots(stage.session.session_id)]


async def _changes(stage: Stage, old: str, new: str = ".") -> dict[str, ChangeKind]:
    below = stage.session.workspace
    async with stage.host.diff(DiffRequest(stage.session.session_id, old, new, below=below)) as batches:
        return {change.path.removeprefix(f"{below}/"): change.kind async for batch in batches for change in batch}


async def turns_have_numbers_and_snapshots(stage: Stage) -> None:
    """Turns are numbered from 1 on and told oldest first, each with its calls and its snapshot; the session counts."""
    for number in (1, 2):
        await stage.sh(f"echo {number} > a")
        turn = await _turn(stage)
        equal(turn.number, number)
        expect(bool(turn.snapshot), "a turn has no snapshot")
    turns = await stage.host.turns(stage.session.session_id)
    equal([turn.number for turn in turns], [1, 2])
    equal([call.argv[-1] for call in turns[1].calls], ["echo 2 > a"])
    told = await stage.host.list_snapshots(stage.session.session_id)
    equal([(one.name, one.turn, one.kind) for one in told], [(t.snapshot, t.number, SnapshotKind.TURN) for t in turns])
    session = await stage.host.get(stage.session.session_id)
    equal((session.turn_count, session.snap_count, session.head), (2, 2, turns[1].snapshot))


async def without_snapshots_turns_are_recorded(stage: Stage) -> None:
    """Where there are no snapshots a turn is closed without one; whoever asks for one is told that there is none."""
    await stage.sh("echo 1 > a")
    turn = await _turn(stage)
    equal((turn.number, turn.snapshot), (1, None))
    session_id = stage.session.session_id
    await refused(stage.host.create_snapshot(SnapshotRequest(session_id, "mine")), SnapshotsNotAvailable)
    await refused(_back(stage, "1"), SnapshotsNotAvailable)
    await refused(stage.host.fork(ForkRequest(session_id)), SnapshotsNotAvailable)


async def a_turn_that_is_repeated_is_closed_once(stage: Stage) -> None:
    """With the same request id the first answer comes again, and no second turn is there."""
    request = secrets.token_hex(8)
    told = await asyncio.gather(*(_turn(stage, request) for _ in range(3)))
    told.append(await _turn(stage, request))
    equal([(turn.number, turn.snapshot) for turn in told], [(1, told[0].snapshot)] * 4)
    equal(len(await stage.host.turns(stage.session.session_id)), 1)


async def snapshots_have_names(stage: Stage) -> None:
    """A name is given once, names that the host gives are refused, and one that was deleted is gone."""
    session_id = stage.session.session_id
    made = await stage.host.create_snapshot(SnapshotRequest(session_id, "mine"))
    equal((made.name, made.kind, made.turn), ("mine", SnapshotKind.NAMED, None))
    await refused(stage.host.create_snapshot(SnapshotRequest(session_id, "mine")), Conflict)
    for wrong in ("turn-0001", "7", "a/b", "..", ""):
        try:
            await stage.host.create_snapshot(SnapshotRequest(session_id, wrong))
        except InvalidArgument:
            continue
        raise Broken(f"a snapshot is called {wrong!r}")
    equal(await _names(stage), ["mine"])
    await stage.host.delete_snapshot(session_id, "mine")
    await refused(stage.host.delete_snapshot(session_id, "mine"), SnapshotNotFound)
    equal(await _names(stage), [])


async def a_rollback_brings_files_back(stage: Stage) -> None:
    """By name or by number of a turn; the session keeps its id, and what is newer is gone."""
    await stage.sh("echo old > a; mkdir -p d; echo in > d/f")
    first = await _turn(stage)
    await stage.sh("echo new > a; rm -r d; echo more > b")
    await _turn(stage)
    back = await _back(stage, "1")
    equal((back.session_id, back.state), (stage.session.session_id, SessionState.ACTIVE))
    equal((await stage.sh("cat a d/f; test -e b || echo gone")).text, "old\nin\ngone")
    equal(await _names(stage), [first.snapshot])
    equal([turn.number for turn in await stage.host.turns(stage.session.session_id) if turn.snapshot], [1])
    expect((await _turn(stage)).number > 2, "a number of a turn was given twice")


async def a_rollback_may_keep_what_is_newer(stage: Stage) -> None:
    """Then one can go forward again."""
    await stage.sh("echo old > a")
    await _turn(stage)
    await stage.sh("echo new > a")
    await _turn(stage)
    await _back(stage, "1", keep=True)
    equal((await stage.sh("cat a")).text, "old")
    await _back(stage, "2", keep=True)
    equal((await stage.sh("cat a")).text, "new")


async def a_wrong_target_changes_nothing(stage: Stage) -> None:
    """A snapshot or a turn that is not there is not found by any verb, and files stay as they are."""
    await stage.sh("echo now > a")
    await _turn(stage)
    session_id = stage.session.session_id
    for wrong in ("no-such", "9"):
        await refused(_back(stage, wrong), SnapshotNotFound)
        await refused(stage.host.fork(ForkRequest(session_id, wrong)), SnapshotNotFound)
        await refused(_changes(stage, wrong), SnapshotNotFound)
        await refused(stage.host.delete_snapshot(session_id, f"x{wrong}"), SnapshotNotFound)
    session = await stage.host.get(session_id)
    equal((session.state, session.snap_count), (SessionState.ACTIVE, 1))
    equal((await stage.sh("cat a")).text, "now")


async def no_rollback_pulls_files_from_under_a_call(stage: Stage) -> None:
    """While someone waits for a call a rollback is refused, and the call goes on."""
    await _turn(stage)
    async with stage.host.call(stage.request("sh", "-c", "echo ready; read -r line; exit 5", stdin=True)) as stream:
        await read_until(stream, b"ready\n")
        await refused(_back(stage, "1"), ToolsInFlight)
        await stream.write_stdin(b"on\n")
        equal((await stream.result()).exit_code, 5)
    equal((await _back(stage, "1")).state, SessionState.ACTIVE)


async def a_comparison_tells_every_change(stage: Stage) -> None:
    """What was added, changed and removed between two points, or since one; equal points have no difference."""
    await stage.sh("echo 1 > changed; echo 1 > removed; echo 1 > same; mkdir -p d")
    await _turn(stage)
    equal(await _changes(stage, "1"), dict[str, ChangeKind]())
    await stage.sh("echo 22 > changed; rm removed; echo 1 > d/added")
    wanted = {"changed": ChangeKind.CHANGED, "removed": ChangeKind.REMOVED, "d/added": ChangeKind.ADDED}

    def files(found: dict[str, ChangeKind]) -> dict[str, ChangeKind]:
        return {path: kind for path, kind in found.items() if path != "d"}  # whose time changed too

    equal(files(await _changes(stage, "1")), wanted)
    await _turn(stage)
    equal(files(await _changes(stage, "1", "2")), wanted)
    backwards = {"changed": ChangeKind.CHANGED, "removed": ChangeKind.ADDED, "d/added": ChangeKind.REMOVED}
    equal(files(await _changes(stage, "2", "1")), backwards)


async def _forked(stage: Stage, request: ForkRequest) -> Sequence[Stage]:
    return [stage.on(made) for made in await stage.host.fork(request)]


async def forks_are_sessions_of_their_own(stage: Stage) -> None:
    """They begin with the files of the point, say where they come from, and share nothing from then on."""
    session_id = stage.session.session_id
    await stage.sh("echo then > a")
    await _turn(stage)
    await stage.sh("echo now > a")
    one, two = await _forked(stage, ForkRequest(session_id, "1", count=2, labels={"fork": "yes"}))
    equal(len({session_id, one.session.session_id, two.session.session_id}), 3)
    equal((dict(one.session.labels), (one.session.origin or "").split("/")[0]), ({"fork": "yes"}, session_id))
    await one.sh("echo one > a")
    equal([(await each.sh("cat a")).text for each in (stage, one, two)], ["now", "one", "then"])
    await stage.host.destroy(one.session.session_id)
    equal([(await each.sh("cat a")).text for each in (stage, two)], ["now", "then"])


async def a_fork_of_now_needs_no_name(stage: Stage) -> None:
    """Without a point a fork begins with the files as they are."""
    await stage.sh("echo now > a")
    (made,) = await _forked(stage, ForkRequest(stage.session.session_id))
    equal((await made.sh("cat a")).text, "now")


async def a_fork_that_is_repeated_makes_no_more(stage: Stage) -> None:
    """With the same request id the same sessions are told."""
    request = ForkRequest(stage.session.session_id, count=2, request_id=secrets.token_hex(8))
    first = [made.session.session_id for made in await _forked(stage, request)]
    again = [made.session.session_id for made in await _forked(stage, request)]
    equal(again, first)


POINT_CHECKS: tuple[Check[Stage], ...] = (
    Check(turns_have_numbers_and_snapshots, _SNAPSHOTS),
    Check(without_snapshots_turns_are_recorded, unless=Capability.SNAPSHOTS),
    Check(a_turn_that_is_repeated_is_closed_once),
    Check(snapshots_have_names, _SNAPSHOTS),
    Check(a_rollback_brings_files_back, _SNAPSHOTS),
    Check(a_rollback_may_keep_what_is_newer, _SNAPSHOTS),
    Check(a_wrong_target_changes_nothing, _SNAPSHOTS),
    Check(no_rollback_pulls_files_from_under_a_call, _SNAPSHOTS),
    Check(a_comparison_tells_every_change, _SNAPSHOTS),
    Check(forks_are_sessions_of_their_own, _SNAPSHOTS),
    Check(a_fork_of_now_needs_no_name, _SNAPSHOTS),
    Check(a_fork_that_is_repeated_makes_no_more, _SNAPSHOTS),
)
