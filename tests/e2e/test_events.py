"""What has happened to sessions, told to whoever asks: in the same process, later, and in another program."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sandlot import AsyncSandbox, Client, EventKind, Sandbox
from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    Event,
    EventFilter,
    ForkRequest,
    InvalidArgument,
    RollbackRequest,
    SessionSpec,
    TurnRequest,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up

pytestmark = pytest.mark.root
SOON_S = 40


async def events(host: SandboxHostService, request: EventFilter | None = None) -> list[Event]:
    async with host.events(request or EventFilter()) as stream:
        return [event async for event in stream]


async def story(host: SandboxHostService, session_id: str) -> list[tuple[str, str]]:
    return [(event.kind, event.detail) for event in await events(host, EventFilter(session_id=session_id))]


async def wait_for(host: SandboxHostService, session_id: str, kind: EventKind) -> None:
    async with asyncio.timeout(SOON_S), host.events(EventFilter(session_id=session_id, follow=True)) as stream:
        async for event in stream:
            if event.kind is kind:
                return


async def test_the_story_of_a_session_outlives_it_and_its_engine(settings: Settings) -> None:
    async with build(settings) as host:
        await host.create(SessionSpec(session_id="one"))
        await host.turn_complete(TurnRequest("one"))
        await host.turn_complete(TurnRequest("one"))
        await host.rollback(RollbackRequest("one", "1"))
        made = [child.session_id for child in await host.fork(ForkRequest("one", "1", count=2))]
        await host.destroy("one")
        seen = await events(host)
    async with build(settings) as host:
        assert await events(host) == seen
        kind, detail = (await story(host, "one")).pop(5)
        assert (kind, sorted(detail.split())) == ("forked", sorted(made))
        assert [kind for kind, _detail in await story(host, "one")] == [
            *("created", "active", "turn", "turn", "rolled back", "forked", "destroyed")
        ]
        assert (await story(host, "one"))[2:5] == [("turn", "1"), ("turn", "2"), ("rolled back", "turn-0001")]
        assert await story(host, made[0]) == [("created", "one/turn-0001"), ("active", "")]
        await clean_up(host)
        fresh = await events(host, EventFilter(after=seen[-1].offset))
        assert {event.session_id for event in fresh} == set(made)


async def test_time_that_was_up_is_told(host: SandboxHostService) -> None:
    session_id = (await host.create(SessionSpec(timeout_s=0.05))).session_id
    await wait_for(host, session_id, EventKind.DESTROYED)
    assert [kind for kind, _detail in await story(host, session_id)] == ["created", "active", "expired", "destroyed"]


async def test_a_session_that_is_refused_has_no_event(host: SandboxHostService) -> None:
    with pytest.raises(InvalidArgument):
        await host.create(SessionSpec(storage="nonsense"))
    assert await events(host) == []


async def test_both_faces_follow(data_dir: Path) -> None:
    async with Client(data_dir=data_dir) as client:
        sandbox = await AsyncSandbox.create(runtime="none", client=client)
        followed = AsyncSandbox.all_events(follow=True, client=client)
        async with asyncio.timeout(SOON_S):
            first = await anext(followed)
            assert (await anext(followed)).kind is EventKind.ACTIVE
            coming = asyncio.create_task(anext(followed))
            await sandbox.kill()
            assert (first.kind, (await coming).kind) == (EventKind.CREATED, EventKind.DESTROYED)
        await followed.aclose()
        assert [event.kind async for event in sandbox.events(after=first.offset + 1)] == [EventKind.DESTROYED]

    def sync() -> list[str]:
        with Client(data_dir=data_dir) as client:
            told = [event.kind for event in Sandbox.all_events(client=client)]
            assert told == [event.kind for event in Sandbox(sandbox.id, client=client).events()]
            for event in Sandbox.all_events(follow=True, client=client):
                return [*told, event.kind]
        raise AssertionError("there was an event to follow")

    assert await asyncio.to_thread(sync) == ["created", "active", "destroyed", "created"]


async def test_another_program_follows_while_an_engine_works(settings: Settings) -> None:
    words = [sys.executable, "-m", "sandlot", "--data-dir", str(settings.data), "--json", "events"]
    following = subprocess.Popen([*words, "-f", "--session", "told"], stdout=subprocess.PIPE)
    assert following.stdout
    try:
        async with build(settings) as host:
            await host.create(SessionSpec(session_id="told"))
            await host.create(SessionSpec(session_id="other"))
            async with asyncio.timeout(SOON_S):
                first = json.loads(await asyncio.to_thread(following.stdout.readline))
                assert (first["session_id"], first["kind"]) == ("told", "created")
                active = json.loads(await asyncio.to_thread(following.stdout.readline))
                assert (active["session_id"], active["kind"]) == ("told", "active")
                await host.destroy("told")
                last = json.loads(await asyncio.to_thread(following.stdout.readline))
                assert (last["session_id"], last["kind"]) == ("told", "destroyed")
            ran = await asyncio.to_thread(
                subprocess.run,
                [*words, "--after", str(active["offset"])],
                capture_output=True,
                timeout=SOON_S,
                check=True,
            )
            told = [json.loads(line) for line in ran.stdout.splitlines()]
            assert [(event["session_id"], event["kind"]) for event in told] == [
                ("other", "created"),
                ("other", "active"),
                ("told", "destroyed"),
            ]
            await clean_up(host)
    finally:
        following.terminate()
        following.stdout.close()
        assert following.wait(SOON_S) == 128 + 15
