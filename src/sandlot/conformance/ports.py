"""What every host promises of ports: who listens inside is reached from outside, and nobody else is."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Broken, Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.port_stage import (
    Line,
    a_port,
    dialled,
    echoed,
    is_turned_away,
    read_all,
    read_exactly,
    serve,
    serve_oddly,
)
from sandlot.conformance.process_stage import FOREVER, hear, launch, status
from sandlot.contracts import Host
from sandlot.contracts.ports import PortStream
from sandlot.model import (
    AUTO,
    Capability,
    Conflict,
    ExposeRequest,
    InvalidArgument,
    NotFound,
    PauseRequest,
    ProcessNotFound,
    RollbackRequest,
    SessionNotFound,
    SessionPaused,
    SnapshotRequest,
    StartFailed,
    Unavailable,
)

_DEADLINE_S = 60.0
_AT_ONCE = 20
_MUCH = 8 << 20
_LOOKS, _LOOK_S = 200, 0.05


# ---- connections ---------------------------------------------------------------------------------------------------


async def who_listens_inside_is_reached(stage: Stage) -> None:
    """Bytes arrive as they were said, both ways, and each side hears the end of the other."""
    port, said = a_port(), secrets.token_bytes(100_000)
    await serve(stage, port)
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        await stream.write(b"a")
        equal(await read_exactly(stream, 1), b"a")
        equal(await echoed(stream, said), said)
        equal(await stream.read(), b"")


async def who_listens_on_the_other_loopback_is_reached(stage: Stage) -> None:
    """On ::1 as well as on 127.0.0.1."""
    port = a_port()
    await serve(stage, port, address="::1")
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        equal(await echoed(stream, b"six"), b"six")


async def where_nobody_listens_is_told(stage: Stage) -> None:
    """With NotFound, and a request that cannot be with InvalidArgument."""
    session_id = stage.session.session_id
    await refused(_connected(stage, session_id, a_port()), NotFound)
    await refused(_connected(stage, session_id, 0), InvalidArgument)
    await refused(_connected(stage, session_id, 65536), InvalidArgument)
    await refused(_connected(stage, "there-is-none", a_port()), SessionNotFound)


async def connections_are_kept_apart(stage: Stage) -> None:
    """Many at once to one port: each hears its own."""
    port = a_port()
    await serve(stage, port)

    async def talk(number: int) -> None:
        said = f"{number:04}".encode() * 5000
        async with stage.host.connect_port(stage.session.session_id, port) as stream:
            equal(await echoed(stream, said), said)

    async with asyncio.TaskGroup() as group:
        for number in range(_AT_ONCE):
            group.create_task(talk(number))


async def another_session_is_not_reached(stage: Stage) -> None:
    """The same port of another session is another one."""
    port, other = a_port(), await stage.another()
    await serve(stage, port)
    await refused(_connected(stage, other.session.session_id, port), NotFound)


async def much_arrives_whole(stage: Stage) -> None:
    """Whatever is not read waits in the program, and none of it is lost."""
    port = a_port()
    await serve_oddly(stage, port, "talks", str(_MUCH))
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        await asyncio.sleep(0.05)
        heard = await read_all(stream)
    equal((len(heard), heard.count(b"x")), (_MUCH, _MUCH))


async def half_of_a_connection_may_end(stage: Stage) -> None:
    """A program that says no more still hears."""
    port = a_port()
    process = await serve_oddly(stage, port, "ends")
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        equal(await stream.read(), b"")
        await stream.write(b"y" * 100_000)
        await stream.close_write()
        await hear(stage, process.process_id, b"100000\n")


async def who_leaves_ends_the_connection(stage: Stage) -> None:
    """The program hears the end of it."""
    port = a_port()
    process = await serve_oddly(stage, port, "ends")
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        equal(await stream.read(), b"")
        await stream.write(b"z" * 10)
    await hear(stage, process.process_id, b"10\n")


async def what_does_not_read_is_waited_for(stage: Stage) -> None:
    """Writing waits, and nothing grows; leaving ends it."""
    port = a_port()
    await serve_oddly(stage, port, "holds")
    async with stage.host.connect_port(stage.session.session_id, port) as stream:
        writing = asyncio.ensure_future(_write_for_ever(stream))
        done, _ = await asyncio.wait([writing], timeout=2.0)
        expect(not done, "a program that reads nothing took all of it")
    await refused(writing, Unavailable)


async def _write_for_ever(stream: PortStream) -> None:
    for _ in range(512):
        await stream.write(b"\0" * (1 << 18))


async def a_connection_stands_still_with_its_session(stage: Stage) -> None:
    """Nobody connects to a session that is paused; who has a connection goes on when the session does."""
    port, session_id = a_port(), stage.session.session_id
    await serve(stage, port)
    async with stage.host.connect_port(session_id, port) as stream:
        await stage.host.pause(PauseRequest(session_id))
        await refused(_connected(stage, session_id, port), SessionPaused)
        await stage.host.resume(session_id)
        equal(await echoed(stream, b"still"), b"still")


async def a_connection_ends_with_its_session(stage: Stage) -> None:
    """Whoever reads hears of it."""
    port, other = a_port(), await stage.another()
    await serve(other, port)
    async with stage.host.connect_port(other.session.session_id, port) as stream:
        await stream.write(b"a")
        equal(await read_exactly(stream, 1), b"a")
        await stage.host.destroy(other.session.session_id)
        expect(await _is_over(stream), "a connection outlives its session")


async def _is_over(stream: PortStream | Line) -> bool:
    try:
        async with asyncio.timeout(_DEADLINE_S / 2):
            return await stream.read() in (b"", b"<end>")
    except (Unavailable, ConnectionError):
        return True


async def _connected(stage: Stage, session_id: str, port: int) -> None:
    async with stage.host.connect_port(session_id, port):
        pass


# ---- exposed ports ---------------------------------------------------------------------------------------------------


async def an_exposed_port_is_reached(stage: Stage) -> None:
    """By its address, whoever listens there inside; it is told and listed, and exposing it again tells the same."""
    port, session_id = a_port(), stage.session.session_id
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    equal((exposed.session_id, exposed.port, exposed.process_id), (session_id, port, None))
    equal(await stage.host.expose_port(ExposeRequest(session_id, port)), exposed)
    equal(list(await stage.host.list_ports(session_id)), [exposed])
    await serve(stage, port)
    async with dialled(exposed.address) as line:
        said = secrets.token_bytes(300_000)
        await line.write(b"a")
        equal(await line.read(1), b"a")
        (told,) = await stage.host.list_ports(session_id)
        equal((told.connections, told.address), (1, exposed.address))
        equal(await echoed(line, said), said)
    await _none_are_open(stage)


async def a_session_is_made_with_ports(stage: Stage) -> None:
    """They are exposed when it is there."""
    ports = sorted((a_port(), a_port()))
    other = await stage.another(ports=tuple(ports))
    told = await stage.host.list_ports(other.session.session_id)
    equal([(each.port, bool(each.address)) for each in told], [(port, True) for port in ports])
    await serve(other, ports[0])
    async with dialled(told[0].address) as line:
        equal(await echoed(line, b"made"), b"made")


async def where_nobody_listens_connections_end(stage: Stage) -> None:
    """The address takes them, and they are broken off."""
    exposed = await stage.host.expose_port(ExposeRequest(stage.session.session_id, a_port()))
    expect(await is_turned_away(exposed.address), "somebody answered")
    await _none_are_open(stage)


async def a_port_of_the_host_can_be_chosen(stage: Stage) -> None:
    """One that is taken is a Conflict, and nothing is exposed by it."""
    session_id, port, other = stage.session.session_id, a_port(), a_port()
    first = await stage.host.expose_port(ExposeRequest(session_id, port))
    host_port = int(first.address.rpartition(":")[2])
    await refused(stage.host.expose_port(ExposeRequest(session_id, other, host_port)), Conflict)
    equal([each.port for each in await stage.host.list_ports(session_id)], [port])
    await stage.host.unexpose_port(session_id, port)
    again = await stage.host.expose_port(ExposeRequest(session_id, other, host_port))
    equal((again.port, again.address), (other, first.address))


async def what_is_unexposed_is_reached_no_more(stage: Stage) -> None:
    """Connections through it end, and its address is given back."""
    port, session_id = a_port(), stage.session.session_id
    await refused(stage.host.unexpose_port(session_id, port), NotFound)
    await serve(stage, port)
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    async with dialled(exposed.address) as line:
        await line.write(b"a")
        equal(await line.read(1), b"a")
        await stage.host.unexpose_port(session_id, port)
        expect(await _is_over(line), "a connection outlives its address")
    await _silent(exposed.address)
    equal(list(await stage.host.list_ports(session_id)), [])
    await refused(stage.host.unexpose_port(session_id, port), NotFound)


async def halves_end_apart_through_an_address(stage: Stage) -> None:
    """A program that says no more still hears."""
    port, session_id = a_port(), stage.session.session_id
    process = await serve_oddly(stage, port, "ends")
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    async with dialled(exposed.address) as line:
        equal(await line.read(), b"")
        await line.write(b"y" * 100_000)
        await line.close_write()
        await hear(stage, process.process_id, b"100000\n")
    await _none_are_open(stage)


async def much_arrives_whole_through_an_address(stage: Stage) -> None:
    """Both ways at once, and more than any part on the way holds."""
    port, session_id = a_port(), stage.session.session_id
    await serve(stage, port)
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    said = secrets.token_bytes(_MUCH)

    async def talk() -> None:
        async with dialled(exposed.address) as line:
            expect(await echoed(line, said) == said, "something else came back")

    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(talk())


async def a_process_has_an_address(stage: Stage) -> None:
    """That of its port; its port is told with it, goes when it ends, and cannot be taken from it."""
    port, session_id = a_port(), stage.session.session_id
    process = await serve(stage, port, own_port=True)
    (told,) = await stage.host.list_ports(session_id)
    equal((told.address, told.port, told.process_id), (process.address, port, process.process_id))
    async with dialled(process.address) as line:
        equal(await echoed(line, b"here"), b"here")
    await refused(stage.host.unexpose_port(session_id, port), Conflict)
    async with dialled(process.address) as line:
        await line.write(b"a")
        equal(await line.read(1), b"a")
        ended = await stage.host.kill_process(session_id, process.process_id)
        expect(await _is_over(line), "a connection outlives its process")
    equal((ended.address, len(await stage.host.list_ports(session_id))), ("", 0))
    await _silent(process.address)
    again = await serve(stage, port, own_port=True)
    async with dialled(again.address) as line:
        equal(await echoed(line, b"again"), b"again")


async def a_port_is_of_one_process(stage: Stage) -> None:
    """A second one that asks for it is refused, and so is one whose port someone in the session listens on already."""
    port, other = a_port(), a_port()
    await serve(stage, port, own_port=True)
    await refused(launch(stage, *FOREVER, port=port, process_id="late"), Conflict)
    await serve(stage, other)  # by a program that does not have it as its port
    await refused(launch(stage, *FOREVER, port=other, process_id="late"), Conflict)
    await refused(status(stage, "late"), ProcessNotFound)
    equal([each.port for each in await stage.host.list_ports(stage.session.session_id)], [port])


async def a_process_that_cannot_begin_has_no_port(stage: Stage) -> None:
    """Its address is given back at once."""
    await refused(launch(stage, "/there/is/none", port=a_port()), StartFailed)
    equal(list(await stage.host.list_ports(stage.session.session_id)), [])


async def a_paused_session_answers_nobody(stage: Stage) -> None:
    """Its address stays; who comes is turned away, who is there goes on when the session does."""
    port, session_id = a_port(), stage.session.session_id
    await serve(stage, port)
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    async with dialled(exposed.address) as line:
        await line.write(b"a")
        equal(await line.read(1), b"a")
        await stage.host.pause(PauseRequest(session_id))
        expect(await is_turned_away(exposed.address), "a paused session answered")
        await stage.host.resume(session_id)
        equal(await echoed(line, b"still"), b"still")
    async with dialled(exposed.address) as line:
        equal(await echoed(line, b"there"), b"there")


async def an_address_outlives_a_rollback(stage: Stage) -> None:
    """Connections end with the programs; the next one that listens there is reached by it."""
    port, session_id = a_port(), stage.session.session_id
    point = await stage.host.create_snapshot(SnapshotRequest(session_id, "before"))
    await serve(stage, port)
    exposed = await stage.host.expose_port(ExposeRequest(session_id, port))
    async with dialled(exposed.address) as line:
        await line.write(b"a")
        equal(await line.read(1), b"a")
        await stage.host.rollback(RollbackRequest(session_id, point.name))
        expect(await _is_over(line), "a connection outlives its program")
    await serve(stage, port)
    async with dialled(exposed.address) as line:
        equal(await echoed(line, b"back"), b"back")


async def an_address_is_of_one_session(stage: Stage) -> None:
    """Two sessions may expose the same port; each is reached by its own address, and takes only its own with it."""
    port, other = a_port(), await stage.another()
    await serve(stage, port)
    await serve(other, port)
    first = await stage.host.expose_port(ExposeRequest(stage.session.session_id, port))
    second = await stage.host.expose_port(ExposeRequest(other.session.session_id, port))
    expect(first.address != second.address, "two sessions have one address")
    async with dialled(second.address) as line:
        await line.write(b"a")
        equal(await line.read(1), b"a")
        await stage.host.destroy(other.session.session_id)
        expect(await _is_over(line), "a connection outlives its session")
    await _silent(second.address)
    async with dialled(first.address) as line:
        equal(await echoed(line, b"here"), b"here")


async def _none_are_open(stage: Stage) -> None:
    for _ in range(_LOOKS):
        (told,) = await stage.host.list_ports(stage.session.session_id)
        if told.connections == 0:
            return
        await asyncio.sleep(_LOOK_S)
    raise Broken("a connection that has ended is told as open")


async def _silent(address: str) -> None:
    """Nobody takes connections there."""
    for _ in range(_LOOKS):
        try:
            async with dialled(address):
                pass
        except OSError:
            return
        await asyncio.sleep(_LOOK_S)
    raise Broken(f"{address} takes connections, and is nobody's")


PORT_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(check.run, check.needs, check.unless, _DEADLINE_S)
    for check in (
        Check(who_listens_inside_is_reached),
        Check(who_listens_on_the_other_loopback_is_reached),
        Check(where_nobody_listens_is_told),
        Check(connections_are_kept_apart),
        Check(another_session_is_not_reached),
        Check(much_arrives_whole),
        Check(half_of_a_connection_may_end),
        Check(who_leaves_ends_the_connection),
        Check(what_does_not_read_is_waited_for),
        Check(a_connection_stands_still_with_its_session, (Capability.PAUSE,)),
        Check(a_connection_ends_with_its_session),
        Check(an_exposed_port_is_reached),
        Check(a_session_is_made_with_ports),
        Check(where_nobody_listens_connections_end),
        Check(a_port_of_the_host_can_be_chosen),
        Check(what_is_unexposed_is_reached_no_more),
        Check(halves_end_apart_through_an_address),
        Check(much_arrives_whole_through_an_address),
        Check(a_process_has_an_address),
        Check(a_port_is_of_one_process),
        Check(a_process_that_cannot_begin_has_no_port),
        Check(a_paused_session_answers_nobody, (Capability.PAUSE,)),
        Check(an_address_outlives_a_rollback, (Capability.SNAPSHOTS,)),
        Check(an_address_is_of_one_session, (Capability.ISOLATION,)),
    )
)


async def conform_ports(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = PORT_CHECKS,
    deviations: Mapping[str, str] = {},
) -> AsyncIterator[Outcome]:
    """Each check on a session of its own; nothing is left of it."""
    told = await host.capabilities() if have is None else have
    async for outcome in conform(host, runtime, checks, deviations, storage, told):
        yield outcome
