"""Content that comes over the wire and is broken off: nothing of it is there, no name of ours is left, and nobody waits
for it."""

import asyncio
import io
import os
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host.service import SandboxHostService
from sandlot.model import FileAppend, FileRead, FileWrite, SessionSpec, TreeUpload, TurnRequest, Unavailable
from sandlot.rpc.client import HostClient
from tests.unit.rpc.serving import Server, serving

RUNTIMES = [pytest.param("namespaces", marks=pytest.mark.root), "none"]
PIECE = os.urandom(1 << 18)
PIECES = 8  # that are sent; then there is silence
DEADLINE_S = 60.0
OLD = b"old\n"


class Sent:
    """Content that never comes to its end. It says when so much was taken, and goes on when it is told to, without
    ever waiting: whoever sends nothing does not hear that nobody listens any more."""

    def __init__(self, first: bytes = b"", error: Exception | None = None) -> None:
        self.first = first
        self.error = error
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.first + PIECE
        for _ in range(PIECES):
            yield PIECE
        self.asked.set()
        await self.go_on.wait()
        if self.error:
            raise self.error
        while True:
            yield PIECE


def archive_head(name: str) -> bytes:
    """Of an archive with one whole file, and another one of which most is still to come."""
    told = io.BytesIO()
    with tarfile.open(fileobj=told, mode="w") as tar:
        whole = tarfile.TarInfo("whole")
        whole.size = len(OLD)
        tar.addfile(whole, io.BytesIO(OLD))
    large = tarfile.TarInfo(name)
    large.size = 1 << 30
    return told.getvalue()[:1024] + large.tobuf()


Verb = Callable[[HostClient, AsyncIterator[bytes]], Awaitable[object]]
VERBS: dict[str, tuple[Verb, bytes]] = {
    "a new file": (lambda client, content: client.write_file(FileWrite("s", "new"), content), b""),
    "a file in place of another": (lambda client, content: client.write_file(FileWrite("s", "f"), content), b""),
    "a tree": (lambda client, content: client.upload_tree(TreeUpload("s", "."), content), archive_head("f")),
    "an addition": (lambda client, content: client.append_file(FileAppend("s", "new"), content), b""),
}


async def leave(task: "asyncio.Future[object]", server: Server) -> None:
    del server
    task.cancel()


async def cut(task: "asyncio.Future[object]", server: Server) -> None:
    del task
    assert server.cut()


async def nothing(task: "asyncio.Future[object]", server: Server) -> None:
    del task, server


WAYS = {
    "whoever sends leaves": (leave, asyncio.CancelledError),
    "the connection is cut": (cut, Unavailable),
    "what sends fails": (nothing, ZeroDivisionError),
}


def names(settings: Settings) -> set[str]:
    return {path.name for path in (settings.data / "volumes").rglob(".sandlot-*")}


async def content(host: SandboxHostService, path: str) -> bytes:
    async with host.read_file(FileRead("s", path)) as stream:
        return b"".join([piece async for piece in stream])


async def once(data: bytes) -> AsyncIterator[bytes]:
    yield data


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("runtime", RUNTIMES)
async def test_nothing_of_it_is_left(
    host: SandboxHostService,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    runtime: str,
    way: str,
) -> None:
    # As on a filesystem that has no files without names: there what is on the way can be seen.
    monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)
    await host.create(SessionSpec(session_id="s", runtime=runtime))
    await host.write_file(FileWrite("s", "f"), once(OLD))
    async with serving(host, tmp_path / "socket") as server, asyncio.timeout(DEADLINE_S):
        break_off, said = WAYS[way]
        for name, (verb, first) in VERBS.items():
            sent = Sent(first, ZeroDivisionError() if said is ZeroDivisionError else None)
            async with HostClient(server.url, reconnect_s=0.0) as client:
                task = asyncio.ensure_future(verb(client, aiter(sent)))
                await sent.asked.wait()
                while name != "an addition" and not names(settings):  # noqa: ASYNC110 - a directory tells nobody
                    await asyncio.sleep(0.01)
                await break_off(task, server)
                sent.go_on.set()
                with pytest.raises(said):
                    await task
            # A turn waits for whoever writes: it comes when that is over, and not before.
            await host.turn_complete(TurnRequest("s"))
            assert names(settings) == set(), name
            assert await content(host, "f") == OLD, name
            if name == "a new file":
                with pytest.raises(FileNotFoundError):
                    await content(host, "new")
    await host.destroy("s")
