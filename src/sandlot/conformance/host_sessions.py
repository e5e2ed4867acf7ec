"""What every host promises of sessions: how they are made, told, found, paused and ended."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

from sandlot.conformance.checks import Broken, Check, Stage, collect, equal, expect, read_until
from sandlot.conformance.file_stage import refused
from sandlot.contracts import CallStream
from sandlot.model import (
    AUTO,
    CallRequest,
    CallStarted,
    Capability,
    CapabilityNotSupported,
    DiffRequest,
    ExportRequest,
    FileRead,
    FileStat,
    FileWrite,
    ForkRequest,
    InvalidArgument,
    InvalidState,
    LimitReached,
    MoveRequest,
    OnExpiry,
    PauseRequest,
    RelabelRequest,
    Resources,
    RollbackRequest,
    SandlotError,
    SessionDestroying,
    SessionExists,
    SessionFilter,
    SessionInfo,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    SessionState,
    SnapshotRequest,
    TemplateNotFound,
    ToolRequest,
    TurnRequest,
    Unavailable,
    limits,
)

_POLL_S = 0.05
_MIB = 1 << 20


async def _of_label(
    stage: Stage, label: str, limit: int = 100, states: frozenset[SessionState] = frozenset()
) -> list[SessionInfo]:
    """All that have it, page by page; others may use the host too."""
    found: list[SessionInfo] = []
    after: str | None = None
    while True:
        page = await stage.host.list(SessionFilter({"conformance": label}, states, limit, after))
        found += page.sessions
        after = page.next
        if after is None:
            return found


async def entered(manager: AbstractAsyncContextManager[object]) -> object:
    async with manager as value:
        return value


# ---- making --------------------------------------------------------------------------------------------------------


async def a_session_is_as_it_was_asked_for(stage: Stage) -> None:
    """It is active when it is told; its id, labels and time are those of the request, and what the host chose is told
    by name."""
    wanted, labels = f"c-{secrets.token_hex(6)}", {"conformance": "asked", "with space": "a=b\n\u00e9"}
    made = (await stage.another(session_id=wanted, labels=labels, timeout_s=3000)).session
    equal((made.session_id, dict(made.labels), made.state), (wanted, labels, SessionState.ACTIVE))
    expect(AUTO not in (made.storage, made.runtime, made.template), f"it is not told what was chosen: {made}")
    expect(2900 <= made.expires - made.created <= 3100, f"it lives for {made.expires - made.created:g} s, not 3000")
    expect(made.workspace.startswith("/"), f"the workspace is {made.workspace!r}")
    equal((made.turn_count, made.snap_count, made.reason, made.origin), (0, 0, "", None))
    again = await stage.host.get(wanted)
    equal((again.created, again.expires, dict(again.labels)), (made.created, made.expires, labels))


async def ids_that_nobody_asked_for_are_all_different(stage: Stage) -> None:
    """A session that was given no id has one of its own."""
    made = await asyncio.gather(*(stage.another() for _ in range(5)))
    ids = {one.session.session_id for one in made} | {stage.session.session_id}
    expect(len(ids) == 6, f"two sessions have one id: {ids}")


async def an_id_is_given_once(stage: Stage) -> None:
    """A second session of the same id is refused, also while the first is being made, and the first stays as it is."""
    await refused(stage.another(session_id=stage.session.session_id), SessionExists)
    wanted = f"c-{secrets.token_hex(6)}"
    made = await asyncio.gather(*(stage.another(session_id=wanted) for _ in range(4)), return_exceptions=True)
    wrong = [one for one in made if not isinstance(one, Stage | SessionExists)]
    equal((sum(isinstance(one, Stage) for one in made), wrong), (1, list[object]()))
    equal((await stage.host.get(stage.session.session_id)).created, stage.session.created)


async def what_cannot_be_had_makes_nothing(stage: Stage) -> None:
    """A template, a storage or a runtime that is none is refused, and no session is there afterwards."""
    label = {"conformance": secrets.token_hex(6)}
    wrong = stage.another(template="no-such-template", labels=label)
    await refused(wrong, TemplateNotFound, CapabilityNotSupported)  # or it takes none at all
    for runtime, storage in (("cardboard", stage.storage), (stage.runtime, "cardboard")):
        await refused(_made(stage, SessionSpec(runtime=runtime, storage=storage, labels=label)), InvalidArgument)
    equal(await _of_label(stage, label["conformance"]), [])


async def _made(stage: Stage, spec: SessionSpec) -> Stage:
    return stage.on(await stage.host.create(spec))


async def limits_are_held_or_refused(stage: Stage) -> None:
    """A limit that is asked for is told of the session, or refused before anything is made; it is never forgotten."""
    wishes: Mapping[Capability, Resources] = {
        Capability.LIMIT_CPUS: Resources(cpus=0.5),
        Capability.LIMIT_MEMORY: Resources(memory_bytes=256 * _MIB),
        Capability.LIMIT_PIDS: Resources(pids=100),
        Capability.LIMIT_OPEN_FILES: Resources(open_files=100),
    }
    label = {"conformance": secrets.token_hex(6)}
    refusals = 0
    for resources in wishes.values():
        (name,) = resources.asked()
        try:
            made = await stage.another(resources=resources, labels=label)
        except CapabilityNotSupported:
            refusals += 1
        else:
            equal(getattr(made.session.resources, name), getattr(resources, name))
    equal(len(await _of_label(stage, label["conformance"])), len(wishes) - refusals)


async def secrets_are_refused_where_there_are_none(stage: Stage) -> None:
    """A host that keeps no secrets refuses them, and makes nothing."""
    await refused(stage.another(secrets={"TOKEN": "hidden"}), CapabilityNotSupported)


async def a_create_that_is_repeated_makes_one_session(stage: Stage) -> None:
    """A request id that came before gives the session that was made for it, at once or later, until it is destroyed."""
    label = {"conformance": secrets.token_hex(6)}
    spec = SessionSpec(runtime=stage.runtime, storage=stage.storage, labels=label, request_id=secrets.token_hex(8))
    made = await asyncio.gather(*(_made(stage, spec) for _ in range(3)))
    first = made[0].session.session_id
    equal({one.session.session_id for one in made}, {first})
    equal((await _made(stage, spec)).session.session_id, first)
    equal(len(await _of_label(stage, label["conformance"])), 1)
    await stage.host.destroy(first)
    expect((await _made(stage, spec)).session.session_id != first, "one that was destroyed is told again")


# ---- telling -------------------------------------------------------------------------------------------------------


async def a_list_has_filters_and_pages(stage: Stage) -> None:
    """Sessions are told oldest first, in pages that neither lose nor repeat one; all labels of a filter must fit."""
    label = secrets.token_hex(6)
    made = [(await stage.another(labels={"conformance": label, "n": str(n % 2)})).session.session_id for n in range(5)]
    equal([one.session_id for one in await _of_label(stage, label, limit=2)], made)
    equal([one.session_id for one in await _of_label(stage, label)], made)
    page = await stage.host.list(SessionFilter({"conformance": label, "n": "1"}))
    equal(([one.session_id for one in page.sessions], page.next), (made[1::2], None))
    equal(await _of_label(stage, label, states=frozenset({SessionState.FAILED})), [])
    equal(len(await _of_label(stage, label, states=frozenset({SessionState.ACTIVE}))), 5)


async def a_cursor_that_is_none_is_refused(stage: Stage) -> None:
    """What no page gave is no cursor."""
    await refused(stage.host.list(SessionFilter(after="no such cursor")), InvalidArgument)


def _verbs(stage: Stage, name: str) -> Mapping[str, Callable[[], Awaitable[object]]]:
    """Every verb that takes the id of a session."""
    host = stage.host

    async def content() -> AsyncIterator[bytes]:
        yield b"x"

    return {
        "get": lambda: host.get(name),
        "pause": lambda: host.pause(PauseRequest(name)),
        "resume": lambda: host.resume(name),
        "extend": lambda: host.extend(name, 60),
        "relabel": lambda: host.relabel(RelabelRequest(name, {"a": "b"})),
        "destroy": lambda: host.destroy(name),
        "call": lambda: entered(host.call(CallRequest(name, ("true",)))),
        "attach": lambda: entered(host.attach(name, "c-1")),
        "calls": lambda: host.calls(name),
        "execute_tool": lambda: entered(host.execute_tool(ToolRequest(name, "read_file", {"path": "a"}))),
        "cancel_tool": lambda: host.cancel_tool(name, "c-1"),
        "read_file": lambda: entered(host.read_file(FileRead(name, "a"))),
        "write_file": lambda: host.write_file(FileWrite(name, "a"), content()),
        "stat_file": lambda: host.stat_file(FileStat(name, "a")),
        "create_snapshot": lambda: host.create_snapshot(SnapshotRequest(name, "mine")),
        "list_snapshots": lambda: host.list_snapshots(name),
        "delete_snapshot": lambda: host.delete_snapshot(name, "mine"),
        "turn_complete": lambda: host.turn_complete(TurnRequest(name)),
        "turns": lambda: host.turns(name),
        "diff": lambda: entered(host.diff(DiffRequest(name, "1"))),
        "rollback": lambda: host.rollback(RollbackRequest(name, "1")),
        "fork": lambda: host.fork(ForkRequest(name)),
        "move": lambda: entered(host.move(MoveRequest(name, stage.storage))),
        "export": lambda: entered(host.export(ExportRequest(name))),
        "recover": lambda: host.recover(name),
    }


async def a_session_that_is_not_there_is_not_found(stage: Stage) -> None:
    """Every verb says so with the same error, and a name that can be none is refused by it."""
    for verb, attempt in _verbs(stage, "nobody-made-this").items():
        try:
            await attempt()
        except SessionNotFound:
            continue
        except SandlotError as error:
            raise Broken(f"{verb} says {type(error).__name__}: {error}") from error
        raise Broken(f"{verb} was done")
    for wrong in ("", "..", "a/b", "a\0", "-a", "a" * 129):
        await refused(stage.host.get(wrong), InvalidArgument, SessionNotFound)
        await refused(stage.host.destroy(wrong), InvalidArgument, SessionNotFound)


# ---- standing still ------------------------------------------------------------------------------------------------


async def a_paused_session_refuses_and_goes_on(stage: Stage) -> None:
    """Calls and files are refused while it is paused; pausing and resuming twice is as once; nothing is lost."""
    name = stage.session.session_id
    await stage.sh("echo kept > a")
    equal((await stage.host.pause(PauseRequest(name))).state, SessionState.PAUSED)
    equal((await stage.host.pause(PauseRequest(name))).state, SessionState.PAUSED)
    equal((await stage.host.get(name)).state, SessionState.PAUSED)
    await refused(stage.sh("true"), SessionPaused)
    await refused(entered(stage.host.read_file(FileRead(name, "a"))), SessionPaused)
    equal((await stage.host.resume(name)).state, SessionState.ACTIVE)
    equal((await stage.host.resume(name)).state, SessionState.ACTIVE)
    equal((await stage.sh("cat a")).text, "kept")


async def what_runs_stands_still_and_goes_on(stage: Stage) -> None:
    """A command that runs when its session is paused is there afterwards, with its input and its output."""
    name = stage.session.session_id
    script = "echo ready; read -r line; echo got $line"
    async with stage.host.call(stage.request("sh", "-c", script, stdin=True)) as stream:
        await read_until(stream, b"ready\n")
        await stage.host.pause(PauseRequest(name))
        await stage.host.resume(name)
        await stream.write_stdin(b"word\n")
        ran = await collect(stream)
    equal((ran.result.exit_code, ran.stdout), (0, b"ready\ngot word\n"))


async def a_pause_that_may_not_freeze_is_refused(stage: Stage) -> None:
    """With a call that runs on, a pause that must not freeze it changes nothing."""
    name = stage.session.session_id
    async with stage.host.call(stage.request("sleep", "600")) as stream:
        await _started(stream)
        try:
            await stage.host.pause(PauseRequest(name, drain_s=0.05, freeze=False))
        except SandlotError as error:
            equal(error.code, "tools_in_flight")
        else:
            raise Broken("it was paused all the same")
        equal((await stage.sh("echo on")).text, "on")


async def _started(stream: CallStream) -> None:
    async for event in stream:
        if isinstance(event, CallStarted):
            return
    raise Broken("a call ended and had not begun")


# ---- ending --------------------------------------------------------------------------------------------------------


async def a_destroyed_session_is_gone(stage: Stage) -> None:
    """It is in no list and found by no verb; destroying it again says that it is not there."""
    label = secrets.token_hex(6)
    other = await stage.another(labels={"conformance": label})
    await stage.host.destroy(other.session.session_id)
    equal(await _of_label(stage, label), [])
    for attempt in (stage.host.get, stage.host.destroy, stage.host.resume):
        await refused(attempt(other.session.session_id), SessionNotFound)
    await refused(other.sh("true"), SessionNotFound)
    equal((await stage.sh("echo on")).text, "on")


async def many_may_destroy_one_session(stage: Stage) -> None:
    """Who destroys it while someone else does waits for the same end, and hears of no other error."""
    name = (await stage.another()).session.session_id
    ends = await asyncio.gather(*(stage.host.destroy(name) for _ in range(4)), return_exceptions=True)
    expect(None in ends, f"nobody heard that it is gone: {ends}")
    equal([end for end in ends if end is not None and not isinstance(end, SessionNotFound)], [])
    await refused(stage.host.get(name), SessionNotFound)


async def a_destroy_ends_what_runs(stage: Stage) -> None:
    """Whoever waits for a call hears that it is lost, and does not wait on."""
    other = await stage.another()
    async with stage.host.call(other.request("sleep", "600")) as stream:
        await _started(stream)
        await stage.host.destroy(other.session.session_id)
        await refused(stream.result(), Unavailable, SessionNotFound, SessionDestroying)


async def a_session_ends_with_its_time(stage: Stage) -> None:
    """When its time is up it is gone, without anyone asking."""
    short = (await stage.another(timeout_s=0.3)).session.session_id
    while True:
        try:
            await stage.host.get(short)
        except SessionNotFound:
            break
        await asyncio.sleep(_POLL_S)


async def a_session_may_be_paused_by_its_time(stage: Stage) -> None:
    """One that is to be paused at its end cannot be resumed until it is given more time."""
    name = (await stage.another(timeout_s=0.3, on_expiry=OnExpiry.PAUSE)).session.session_id
    while (await stage.host.get(name)).state is not SessionState.PAUSED:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    await refused(stage.host.resume(name), InvalidState)
    await stage.host.extend(name, 600)
    equal((await stage.host.resume(name)).state, SessionState.ACTIVE)


async def its_time_is_counted_anew(stage: Stage) -> None:
    """`extend` gives it so long from now on, longer or shorter than before; what is no time is refused."""
    name = stage.session.session_id
    for wanted in (7200.0, 600.0):
        before = (await stage.host.get(name)).expires
        told = (await stage.host.extend(name, wanted)).expires
        equal(((await stage.host.get(name)).expires, told == before), (told, False))
    left = told - stage.session.created
    expect(500 <= left <= 900, f"it lives {left:g} s from its beginning on, and was to live 600 s from now on")
    for wrong in (0.0, -1.0, float("nan"), 1e12):
        await refused(stage.host.extend(name, wrong), InvalidArgument)


async def labels_are_set_and_taken_away(stage: Stage) -> None:
    """Those that are not named stay; a list sees it at once, and two at once are both done. What is none is refused."""
    host = stage.host
    name = (await stage.another(labels={"kept": "1", "changed": "1", "gone": "1"})).session.session_id
    await host.relabel(RelabelRequest(name, {"changed": "2", "new": "ü"}, ("gone", "never-there")))
    both = [host.relabel(RelabelRequest(name, {f"at-once-{number}": "1"})) for number in range(4)]
    await asyncio.gather(*both)
    wanted = {"kept": "1", "changed": "2", "new": "ü"} | {f"at-once-{number}": "1" for number in range(4)}
    equal(dict((await host.get(name)).labels), wanted)
    found = (await host.list(SessionFilter(labels={"changed": "2"}))).sessions
    equal([session.session_id for session in found if session.session_id == name], [name])
    found = (await host.list(SessionFilter(labels={"gone": "1"}))).sessions
    expect(name not in [session.session_id for session in found], "it is found by a label that was taken away")
    many = [f"many-{number}" for number in range(limits.LABELS_MAX)]
    await refused(host.relabel(RelabelRequest(name, dict.fromkeys(many, "x"))), LimitReached)
    equal(dict((await host.get(name)).labels), wanted)


async def what_has_not_failed_needs_no_recovery(stage: Stage) -> None:
    """Recovering a session that is well is refused, and it goes on."""
    await refused(stage.host.recover(stage.session.session_id), InvalidState)
    equal((await stage.sh("echo on")).text, "on")


SESSION_CHECKS: tuple[Check[Stage], ...] = (
    Check(a_session_is_as_it_was_asked_for),
    Check(ids_that_nobody_asked_for_are_all_different),
    Check(an_id_is_given_once),
    Check(what_cannot_be_had_makes_nothing),
    Check(limits_are_held_or_refused),
    Check(secrets_are_refused_where_there_are_none, unless=Capability.SECRETS),
    Check(a_create_that_is_repeated_makes_one_session),
    Check(a_list_has_filters_and_pages),
    Check(a_cursor_that_is_none_is_refused),
    Check(a_session_that_is_not_there_is_not_found),
    Check(a_paused_session_refuses_and_goes_on, (Capability.PAUSE,)),
    Check(what_runs_stands_still_and_goes_on, (Capability.PAUSE,)),
    Check(a_pause_that_may_not_freeze_is_refused, (Capability.PAUSE,)),
    Check(a_destroyed_session_is_gone),
    Check(many_may_destroy_one_session),
    Check(a_destroy_ends_what_runs),
    Check(a_session_ends_with_its_time),
    Check(a_session_may_be_paused_by_its_time, (Capability.PAUSE,)),
    Check(its_time_is_counted_anew),
    Check(labels_are_set_and_taken_away),
    Check(what_has_not_failed_needs_no_recovery),
)
