"""The desk at which threads work for a session, and how the kernel's words become ours. Needs no session."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from sandlot.contracts.runtime import Tree
from sandlot.host import inside
from sandlot.host.desk import Desk, Hands, Known, Place, translate
from sandlot.host.files import SessionFiles
from sandlot.host.inside import WrongKind
from sandlot.model import (
    DeadlineExceeded,
    DirectoryMake,
    FileConflict,
    FileInfo,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    InvalidArgument,
    InvalidState,
    LimitReached,
    PermissionDenied,
    SandlotError,
    Unavailable,
    limits,
)

MIB = 1 << 20


@pytest.fixture
def files() -> Iterator[SessionFiles]:
    hands = Hands()
    yield SessionFiles(hands)
    hands.close()


@pytest.fixture
def place(tmp_path: Path) -> Callable[[], Place]:
    def open_place() -> Place:
        return Place(Tree(os.open(tmp_path, os.O_PATH | os.O_DIRECTORY), str(tmp_path), None), str(tmp_path), "")

    return open_place


def is_open(fd: int, folder: Path) -> bool:
    try:
        return os.fstat(fd).st_ino == folder.stat().st_ino
    except OSError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


async def settled(before: int) -> int:
    for _ in range(200):
        if descriptors() == before:
            break
        await asyncio.sleep(0.01)
    return descriptors()


class Gate:
    """Holds every stat until it is opened."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()
        look = inside.stat_file

        def wait_first(where: inside.Inside, path: str, *, follow: bool) -> FileInfo:
            self.entered.release()
            assert self._open.wait(20)
            return look(where, path, follow=follow)

        patch.setattr(inside, "stat_file", wait_first)

    def open(self) -> None:
        self._open.set()


# ---- the desk --------------------------------------------------------------------------------------------------


def test_a_desk_is_closed_when_it_is_left_and_nobody_works(place: Callable[[], Place], tmp_path: Path) -> None:
    where = place()
    desk = Desk(where, "x", Known())
    closed: list[str] = []
    desk.keep(lambda: closed.append("second"))
    desk.keep(lambda: closed.append("first"))
    assert desk.work(lambda: 42) == 42
    assert is_open(where.tree.fd, tmp_path)
    assert desk.leave()
    assert not desk.leave()
    desk.close_as_user()
    assert closed == ["first", "second"]
    assert not is_open(where.tree.fd, tmp_path)
    with pytest.raises(InvalidState):
        desk.work(lambda: closed.append("never"))
    desk.close()
    assert closed == ["first", "second"]


def test_who_works_when_it_is_left_closes_it(place: Callable[[], Place], tmp_path: Path) -> None:
    where = place()
    desk = Desk(where, "x", Known())
    go_on = [threading.Event(), threading.Event()]
    at_work = threading.Barrier(3)
    seen: list[bool] = []

    def step(event: threading.Event) -> None:
        at_work.wait(10)
        event.wait(10)
        seen.append(is_open(where.tree.fd, tmp_path))

    threads = [threading.Thread(target=desk.work, args=(lambda event=event: step(event),)) for event in go_on]
    for thread in threads:
        thread.start()
    at_work.wait(10)
    assert not desk.leave()
    with pytest.raises(InvalidState):
        desk.work(lambda: None)
    for event, thread in zip(go_on, threads, strict=True):
        assert is_open(where.tree.fd, tmp_path)
        event.set()
        thread.join()
    assert seen == [True, True]
    assert not is_open(where.tree.fd, tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_step_closes(place: Callable[[], Place], tmp_path: Path, fails: bool) -> None:
    where = place()
    desk = Desk(where, "x", Known())
    if fails:
        with pytest.raises(ZeroDivisionError):
            desk.work(lambda: 1 // 0, last=True)
    else:
        desk.work(lambda: None, last=True)
    assert not is_open(where.tree.fd, tmp_path)
    assert not desk.leave()


def test_one_that_cannot_be_closed_does_not_keep_the_others_open(place: Callable[[], Place], tmp_path: Path) -> None:
    where = place()
    desk = Desk(where, "x", Known())

    def fail() -> None:
        raise OSError(errno.EIO, "the disk is gone")

    desk.keep(fail)
    assert desk.leave()
    desk.close_as_user()
    assert not is_open(where.tree.fd, tmp_path)


# ---- deadlines, cancelling, closing ----------------------------------------------------------------------------


async def test_a_deadline(files: SessionFiles, place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch) -> None:
    before = descriptors()
    gate = Gate(monkeypatch)
    monkeypatch.setattr(limits, "FILE_DEADLINE_S", 0.1)
    with pytest.raises(DeadlineExceeded):
        await files.stat(place(), FileStat("s", "."))
    assert descriptors() == before + 1
    gate.open()
    assert await settled(before) == before


async def test_cancelled_while_it_waits_for_a_thread_and_while_it_has_one(
    files: SessionFiles, place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = descriptors()
    gate = Gate(monkeypatch)
    tasks = [asyncio.ensure_future(files.stat(place(), FileStat("s", "."))) for _ in range(20)]
    for _ in range(8):
        await asyncio.to_thread(gate.entered.acquire, timeout=10)
    for task in tasks:
        task.cancel()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
    gate.open()
    assert await settled(before) == before
    assert not gate.entered.acquire(blocking=False)  # those that waited never began


async def test_what_waits_when_the_engine_closes_is_told_so(
    place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not cancelled by whoever asked, so it is not told that it was."""
    before = descriptors()
    hands = Hands()
    files = SessionFiles(hands)
    gate = Gate(monkeypatch)
    tasks = [asyncio.ensure_future(files.stat(place(), FileStat("s", "."))) for _ in range(20)]
    for _ in range(8):
        await asyncio.to_thread(gate.entered.acquire, timeout=10)
    hands.close()
    gate.open()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(answer) for answer in answers].count(FileInfo) == 8
    assert [type(answer) for answer in answers].count(Unavailable) == 12
    with pytest.raises(Unavailable):
        await files.stat(place(), FileStat("s", "."))
    assert await settled(before) == before


async def test_streams_that_are_open_when_the_engine_closes(place: Callable[[], Place], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(3 * MIB))
    before = descriptors()
    hands = Hands()
    files = SessionFiles(hands)
    async with files.read(place(), FileRead("s", "x")) as stream:
        pieces = aiter(stream)
        await anext(pieces)
        hands.close()
        with pytest.raises(Unavailable):
            await anext(pieces)
    assert descriptors() == before


async def test_what_waits_to_be_closed_when_the_engine_closes(
    place: Callable[[], Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").write_bytes(bytes(3 * MIB))
    before = descriptors()
    hands = Hands()
    files = SessionFiles(hands)
    gate = Gate(monkeypatch)
    async with files.read(place(), FileRead("s", "x")):
        tasks = [asyncio.ensure_future(files.stat(place(), FileStat("s", "."))) for _ in range(8)]
        for _ in tasks:
            await asyncio.to_thread(gate.entered.acquire, timeout=10)
    hands.close()
    gate.open()
    await asyncio.gather(*tasks)
    assert await settled(before) == before


async def test_the_loop_closes_nothing(files: SessionFiles, place: Callable[[], Place], tmp_path: Path) -> None:
    """Whoever closes the last descriptor of a large file that was removed frees it, which takes its time."""
    (tmp_path / "x").write_bytes(bytes(2 * MIB))
    loop_thread = threading.get_ident()
    closed_by: list[int] = []
    async with files.read(place(), FileRead("s", "x")) as stream:
        watch_closing(stream, closed_by)
    for _ in range(200):
        if closed_by:
            break
        await asyncio.sleep(0.01)
    assert closed_by
    assert loop_thread not in closed_by


def watch_closing(stream: object, closed_by: list[int]) -> None:
    desk: Desk = vars(stream)["_desk"]
    desk.keep(lambda: closed_by.append(threading.get_ident()))


# ---- small things that matter ----------------------------------------------------------------------------------


async def test_a_small_file_is_read_in_one_step_and_closed_at_once(
    files: SessionFiles, place: Callable[[], Place], tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"small")
    before = descriptors()
    async with files.read(place(), FileRead("s", "x")) as stream:
        assert descriptors() == before
        assert [piece async for piece in stream] == [b"small"]
        assert [piece async for piece in stream] == [b"small"]


async def test_iterating_after_the_context(files: SessionFiles, place: Callable[[], Place], tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(3 * MIB))
    for number in range(1200):
        (tmp_path / f"{number}").mkdir()
    async with files.read(place(), FileRead("s", "x")) as stream:
        pieces = aiter(stream)
        await anext(pieces)
    async with files.list(place(), FileList("s", ".", depth=2)) as batches:
        await anext(batches)
    with pytest.raises(InvalidState):
        await anext(pieces)
    with pytest.raises(InvalidState):
        await anext(batches)


async def test_content_that_is_no_content(files: SessionFiles, place: Callable[[], Place], tmp_path: Path) -> None:
    before = descriptors()

    async def words() -> AsyncIterator[bytes]:
        yield "text"  # pyright: ignore[reportReturnType]

    with pytest.raises(TypeError):
        await files.write(place(), FileWrite("s", "x"), words())
    assert await settled(before) == before
    assert list(tmp_path.iterdir()) == []


async def test_work_goes_on_beside_the_loop(
    files: SessionFiles, place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    task = asyncio.ensure_future(files.stat(place(), FileStat("s", ".")))
    began = time.monotonic()
    await asyncio.sleep(0.02)
    assert time.monotonic() - began < 1
    assert not task.done()
    gate.open()
    assert (await task).path


# ---- errors ----------------------------------------------------------------------------------------------------

ERRORS: dict[int, type[SandlotError]] = {
    errno.ENOENT: FileNotFound,
    errno.ESTALE: FileNotFound,
    errno.EACCES: PermissionDenied,
    errno.EPERM: PermissionDenied,
    errno.EROFS: PermissionDenied,
    errno.EXDEV: PermissionDenied,
    errno.EEXIST: FileConflict,
    errno.ENOTEMPTY: FileConflict,
    errno.ENOTDIR: FileConflict,
    errno.EISDIR: FileConflict,
    errno.EBUSY: FileConflict,
    errno.ETXTBSY: FileConflict,
    errno.ELOOP: FileConflict,
    errno.EAGAIN: FileConflict,
    errno.ENOSPC: LimitReached,
    errno.EDQUOT: LimitReached,
    errno.EFBIG: LimitReached,
    errno.EMFILE: LimitReached,
    errno.ENAMETOOLONG: InvalidArgument,
    errno.EINVAL: InvalidArgument,
    errno.EIO: Unavailable,
}


@pytest.mark.parametrize("number", ERRORS, ids=[errno.errorcode[number] for number in ERRORS])
def test_the_kernels_words_become_ours(number: int) -> None:
    error = translate(OSError(number, os.strerror(number)), "/a/b", "/a/b shown")
    assert type(error) is ERRORS[number]
    assert error.context["path"] == "/a/b"
    assert str(error).startswith("/a/b shown: ")


def test_the_wrong_kind_is_a_conflict_whatever_its_number() -> None:
    error = translate(WrongKind(errno.EINVAL, "is a pipe, not a file"), "/x", "/x")
    assert type(error) is FileConflict
    assert "pipe" in str(error)


def test_an_error_without_a_number_is_still_told() -> None:
    assert type(translate(OSError(), "/x", "/x")) is Unavailable


async def test_names_are_shown_so_that_they_can_be_printed(files: SessionFiles, place: Callable[[], Place]) -> None:
    for name in ("\x1b[31m", "a\nb", "\udcff", "\u202e", "x" * 200):
        with pytest.raises(FileNotFound) as caught:
            await files.stat(place(), FileStat("s", f"{name}/{name}/{name}"))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < 2500


# ---- when it is over -------------------------------------------------------------------------------------------


async def text() -> AsyncIterator[bytes]:
    yield b"text"


@pytest.mark.parametrize("path", ["x", "missing/x", "a/../../../etc/x"])
async def test_every_verb_tells_once_that_it_is_over(
    files: SessionFiles, place: Callable[[], Place], path: str
) -> None:
    told: list[str] = []

    def noted(verb: str) -> Place:
        return replace(place(), over=lambda: told.append(verb))

    verbs: list[Callable[[], Coroutine[object, object, object]]] = [
        lambda: files.write(noted("write"), FileWrite("s", path), text()),
        lambda: files.rename(noted("rename"), FileRename("s", path, to="elsewhere")),
        lambda: files.make_directory(noted("make"), DirectoryMake("s", path)),
        lambda: files.remove(noted("remove"), FileRemove("s", path)),
    ]
    for begin in verbs:
        with suppress(SandlotError):
            await begin()
    for _ in range(3000):
        if len(told) == len(verbs):
            break
        await asyncio.sleep(0.01)
    assert sorted(told) == ["make", "remove", "rename", "write"]


async def test_it_is_over_only_when_the_thread_of_a_caller_who_left_is_done(
    files: SessionFiles, place: Callable[[], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, over = threading.Event(), threading.Event(), threading.Event()
    mkdir = os.mkdir

    def held(*words: object, **more: object) -> None:
        begun.set()
        assert go_on.wait(60)
        mkdir(*words, **more)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(os, "mkdir", held)
    making = asyncio.create_task(files.make_directory(replace(place(), over=over.set), DirectoryMake("s", "new")))
    assert await asyncio.to_thread(begun.wait, 60)
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    assert not over.is_set()
    go_on.set()
    assert await asyncio.to_thread(over.wait, 60)


async def test_what_was_replaced_is_closed_after_the_answer(place: Callable[[], Place]) -> None:
    """By another thread, and until then it is not over; who comes when too many wait closes his own."""
    hands = Hands()
    hands.open()
    files = SessionFiles(hands)
    go_on, over = threading.Event(), list[int]()
    before = descriptors()
    hands._late.submit(go_on.wait, 60)  # pyright: ignore[reportPrivateUsage] - it is made to be late
    try:
        for number in range(100):
            here = replace(place(), over=partial(over.append, number))
            assert (await files.write(here, FileWrite("s", "f"), once(b"content"))).size_bytes == 7
        waiting = 100 - len(over)
        assert waiting == 64
        assert waiting <= descriptors() - before <= 3 * waiting
    finally:
        go_on.set()
    assert await settled(before) == before
    assert sorted(over) == [*range(100)]
    hands.close()


async def once(content: bytes) -> AsyncIterator[bytes]:
    yield content
