"""Watchers over what happens to a session: a rollback, a burst, a limit, its end; and through the SDK."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from sandlot import AsyncSandbox, Client, FileEventKind
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    DirectoryMake,
    FileEvent,
    FileWatch,
    FileWrite,
    LimitReached,
    RollbackRequest,
    SessionNotFound,
    SessionSpec,
    TurnRequest,
    limits,
)

SOON_S = 20


async def nothing() -> AsyncIterator[bytes]:
    return
    yield b""


async def write(host: SandboxHostService, path: str) -> None:
    await host.write_file(FileWrite("s", path), nothing())


async def until(batches: AsyncIterator[Sequence[FileEvent]], kind: FileEventKind) -> FileEvent:
    async with asyncio.timeout(SOON_S):
        async for batch in batches:
            for event in batch:
                if event.kind is kind:
                    return event
    raise AssertionError("it ended")


@pytest.mark.root
async def test_a_rollback_is_told_as_an_overflow_and_the_new_files_are_watched(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s", runtime="namespaces", storage="layers"))
    await host.turn_complete(TurnRequest("s"))
    async with host.watch_files(FileWatch("s", ".")) as batches:
        await write(host, "a")
        assert (await until(batches, FileEventKind.CREATED)).path == "/workspace/a"
        await host.rollback(RollbackRequest("s", "1"))
        await until(batches, FileEventKind.OVERFLOW)
        await write(host, "b")
        assert (await until(batches, FileEventKind.CREATED)).path == "/workspace/b"
        await host.destroy("s")
        with pytest.raises(SessionNotFound):
            await until(batches, FileEventKind.OVERFLOW)


async def test_bounds(host: SandboxHostService, monkeypatch: pytest.MonkeyPatch) -> None:
    await host.create(SessionSpec(session_id="s", runtime="none", storage="local-disk"))
    monkeypatch.setattr(limits, "WATCH_EVENTS_KEPT", 3)
    async with host.watch_files(FileWatch("s", ".")) as batches:
        for number in range(9):
            await write(host, str(number))
        async with asyncio.timeout(SOON_S), host.watch_files(FileWatch("s", ".")) as others:
            await write(host, "last")
            while not any(event.path.endswith("/last") for event in await anext(others)):
                pass
        told = await anext(batches)
        assert [event.kind for event in told] == [FileEventKind.OVERFLOW]
        assert len(await anext(batches)) == 3
    monkeypatch.setattr(limits, "WATCHES_MAX", 1)
    with pytest.raises(LimitReached, match="watchers"):
        async with host.watch_files(FileWatch("s", ".", recursive=False)):
            pass
    monkeypatch.setattr(limits, "WATCHES_MAX", 9)
    monkeypatch.setattr(limits, "WATCH_DIRECTORIES_MAX", 2)
    await host.make_directory(DirectoryMake("s", "x/y/z"))
    with pytest.raises(LimitReached, match="directories"):
        async with host.watch_files(FileWatch("s", "x")):
            pass


async def test_through_the_sdk(host: SandboxHostService) -> None:
    await host.create(SessionSpec(session_id="s", runtime="none", storage="local-disk"))
    async with Client(host=host) as client:
        sandbox = AsyncSandbox("s", client=client)
        events = await sandbox.files.watch()
        await sandbox.files.write("a", "1")
        await sandbox.files.rename("a", "b")
        async with asyncio.timeout(SOON_S):
            told = [await anext(events), await anext(events)]
        assert [(event.kind, event.path.rpartition("/")[2]) for event in told] == [
            (FileEventKind.CREATED, "a"),
            (FileEventKind.RENAMED, "b"),
        ]
        await events.aclose()
