"""Copying a file: from sources that change and have no end, to a target that is full."""

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.cli import local_side
from sandlot.cli.local_side import LocalSource, LocalTarget, in_thread
from sandlot.cli.session_side import Place, SessionSource
from sandlot.cli.transfer import Tally, copy_file
from sandlot.model import FileConflict, FileInfo, FileKind, FileNotFound
from sandlot.sdk.below import NewFile


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[LocalTarget]:
    (tmp_path / "target").mkdir()
    opened = LocalTarget(str(tmp_path / "target"))
    await opened.open()
    yield opened
    opened.close()


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


# ---- this machine's side -----------------------------------------------------------------------------------------


async def copied(source: str, target: LocalTarget, *to: str) -> Tally:
    opened, tally = LocalSource(source), Tally()
    await opened.open()
    await copy_file(opened, target, to, tally)
    return tally


async def test_a_link_at_the_end_leads_on(target: LocalTarget, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    assert (await copied(str(tmp_path / "link"), target, "b")).files == 1
    assert everything(tmp_path / "target") == ["b"]


async def test_what_is_there_but_has_no_size(target: LocalTarget, tmp_path: Path) -> None:
    await copied("/proc/self/status", target, "status")
    assert b"Name:" in (tmp_path / "target" / "status").read_bytes()


async def test_wrong_sources(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, error in (("gone", FileNotFound), ("pipe", FileConflict)):
        with pytest.raises(error) as caught:
            await LocalSource(str(tmp_path / name)).open()
        assert caught.value.next_step


async def test_a_thread_that_is_told_to_stop_is_waited_for_and_undone() -> None:
    started, go, undone = threading.Event(), threading.Event(), list[str]()

    def work() -> str:
        started.set()
        go.wait(10)
        return "result"

    task = asyncio.ensure_future(in_thread(work, "x", undone.append))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    await asyncio.sleep(0.05)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert undone == ["result"]


async def test_an_interrupted_file_is_not_there(target: LocalTarget, tmp_path: Path) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x" * 100
        await asyncio.Event().wait()

    task = asyncio.ensure_future(target.write(("f",), 0o644, endless()))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert everything(tmp_path / "target") == []


async def test_a_disk_that_is_full_is_an_error_with_a_next_step(
    target: LocalTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: NewFile, data: bytes) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(local_side.NewFile, "write", full)
    with pytest.raises(Exception, match="the disk is full") as caught:
        await copied("/proc/self/status", target, "f")
    assert (getattr(caught.value, "code", ""), getattr(caught.value, "next_step", "")[:4]) == ("limit_reached", "free")
    assert everything(tmp_path / "target") == []


# ---- a session's side --------------------------------------------------------------------------------------------


class Growing:
    """The files of a session in which one grows as fast as it is read."""

    info = FileInfo("/workspace/log", FileKind.FILE, 10, 0o4755, 0, 0, 0.0)

    @asynccontextmanager
    async def read_file(self, request: object) -> AsyncGenerator["Growing"]:
        del request
        yield self

    async def stat_file(self, request: object) -> FileInfo:
        del request
        return self.info

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0)
            yield b"1234567"


async def test_a_file_that_grows_is_copied_as_long_as_it_was(target: LocalTarget, tmp_path: Path) -> None:
    source = SessionSource(Growing(), Place("one", "log"))  # pyright: ignore[reportArgumentType] - two verbs are enough
    await source.open()
    async with asyncio.timeout(5):
        await copy_file(source, target, ("log",), Tally())
    assert (tmp_path / "target" / "log").read_bytes() == b"1234567123"
    assert (tmp_path / "target" / "log").stat().st_mode & 0o7777 == 0o755
