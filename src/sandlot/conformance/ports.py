"""What every host promises of ports: who listens inside is reached from outside, and nobody else is."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.port_stage import echoed, read_all, read_exactly, serve, serve_oddly
from sandlot.conformance.process_stage import hear
from sandlot.contracts import Host
from sandlot.contracts.ports import PortStream
from sandlot.model import (
    AUTO,
    Capability,
    InvalidArgument,
    NotFound,
    PauseRequest,
    SessionNotFound,
    SessionPaused,
    Unavailable,
)

_DEADLINE_S = 60.0
_PORTS = (7001, 7999)  # on a machine that sessions share, others may be there
_AT_ONCE = 20
_MUCH = 8 << 20


def a_port() -> int:
    return _PORTS[0] + secrets.randbelow(_PORTS[1] - _PORTS[0])


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


async def _is_over(stream: PortStream) -> bool:
    try:
        async with asyncio.timeout(_DEADLINE_S / 2):
            return await stream.read() in (b"", b"<end>")
    except Unavailable:
        return True


async def _connected(stage: Stage, session_id: str, port: int) -> None:
    async with stage.host.connect_port(session_id, port):
        pass


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
