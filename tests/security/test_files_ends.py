"""File operations that meet an end: of the content, of patience, of the session, of the engine."""

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandlot.config.settings import Settings
from sandlot.host import inside
from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    DeadlineExceeded,
    FileInfo,
    FileList,
    FileRead,
    FileRemove,
    FileStat,
    FileWrite,
    InvalidArgument,
    SandlotError,
    SessionFilter,
    SessionSpec,
    SessionState,
    Unavailable,
    limits,
)
from sandlot.wiring.embedded import build
from tests.conftest import clean_up, run
from tests.security.descriptors import Decoys, descriptors, settled
from tests.security.door import VERBS, Door, list_all, litter, pieces, read_all
from tests.security.stage import Stage

pytestmark = pytest.mark.root

MIB = 1 << 20


@pytest.fixture
def door(stage: Stage) -> Iterator[Door]:
    session = stage.create()
    yield Door(stage, session)
    with suppress(SandlotError):
        stage.wait(stage.host.destroy(session))


# ---- errors in the middle --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_an_error_of_the_content_leaves_everything_as_it_was(stage: Stage, door: Door, count: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for _ in range(count):
            yield bytes(MIB)
        raise ConnectionResetError("the one who sends is gone")

    door.write("x", b"old")
    before = descriptors()
    for path in ("x", "y", "deep/down/z"):
        with pytest.raises(ConnectionResetError):
            stage.wait(door.host.write_file(FileWrite(door.session, path), broken()))
    assert settled(before) == before
    assert door.read("x") == b"old"
    assert [info.name for info in door.list(".", depth=9) if info.name in ("y", "z")] == []
    assert litter(door) == ""


@pytest.mark.parametrize("verb", VERBS)
def test_a_user_that_nobody_is_leaves_nothing_open(stage: Stage, door: Door, verb: str) -> None:
    door.write("x", b"old")
    before = descriptors()
    for user in ("nobody-here", "65536", "0:65536", "n" * 200):
        with pytest.raises(InvalidArgument):
            VERBS[verb](door.as_user(user), "/workspace/x")
    assert settled(before) == before
    assert door.read("x") == b"old"


def test_a_step_that_takes_too_long_is_given_up(
    stage: Stage, door: Door, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The thread goes on; what it works on stays open until it is done, and is closed then."""
    go_on = threading.Event()
    right: list[bool] = []
    look = inside.stat_file

    def wait_first(place: inside.Inside, path: str, *, follow: bool) -> FileInfo:
        go_on.wait(20)
        info = look(place, path, follow=follow)
        right.append(info.size_bytes == 4)
        return info

    door.write("x", b"mine")
    before = descriptors()
    with monkeypatch.context() as patch, Decoys(tmp_path):
        patch.setattr(limits, "FILE_DEADLINE_S", 0.2)
        patch.setattr(inside, "stat_file", wait_first)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"0\.2 s"):
            door.stat("x")
        assert 0.1 < time.monotonic() - began < 3
        assert descriptors() != before
        go_on.set()
        assert settled(before) == before
    assert right == [True]


def test_threads_that_all_wait_hold_nobody_for_longer_than_the_deadline(
    stage: Stage, door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    look = inside.stat_file

    def wait_first(place: inside.Inside, path: str, *, follow: bool) -> FileInfo:
        go_on.wait(20)
        return look(place, path, follow=follow)

    async def scene() -> list[object]:
        requests = [door.host.stat_file(FileStat(door.session, "/etc/passwd")) for _ in range(12)]
        requests.append(door.host.write_file(FileWrite(door.session, "never"), pieces(b"x")))
        return list(await asyncio.gather(*requests, return_exceptions=True))

    before = descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(limits, "FILE_DEADLINE_S", 0.3)
        patch.setattr(inside, "stat_file", wait_first)
        answers = stage.wait(scene())
        assert [type(answer) for answer in answers] == [DeadlineExceeded] * 13
        go_on.set()
    assert settled(before) == before
    assert door.shell("ls") == ""
    assert door.stat("/etc/passwd").size_bytes > 0


# ---- sessions and engines that end -----------------------------------------------------------------------------


def test_a_session_that_is_destroyed_during_file_work(stage: Stage) -> None:
    """Typed errors, no hang; and the root of the session is let go, which its mount waits for."""
    warm = stage.create()
    stage.wait(stage.host.destroy(warm))
    before = descriptors()
    door = Door(stage, stage.create())
    door.write("x", os.urandom(8 * MIB))
    door.shell("mkdir d; cd d; mkdir $(seq 3000)")

    async def scene() -> list[object]:
        begun = asyncio.Event()

        async def content() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"
            begun.set()
            await asyncio.sleep(0.3)
            yield b"c"

        work: list[Awaitable[object]] = [
            door.host.write_file(FileWrite(door.session, "new"), content()),
            door.host.write_file(FileWrite(door.session, "x"), content()),
            list_all(door.host, FileList(door.session, "/", depth=20)),
            door.host.remove_file(FileRemove(door.session, "d", recursive=True)),
            read_all(door.host, FileRead(door.session, "x")),
        ]
        everything = asyncio.gather(*work, return_exceptions=True)
        await begun.wait()
        await door.host.destroy(door.session)
        return list(await everything)

    answers = stage.wait(scene())
    for answer in answers:
        assert not isinstance(answer, BaseException) or isinstance(answer, SandlotError), answer
    assert settled(before) == before
    for folder in ("volumes", "trash"):
        for _ in range(100):
            if not list((stage.data / folder).iterdir()):
                break
            time.sleep(0.05)
        assert list((stage.data / folder).iterdir()) == []


def guest_of(door: Door) -> int:
    """The host's number for pid 1 of a session."""
    sleeping = door.stage.begin_script(door.session, f"import time; time.sleep(2)  # {door.session}", "user")
    while not sleeping.done():
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                if f"# {door.session}" in (folder / "cmdline").read_text(errors="replace"):
                    (parent,) = re.findall(r"^PPid:\s*(\d+)", (folder / "status").read_text(), re.MULTILINE)
                    return int(parent)
    raise LookupError("the process of the session was not found on the host")


def test_a_guest_that_is_killed_during_file_work(stage: Stage, door: Door) -> None:
    door.write("x", os.urandom(2 * MIB))
    guest = guest_of(door)

    async def scene() -> list[object]:
        async def content() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"
            os.kill(guest, signal.SIGKILL)
            await asyncio.sleep(0.3)
            yield b"c"

        work = door.host.write_file(FileWrite(door.session, "new"), content())
        reading = read_all(door.host, FileRead(door.session, "x"))
        return list(await asyncio.gather(work, reading, return_exceptions=True))

    before = descriptors()
    for answer in stage.wait(scene()):
        assert not isinstance(answer, BaseException) or isinstance(answer, SandlotError), answer
    states = {info.session_id: info.state for info in stage.wait(stage.host.list(SessionFilter())).sessions}
    assert states[door.session] is SessionState.FAILED
    with pytest.raises(SandlotError):
        door.stat("x")
    end = time.monotonic() + 5
    while descriptors()["/"] > before["/"] and time.monotonic() < end:  # roots of sessions
        time.sleep(0.02)
    assert descriptors()["/"] <= before["/"]


async def test_an_engine_that_closes_during_file_work(settings: Settings) -> None:
    before = descriptors()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1000)

    async def work(host: SandboxHostService, session: str) -> object:
        while True:
            await host.stat_file(FileStat(session, "/etc/passwd"))

    async with build(settings) as host:
        info = await host.create(SessionSpec())
        session = info.session_id
        assert (await run(host, CallRequest(session, ("true",)))).exit_code == 0
        tasks = [asyncio.ensure_future(work(host, session)) for _ in range(30)]
        tasks.append(asyncio.ensure_future(host.write_file(FileWrite(session, "x"), endless())))
        await asyncio.sleep(0.2)
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(answer) for answer in answers} == {Unavailable}
    async with build(settings) as host:
        assert await list_all(host, FileList(session, ".")) == []
        await clean_up(host)
    await asyncio.sleep(0.1)
    assert settled(before) == before
