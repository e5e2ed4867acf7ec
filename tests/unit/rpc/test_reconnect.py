"""What a cut connection, and a server that goes and comes back, do to what is under way."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import pytest

from sandlot.fakes.calls import Running
from sandlot.fakes.host import FakeHost
from sandlot.model import (
    CallOutput,
    CallRequest,
    CallResult,
    CallState,
    Event,
    EventFilter,
    FileAppend,
    FileWrite,
    PauseRequest,
    RollbackRequest,
    SessionFilter,
    SessionSpec,
    Stream,
    ToolRequest,
    TurnRequest,
    Unavailable,
)
from sandlot.rpc.client import HostClient
from tests.unit.rpc.serving import Server, serving

DEADLINE_S = 60.0


class Steps:
    """A program that goes on one step each time that it is told to."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[bytes] = asyncio.Queue()
        self.begun = 0

    async def __call__(self, running: Running) -> int:
        self.begun += 1
        while step := await self.steps.get():
            await running.write(Stream.STDOUT, step)
        return 3


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


async def until(what: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not await what():  # noqa: ASYNC110 - of what others do, there is no event
            await asyncio.sleep(0.02)


async def state_of(host: FakeHost, session_id: str) -> CallState:
    return (await host.calls(session_id))[-1].state


async def test_a_call_goes_on_where_it_was_when_its_connection_is_cut() -> None:
    steps = Steps()
    host = FakeHost({"steps": steps})
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        session = await client.create(SessionSpec())
        told: list[Any] = []
        async with client.call(CallRequest(session.session_id, ("steps",))) as stream:
            steps.steps.put_nowait(b"one ")
            async for event in stream:
                told.append(event)
                if isinstance(event, CallOutput) and event.data == b"one ":
                    assert server.cut() > 0
                    steps.steps.put_nowait(b"two ")
                    steps.steps.put_nowait(b"three")
                    steps.steps.put_nowait(b"")
            result = await stream.result()
        output = [one for one in told if isinstance(one, CallOutput)]
        assert b"".join(one.data for one in output) == b"one two three"
        assert [one.offset for one in output] == [0, 4, 8]
        assert (result.exit_code, steps.begun, told[-1]) == (3, 1, result)


async def test_a_call_goes_on_over_a_server_that_is_started_again() -> None:
    """The host outlives the server, as an engine's guests outlive the engine."""
    steps = Steps()
    host = FakeHost({"steps": steps})
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        session = await client.create(SessionSpec())
        async with client.call(CallRequest(session.session_id, ("steps",), detach=True)) as stream:
            steps.steps.put_nowait(b"one ")
            seen = b""
            async for event in stream:
                if isinstance(event, CallOutput):
                    seen += event.data
                    if seen == b"one ":
                        await server.stop()
                        steps.steps.put_nowait(b"two")
                        steps.steps.put_nowait(b"")
                        await server.start()
        assert (seen, steps.begun) == (b"one two", 1)


async def test_whoever_leaves_a_call_ends_it_at_once() -> None:
    host = FakeHost({"steps": Steps()})
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        session = await client.create(SessionSpec())
        async with client.call(CallRequest(session.session_id, ("steps",))):
            assert await state_of(host, session.session_id) is CallState.RUNNING
        assert await state_of(host, session.session_id) is CallState.ENDED


async def test_a_client_that_does_not_wish_to_come_back_ends_its_call_by_leaving() -> None:
    """As curl does, and every client that knows nothing of lingering."""
    host = FakeHost({"steps": Steps()})
    async with serving(host) as server:
        async with HostClient(server.url) as client:
            session = await client.create(SessionSpec())
        body = b'{"request": {"sessionId": "%s", "argv": ["steps"]}}' % session.session_id.encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        head = b"POST /sandlot.v1.CallService/Call HTTP/1.1\r\nhost: x\r\ncontent-type: application/connect+json\r\n"
        writer.write(head + b"content-length: %d\r\n\r\n\0%s" % (len(body) + 5, len(body).to_bytes(4, "big") + body))
        async with asyncio.timeout(DEADLINE_S):
            await reader.readuntil(b"opened")
        assert await state_of(host, session.session_id) is CallState.RUNNING
        writer.close()

        async def has_ended() -> bool:
            return await state_of(host, session.session_id) is CallState.ENDED

        await until(has_ended)


class Counting:
    """A host whose connection is cut right behind what it did."""

    def __init__(self, below: FakeHost) -> None:
        self.below = below
        self.server: Server | None = None
        self.cut_behind: set[str] = set()
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.below, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def done(*arguments: Any, **named: Any) -> Any:
            self.asked.append(name)
            answer = await found(*arguments, **named)
            if name in self.cut_behind and self.server is not None:
                self.cut_behind.discard(name)
                self.server.cut()
                await asyncio.sleep(0)
            return answer

        return done


async def test_what_may_be_repeated_is_done_once_over_a_cut() -> None:
    host = Counting(FakeHost())
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        host.server = server
        await client.capabilities()
        host.cut_behind = {"create", "write_file", "turn_complete", "pause", "resume", "destroy", "list"}
        session = await client.create(SessionSpec())
        assert len((await client.list(SessionFilter())).sessions) == 1
        await client.write_file(FileWrite(session.session_id, "a"), pieces(b"1", b"2"))
        await client.pause(PauseRequest(session.session_id))
        await client.resume(session.session_id)
        turn = await client.turn_complete(TurnRequest(session.session_id))
        assert (turn.number, [one.number for one in await client.turns(session.session_id)]) == (1, [1])
        await client.destroy(session.session_id)
        assert host.cut_behind == set()
        assert host.asked.count("create") == 2
        assert (await client.list(SessionFilter())).sessions == ()


async def test_what_may_not_be_repeated_is_told_as_not_known() -> None:
    host = Counting(FakeHost())
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        host.server = server
        session = await client.create(SessionSpec())
        await client.turn_complete(TurnRequest(session.session_id))
        host.cut_behind = {"rollback", "append_file"}
        with pytest.raises(Unavailable, match="went away"):
            await client.rollback(RollbackRequest(session.session_id, "1"))
        with pytest.raises(Unavailable, match="went away"):
            await client.append_file(FileAppend(session.session_id, "a"), pieces(b"x"))
        assert (host.asked.count("rollback"), host.asked.count("append_file")) == (1, 1)


async def test_a_tool_is_done_once_over_a_cut() -> None:
    steps = Steps()
    host = FakeHost({"steps": steps})
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        session = await client.create(SessionSpec())
        async with client.execute_tool(ToolRequest(session.session_id, "bash", {"cmd": "steps"})) as stream:
            waiting = asyncio.create_task(stream.result())
            await until(lambda: begun(steps))
            server.cut()
            steps.steps.put_nowait(b"done")
            steps.steps.put_nowait(b"")
            result = await waiting
        assert ("done" in result.text, steps.begun) == (True, 1)


async def begun(steps: Steps) -> bool:
    return steps.begun > 0


async def test_events_go_on_behind_the_last_one_that_is_known() -> None:
    host = FakeHost()
    async with serving(host) as server, HostClient(server.url) as client, asyncio.timeout(DEADLINE_S):
        first = await client.create(SessionSpec())
        seen: list[Event] = []
        async with client.events(EventFilter(follow=True)) as events:
            async for event in events:
                seen.append(event)
                if len(seen) == 2:
                    server.cut()
                    await host.destroy(first.session_id)
                if event.kind == "destroyed":
                    break
        offsets = [event.offset for event in seen]
        assert offsets == sorted(set(offsets)), "none is told twice"
        async with client.events(EventFilter()) as events:
            assert [event async for event in events] == seen


async def test_a_server_that_was_never_there_is_told_at_once(tmp_path: Any) -> None:
    for url in ("http://127.0.0.1:1", f"unix://{tmp_path}/none"):
        async with HostClient(url) as client:
            with pytest.raises(Unavailable, match="cannot be reached") as raised:
                await client.health()
            assert "sandlot serve" in raised.value.next_step


async def test_a_server_that_does_not_come_back_is_given_up() -> None:
    async with serving(FakeHost()) as server, HostClient(server.url, reconnect_s=0.3) as client:
        await client.health()
        await server.stop()
        with pytest.raises(Unavailable, match="cannot be reached"):
            await client.health()
        await server.start()
        await client.health()


async def test_calls_that_nobody_reads_wait_and_hold_no_memory() -> None:
    """A reader that is slow stops the one that prints, over the wire too: the fake has all of it, the client little."""

    async def prints(running: Running) -> int:
        for _ in range(256):
            await running.write(Stream.STDOUT, b"x" * 65536)
        return 0

    async with serving(FakeHost({"prints": prints})) as server, HostClient(server.url) as client:
        session = await client.create(SessionSpec())
        async with asyncio.timeout(DEADLINE_S), client.call(CallRequest(session.session_id, ("prints",))) as stream:
            count, largest = 0, 0
            async for event in stream:
                if isinstance(event, CallOutput):
                    count += len(event.data)
                    largest = max(largest, held_by(client))
                elif isinstance(event, CallResult):
                    assert event.stdout_bytes == count
        assert count == 256 * 65536
        assert largest < 4 << 20


def held_by(client: HostClient) -> int:
    """Bytes that came and were not read yet."""
    connections = cast("Any", client)._pool._all
    return sum(one._response._size for one in connections if one._response is not None)
