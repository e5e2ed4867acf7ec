"""What everything that can run sessions promises, at whatever depth: an engine, a client of a server, a router.

It asks through the verbs of `Host` alone. What has a suite of its own (files, commands, tools, storages) is only
touched here, so that it is known to arrive.
"""

import asyncio
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.host_calls import CALL_CHECKS
from sandlot.conformance.host_points import POINT_CHECKS
from sandlot.conformance.host_sessions import SESSION_CHECKS, entered
from sandlot.conformance.memory import MEMORY_CHECKS
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    Capability,
    Conflict,
    Event,
    EventFilter,
    EventKind,
    ExportRequest,
    FileKind,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    HealthStatus,
    ImportRequest,
    InvalidArgument,
    Mount,
    NotFound,
    PauseRequest,
    SandlotError,
    SessionFilter,
    TemplateNotFound,
    TreeDownload,
    TreeUpload,
    TurnRequest,
    VolumeSpec,
)

# The host of a check may be far away; but a promise that is kept after a minute is not kept.
_DEADLINE_S = 60.0


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def _write(stage: Stage, path: str, content: AsyncIterable[bytes]) -> None:
    await stage.host.write_file(FileWrite(stage.session.session_id, path), content)


async def _read(stage: Stage, path: str, offset: int = 0, length: int | None = None) -> bytes:
    request = FileRead(stage.session.session_id, path, offset=offset, length=length)
    async with stage.host.read_file(request) as stream:
        return b"".join([piece async for piece in stream])


# ---- files ---------------------------------------------------------------------------------------------------------


async def files_are_those_of_commands(stage: Stage) -> None:
    """What the host writes a command reads, and the other way; any bytes, in any pieces, from any offset."""
    content = bytes(range(256)) * 8000
    await _write(stage, "deep/a", pieces(content[:7], b"", content[7:]))
    equal((await stage.run("cat", "deep/a")).stdout == content, True)
    equal(await _read(stage, "deep/a") == content, True)
    equal(await _read(stage, f"{stage.session.workspace}/deep/a", offset=255, length=3), b"\xff\0\1")
    await stage.sh("echo from a command > b")
    equal(await _read(stage, "b"), b"from a command\n")


async def files_are_told_moved_and_removed(stage: Stage) -> None:
    """Kind, size and place; a file that is not there is not found."""
    session_id = stage.session.session_id
    await _write(stage, "d/a", pieces(b"12345"))
    info = await stage.host.stat_file(FileStat(session_id, "d/a"))
    equal((info.kind, info.size_bytes, info.path), (FileKind.FILE, 5, f"{stage.session.workspace}/d/a"))
    async with stage.host.list_files(FileList(session_id, "d")) as batches:
        equal([one.name async for batch in batches for one in batch], ["a"])
    equal((await stage.host.rename_file(FileRename(session_id, "d/a", to="d/b"))).name, "b")
    await refused(stage.host.stat_file(FileStat(session_id, "d/a")), FileNotFound)
    await stage.host.remove_file(FileRemove(session_id, "d", recursive=True))
    await refused(stage.host.remove_file(FileRemove(session_id, "d")), FileNotFound)
    equal((await stage.sh("test -e d")).result.exit_code, 1)


async def a_write_that_breaks_off_changes_nothing(stage: Stage) -> None:
    """When what is to be written fails halfway, that error is heard, and the file is as it was."""

    async def breaks() -> AsyncIterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    await _write(stage, "a", pieces(b"whole"))
    for name in ("a", "b"):
        try:
            await _write(stage, name, breaks())
        except (ZeroDivisionError, SandlotError):
            continue
        expect(False, "an error was lost")
    equal((await stage.sh("cat a; test -e b || echo ' alone'")).text, "whole alone")


async def a_tree_travels_both_ways(stage: Stage) -> None:
    """A directory comes out as an archive, and goes in as one."""
    session_id = stage.session.session_id
    await stage.sh("mkdir -p from/d; echo one > from/a; echo two > from/d/b")
    async with stage.host.download_tree(TreeDownload(session_id, "from")) as stream:
        archive = b"".join([piece async for piece in stream])
    tally = await stage.host.upload_tree(TreeUpload(session_id, "to"), pieces(archive))
    equal(tally.files, 2)
    equal((await stage.sh("cat to/a to/d/b")).text, "one\ntwo")


# ---- events, health and upkeep -------------------------------------------------------------------------------------


async def _told(stage: Stage, after: int | None = None, session_id: str | None = None) -> list[Event]:
    async with stage.host.events(EventFilter(after, session_id or stage.session.session_id)) as events:
        return [event async for event in events]


async def events_tell_the_life_of_a_session(stage: Stage) -> None:
    """In the order in which it happened, with offsets that grow; also of one that is gone."""
    other = await stage.another()
    name = other.session.session_id
    await stage.host.turn_complete(TurnRequest(name))
    await stage.host.extend(name, 600)
    await stage.host.destroy(name)
    events = await _told(stage, session_id=name)
    wanted = [EventKind.CREATED, EventKind.ACTIVE, EventKind.TURN, EventKind.EXTENDED, EventKind.DESTROYED]
    equal([event.kind for event in events], wanted)
    equal({event.session_id for event in events}, {name})
    offsets = [event.offset for event in events]
    equal(offsets, sorted(set(offsets)))
    equal(await _told(stage, offsets[2], name), events[3:])


async def events_are_heard_as_they_happen(stage: Stage) -> None:
    """Whoever follows hears what is to come, and nothing twice."""
    name = stage.session.session_id
    known = (await _told(stage))[-1].offset
    async with stage.host.events(EventFilter(known, name, follow=True)) as events:
        coming = asyncio.ensure_future(anext(aiter(events)))
        await stage.host.extend(name, 900)
        event = await coming
    equal(event.kind, EventKind.EXTENDED)
    expect(event.offset > known, "an event that is old was told as new")


async def pauses_are_told(stage: Stage) -> None:
    """Pausing and resuming are events."""
    name = stage.session.session_id
    await stage.host.pause(PauseRequest(name))
    await stage.host.resume(name)
    equal([event.kind for event in await _told(stage)][-2:], [EventKind.PAUSED, EventKind.RESUMED])


async def an_offset_that_was_never_given_is_refused(stage: Stage) -> None:
    """Nobody can have seen what has not happened."""
    await refused(entered(stage.host.events(EventFilter((1 << 62) + 1))), InvalidArgument)


async def health_has_figures(stage: Stage) -> None:
    """It counts sessions and calls, and its time goes on; it always answers."""
    before = await stage.host.health()
    expect(before.status in set(HealthStatus), f"it is {before.status}")
    expect(before.session_count >= 1, "a session is there and not counted")
    expect(0 <= before.pool_space.capacity <= 1, f"{before.pool_space.capacity} of its space is used")
    async with stage.host.call(stage.request("sleep", "600")) as stream:
        await anext(aiter(stream))
        during = await stage.host.health()
        expect(during.active_calls >= 1, "a call runs and is not counted")
    expect(during.uptime_s >= before.uptime_s, "its time goes backwards")


async def an_examination_answers(stage: Stage) -> None:
    """It has seen the sessions that are there, and changes nothing."""
    found = await stage.host.examine()
    expect(found.sessions >= 1, "an examination did not see a session that is there")
    equal((await stage.sh("echo on")).text, "on")


async def capabilities_are_names_that_everyone_knows(stage: Stage) -> None:
    """They are told as a set, and twice the same."""
    told = await stage.host.capabilities()
    equal(told - frozenset(Capability), frozenset[Capability]())
    equal(await stage.host.capabilities(), told)


# ---- what outlives sessions ----------------------------------------------------------------------------------------


async def a_template_that_is_none_is_not_found(stage: Stage) -> None:
    """By no verb, and nothing is made of it; a list of templates is told."""
    host, name = stage.host, f"no-such-{secrets.token_hex(4)}"
    for attempt in (
        host.get_template(name),
        host.remove_template(name),
        host.tag_template(name, f"{name}-too"),
        host.warm_template(name, 1),
    ):
        await refused(attempt, TemplateNotFound)
    equal([one for one in await host.list_templates() if any(known.startswith(name) for known in one.names)], [])


async def volumes_have_names(stage: Stage) -> None:
    """A volume is made once, told, listed and removed; one that is not there is not found."""
    host, name = stage.host, f"c-{secrets.token_hex(6)}"
    try:
        equal((await host.create_volume(VolumeSpec(name))).name, name)
        await refused(host.create_volume(VolumeSpec(name)), Conflict)
        equal((await host.get_volume(name)).name, name)
        expect(name in [one.name for one in await host.list_volumes()], "a volume is not in the list")
    finally:
        await host.remove_volume(name)
    await refused(host.get_volume(name), NotFound)
    await refused(host.remove_volume(name), NotFound)


async def a_volume_outlives_its_session(stage: Stage) -> None:
    """What one session writes into it the next one reads; while one has it it cannot be removed."""
    host, name = stage.host, f"c-{secrets.token_hex(6)}"
    await host.create_volume(VolumeSpec(name))
    mounts = (Mount(name, "/data"),)
    try:
        first = await stage.another(mounts=mounts)
        await first.sh("echo kept > /data/a", user="root")
        await refused(host.remove_volume(name), Conflict)
        await host.destroy(first.session.session_id)
        second = await stage.another(mounts=mounts)
        equal((await second.sh("cat /data/a")).text, "kept")
        await host.destroy(second.session.session_id)
    finally:
        await host.remove_volume(name)


async def a_session_comes_back_from_its_export(stage: Stage) -> None:
    """Its files and its turns, as another session; what is no export makes nothing."""
    await stage.sh("echo exported > a")
    await stage.host.turn_complete(TurnRequest(stage.session.session_id))
    async with stage.host.export(ExportRequest(stage.session.session_id)) as stream:
        content = [piece async for piece in stream]
    wanted = f"c-{secrets.token_hex(6)}"
    request = ImportRequest(wanted, stage.storage, stage.runtime)
    for wrong in (b"no export" * 100, b"".join(content)[: len(b"".join(content)) // 2]):
        await refused(stage.host.import_session(request, pieces(wrong)), InvalidArgument)
    made = stage.on(await stage.host.import_session(request, pieces(*content)))
    equal((made.session.session_id, made.session.turn_count), (wanted, 1))
    equal((await made.sh("cat a")).text, "exported")


async def a_host_has_many_sessions(stage: Stage) -> None:
    """Sessions do not see each other's files, and calls in all of them run at once."""
    others = [stage, *(await asyncio.gather(*(stage.another() for _ in range(4))))]
    await asyncio.gather(*(one.sh(f"echo {n} > a") for n, one in enumerate(others)))
    told = await asyncio.gather(*(one.sh("cat a") for one in others))
    equal([one.text for one in told], [str(n) for n in range(5)])
    page = await stage.host.list(SessionFilter(limit=1000))
    known = {one.session_id for one in page.sessions}
    expect({one.session.session_id for one in others} <= known or bool(page.next), "a session is in no list")


REST_CHECKS: tuple[Check[Stage], ...] = (
    Check(files_are_those_of_commands),
    Check(files_are_told_moved_and_removed),
    Check(a_write_that_breaks_off_changes_nothing),
    Check(a_tree_travels_both_ways),
    Check(events_tell_the_life_of_a_session),
    Check(events_are_heard_as_they_happen),
    Check(pauses_are_told, (Capability.PAUSE,)),
    Check(an_offset_that_was_never_given_is_refused),
    Check(health_has_figures),
    Check(an_examination_answers),
    Check(capabilities_are_names_that_everyone_knows),
    Check(a_template_that_is_none_is_not_found),
    Check(volumes_have_names),
    Check(a_volume_outlives_its_session, (Capability.VOLUMES, Capability.USERS)),
    Check(a_session_comes_back_from_its_export, (Capability.SNAPSHOTS,)),
    Check(a_host_has_many_sessions),
)

HOST_CHECKS: tuple[Check[Stage], ...] = (
    *(
        Check(check.run, check.needs, check.unless, _DEADLINE_S)
        for check in (*SESSION_CHECKS, *CALL_CHECKS, *POINT_CHECKS, *REST_CHECKS)
    ),
    *MEMORY_CHECKS,
)


async def conform_host(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = HOST_CHECKS,
    deviations: Mapping[str, str] = {},
) -> AsyncIterator[Outcome]:
    """Each check on a session of its own; nothing is left of it. `have`: what such sessions can do; None: what the host
    says of those that are made with defaults."""
    told = await host.capabilities() if have is None else have
    async for outcome in conform(host, runtime, checks, deviations, storage, told):
        yield outcome
