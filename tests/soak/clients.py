"""Clients of a server that is killed all the time. Each remembers what it was told, and says what was not kept."""

import asyncio
import io
import random
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sandlot.contracts import Host
from sandlot.model import (
    CallOutput,
    CallRequest,
    FileAppend,
    FileInfo,
    FileRead,
    FileWrite,
    RollbackRequest,
    SandlotError,
    SessionNotFound,
    SessionSpec,
    ToolRequest,
    ToolResult,
    TreeTally,
    TreeUpload,
    TurnRequest,
    Unavailable,
)

LARGE = b"0123456789abcdef" * 40_000
PIECES = 10


@dataclass
class Tally:
    """What all clients did, and what was wrong."""

    done: int = 0
    unknown: int = 0  # told as Unavailable: it may have been done
    wrong: list[str] = field(default_factory=list[str])

    def need(self, condition: bool, said: str) -> None:
        if not condition:
            self.wrong.append(said)


async def pieces_of(*content: bytes, pause_s: float = 0.0) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece
        await asyncio.sleep(pause_s)


def archive(**files: bytes) -> bytes:
    told = io.BytesIO()
    with tarfile.open(fileobj=told, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return told.getvalue()


class Client:
    """One session, and one kind of work in it."""

    def __init__(self, host: Host, name: str, tally: Tally, seed: int) -> None:
        self.host = host
        self.name = name
        self.tally = tally
        self.rng = random.Random(seed)
        self.at = 0
        self.unsure = ""  # a session of which nobody knows whether it is there

    async def work(self, step: Callable[["Client"], Awaitable[None]], until: asyncio.Event) -> None:
        await self.host.create(
            SessionSpec(session_id=self.name, runtime="none", request_id=self.name, storage="layers")
        )
        while not until.is_set():
            self.at += 1
            try:
                await step(self)
                self.tally.done += 1
            except Unavailable:
                self.tally.unknown += 1
            except SandlotError as error:
                self.tally.wrong.append(f"{self.name}-{self.at}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.2)
        await self.make_sure()
        await self.host.destroy(self.name)
        try:
            await self.host.get(self.name)
            self.tally.wrong.append(f"{self.name}: it was destroyed, and is there")
        except SessionNotFound:
            pass

    async def make_sure(self) -> None:
        """The end of what was begun, whatever became of it."""
        if self.unsure:
            with suppress(SessionNotFound):
                await self.host.destroy(self.unsure)
            self.unsure = ""

    async def read(self, path: str) -> bytes | None:
        try:
            async with self.host.read_file(FileRead(self.name, path)) as stream:
                return b"".join([piece async for piece in stream])
        except FileNotFoundError:
            return None

    async def run(self, script: str, call_id: str | None = None) -> tuple[int, bytes]:
        out = b""
        async with self.host.call(CallRequest(self.name, ("/bin/sh", "-c", script), call_id=call_id)) as stream:
            async for event in stream:
                if isinstance(event, CallOutput):
                    out += event.data
            return (await stream.result()).exit_code, out


async def calls(client: Client) -> None:
    """Done once, and told whole: also the output of a command that the server died under."""
    token = f"{client.name}-{client.at}"
    script = f"echo {token} >> told; for i in 1 2 3 4 5; do echo {token}-$i; sleep 0.0{client.rng.randint(1, 9)}; done"
    code, out = await client.run(script, token)
    expected = "".join(f"{token}-{number}\n" for number in range(1, 6)).encode()
    client.tally.need((code, out) == (0, expected), f"{token}: exit code {code}, {out!r}")
    told = (await client.read("told") or b"").decode().split()
    client.tally.need(told.count(token) == 1, f"{token}: done {told.count(token)} times")


async def files(client: Client) -> None:
    """Whole or not at all; what was appended is there once."""
    token = f"{client.name}-{client.at}".encode()
    content = token * client.rng.randint(1, 2000)
    before = await client.read("file")
    try:
        await client.host.write_file(FileWrite(client.name, "file"), pieces_of(content))
    except Unavailable:
        found = await client.read("file")
        client.tally.need(found in (before, content), f"{token!r}: a file that was written by half")
        raise
    client.tally.need(await client.read("file") == content, f"{token!r}: a file that is not what was written")
    name = f"appended-{client.at}"
    try:
        await client.host.append_file(FileAppend(client.name, name), pieces_of(token))
    except Unavailable:
        found = await client.read(name)
        client.tally.need(found in (None, token), f"{token!r}: a broken append left {found!r}")
        raise
    client.tally.need(await client.read(name) == token, f"{token!r}: appended, and not there once")


async def tools(client: Client) -> None:
    """A call with an id is done once, and told the same whenever it is asked for."""
    token = f"{client.name}-{client.at}"
    request = ToolRequest(client.name, "bash", {"cmd": f"echo {token} | tee -a told"}, call_id=token)
    results: list[ToolResult] = []
    for _ in range(2):
        async with client.host.execute_tool(request) as stream:
            results.append(await stream.result())
    client.tally.need(results[0] == results[1], f"{token}: told {results[0]}, then {results[1]}")
    client.tally.need(token in results[0].text, f"{token}: {results[0].text!r}")
    told = (await client.read("told") or b"").decode().split()
    client.tally.need(told.count(token) == 1, f"{token}: done {told.count(token)} times")


async def turns(client: Client) -> None:
    """A turn that was told is there, and brings back what it was of."""
    token = f"{client.name}-{client.at}".encode()
    await client.host.write_file(FileWrite(client.name, "state"), pieces_of(token))
    turn = await client.host.turn_complete(TurnRequest(client.name, request_id=token.decode()))
    again = await client.host.turn_complete(TurnRequest(client.name, request_id=token.decode()))
    client.tally.need(turn == again, f"{token!r}: two turns for one request")
    await client.host.write_file(FileWrite(client.name, "state"), pieces_of(b"later"))
    if turn.snapshot:
        await client.host.rollback(RollbackRequest(client.name, turn.snapshot))
        client.tally.need(await client.read("state") == token, f"{token!r}: rolled back to something else")


async def uploads(client: Client) -> None:
    """One that is broken off leaves nothing, of whoever breaks it off."""
    name = f"large-{client.at % 3}"
    before = await client.read(name)
    writing: asyncio.Future[FileInfo] | asyncio.Future[TreeTally]
    if client.rng.random() < 0.5:
        content = pieces_of(*[LARGE] * PIECES, pause_s=0.01)
        writing = asyncio.ensure_future(client.host.write_file(FileWrite(client.name, name), content))
    else:
        packed = archive(**{name: LARGE * PIECES})
        content = pieces_of(*[packed[at : at + len(LARGE)] for at in range(0, len(packed), len(LARGE))], pause_s=0.01)
        writing = asyncio.ensure_future(client.host.upload_tree(TreeUpload(client.name, "."), content))
    if client.rng.random() < 0.5:
        await asyncio.wait([writing], timeout=client.rng.random() * 0.1)
        writing.cancel()
    try:
        await writing
        client.tally.need(await client.read(name) == LARGE * PIECES, f"{client.name}-{client.at}: not what was sent")
    except (asyncio.CancelledError, Unavailable):
        found = await client.read(name)
        client.tally.need(found in (before, LARGE * PIECES), f"{client.name}-{client.at}: an upload by half")
    _, left = await client.run("ls -A")
    client.tally.need(b".sandlot" not in left, f"{client.name}-{client.at}: left behind: {left!r}")


async def sessions(client: Client) -> None:
    """One that was made is there, once; one that was destroyed is not."""
    name = f"{client.name}-{client.at}"
    spec = SessionSpec(session_id=name, runtime="none", storage="layers", request_id=name)
    await client.make_sure()
    client.unsure = name
    made = await client.host.create(spec)
    again = await client.host.create(spec)
    client.tally.need(made.session_id == again.session_id == name, f"{name}: made twice")
    client.tally.need((await client.host.get(name)).state == "active", f"{name}: not active")
    await client.host.destroy(name)
    client.unsure = ""
    try:
        await client.host.get(name)
        client.tally.wrong.append(f"{name}: it was destroyed, and is there")
    except SessionNotFound:
        pass


KINDS = (calls, files, tools, turns, uploads, sessions)
__all__ = ["KINDS", "Client", "Tally", "archive"]
