"""Copying trees, from sources that lie, change and have no end."""

import asyncio
import os
import threading
import tracemalloc
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.cli import local_side
from sandlot.cli.below import NewFile, Parts
from sandlot.cli.local_side import LocalSource, LocalTarget, in_thread
from sandlot.cli.session_side import Place, SessionSource
from sandlot.cli.transfer import SKIPPED_TOLD, Content, Entry, Tally, copy
from sandlot.model import FileConflict, FileInfo, FileKind, FileNotFound, PermissionDenied, limits

FILE, DIRECTORY = FileKind.FILE, FileKind.DIRECTORY
Tree = dict[Parts, list[Entry] | bytes | Exception]


class Told:
    """A source that is whatever the test says: directories as lists, files as bytes, errors as errors."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.entry = Entry("top", DIRECTORY, 0o755, 0)

    def shown(self, parts: Parts) -> str:
        return "/".join(("one:top", *parts))

    @asynccontextmanager
    async def entries(self, parts: Parts) -> AsyncGenerator[AsyncIterator[Sequence[Entry]]]:
        found = self.tree[parts]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, list)

        async def batches() -> AsyncIterator[Sequence[Entry]]:
            for entry in found:
                yield [entry]

        yield batches()

    @asynccontextmanager
    async def read(self, parts: Parts) -> AsyncGenerator[Content]:
        found = self.tree[parts]
        if isinstance(found, Exception):
            raise found
        assert isinstance(found, bytes)
        yield Bytes(Entry(parts[-1], FILE, 0o7640, len(found)), found)


class Bytes:
    def __init__(self, entry: Entry, data: bytes) -> None:
        self.entry = entry
        self._data = data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._data


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[LocalTarget]:
    (tmp_path / "target").mkdir()
    opened = LocalTarget(str(tmp_path / "target"))
    await opened.open()
    yield opened
    opened.close()


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


async def test_names_of_a_hostile_source_lead_nowhere(target: LocalTarget, tmp_path: Path) -> None:
    bad = ["..", ".", "", "../out", "/tmp/out", "a/../../out", "nul\0"]
    entries = [Entry(name, kind, 0o777, 4) for name in bad for kind in (FILE, DIRECTORY)]
    tally = Tally()
    await copy(Told({(): [*entries, Entry("good", FILE, 0o640, 4)], ("good",): b"good"}), target, ("got",), tally)
    assert everything(tmp_path) == ["target", "target/got", "target/got/good"]
    assert (tally.files, tally.skipped_count) == (1, len(entries))
    assert (tmp_path / "target" / "got" / "good").stat().st_mode & 0o7777 == 0o640


async def test_links_and_devices_are_left_out_and_counted(target: LocalTarget, tmp_path: Path) -> None:
    entries = [Entry(f"link{n}", FileKind.SYMLINK, 0o777, 0) for n in range(SKIPPED_TOLD + 5)]
    entries.append(Entry("device", FileKind.OTHER, 0o666, 0))
    tally = Tally()
    await copy(Told({(): entries}), target, (), tally)
    assert everything(tmp_path / "target") == []
    assert (tally.files, tally.skipped_count, len(tally.skipped)) == (0, SKIPPED_TOLD + 6, SKIPPED_TOLD)
    assert tally.skipped[0] == ("one:top/link0", "a link")


async def test_what_goes_away_meanwhile_is_told_and_no_reason_to_stop(target: LocalTarget, tmp_path: Path) -> None:
    entries = [Entry("f", FILE, 0o644, 1), Entry("d", DIRECTORY, 0o755, 0), Entry("held", FILE, 0o644, 1)]
    tree: Tree = {(): entries, ("f",): FileNotFound("x"), ("d",): FileNotFound("x"), ("held",): FileConflict("a link")}
    tally = Tally()
    await copy(Told(tree), target, (), tally)
    assert everything(tmp_path / "target") == ["d"]
    assert sorted(tally.skipped) == [
        ("one:top/d", "gone meanwhile"),
        ("one:top/f", "gone meanwhile"),
        ("one:top/held", "changed meanwhile: a link"),
    ]


async def test_what_cannot_be_read_or_is_not_there_at_all_is_an_error(target: LocalTarget) -> None:
    trees: list[tuple[Tree, type[Exception]]] = [
        ({(): [Entry("f", FILE, 0o644, 1)], ("f",): PermissionDenied("x")}, PermissionDenied),
        ({(): [Entry("d", DIRECTORY, 0o755, 1)], ("d",): PermissionDenied("x")}, PermissionDenied),
        ({(): FileNotFound("x")}, FileNotFound),
    ]
    for tree, error in trees:
        with pytest.raises(error):
            await copy(Told(tree), target, (), Tally())


async def test_a_trouble_of_the_target_is_not_taken_for_one_of_the_source(target: LocalTarget, tmp_path: Path) -> None:
    (tmp_path / "target" / "f").mkdir()
    with pytest.raises(FileConflict, match="a directory is there already"):
        await copy(Told({(): [Entry("f", FILE, 0o644, 1)], ("f",): b"x"}), target, (), Tally())


async def test_a_directory_that_forbids_its_owner_is_filled_first(target: LocalTarget, tmp_path: Path) -> None:
    entries = [Entry("d", DIRECTORY, 0o7555, 0)]
    tree = {(): entries, ("d",): [Entry("in", DIRECTORY, 0o000, 0), Entry("f", FILE, 0o400, 1)], ("d", "f"): b"x"}
    await copy(Told({**tree, ("d", "in"): []}), target, ("new",), Tally())
    found = tmp_path / "target" / "new"
    assert [(found / name).stat().st_mode & 0o7777 for name in ("", "d", "d/in")] == [0o755, 0o555, 0o000]
    (tmp_path / "target" / "old").mkdir(mode=0o711)
    await copy(Told({**tree, ("d", "in"): []}), target, ("old",), Tally())
    assert (tmp_path / "target" / "old").stat().st_mode & 0o7777 == 0o711  # one that was there stays as it was


class Endless:
    """A directory of very many files, none of which is kept."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.written = 0
        self.entry = Entry("top", DIRECTORY, 0o755, 0)

    def shown(self, parts: Parts) -> str:
        return "/".join(parts)

    @asynccontextmanager
    async def entries(self, parts: Parts) -> AsyncGenerator[AsyncIterator[Sequence[Entry]]]:
        async def batches() -> AsyncIterator[Sequence[Entry]]:
            for first in range(0, self.count, 1000):
                kinds = [FILE] * 999 + [FileKind.SYMLINK]
                yield [Entry(f"a-longer-name-{first + n}", kind, 0o644, 2) for n, kind in enumerate(kinds)]

        yield batches()

    @asynccontextmanager
    async def read(self, parts: Parts) -> AsyncGenerator[Content]:
        yield Bytes(Entry(parts[-1], FILE, 0o644, 2), b"xy")

    async def make_directory(self, parts: Parts, mode: int) -> bool:
        return bool(parts) or bool(mode)

    async def finish_directory(self, parts: Parts, mode: int) -> None:
        del parts, mode

    async def write(self, parts: Parts, mode: int | None, content: AsyncIterable[bytes]) -> None:
        del parts, mode
        async for piece in content:
            self.written += len(piece)


async def test_a_hundred_thousand_files_take_no_memory() -> None:
    sides = Endless(100_000)
    tracemalloc.start()
    try:
        await copy(sides, sides, ("x",), tally := Tally())
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tally.files, tally.skipped_count, sides.written) == (99_900, 100, 199_800)
    assert peak < 4 * limits.MIB


# ---- this machine's side -----------------------------------------------------------------------------------------


async def copied(source: str, target: LocalTarget, *to: str) -> Tally:
    opened, tally = LocalSource(source), Tally()
    await opened.open()
    try:
        await copy(opened, target, to, tally)
    finally:
        opened.close()
    return tally


async def test_a_tree_byte_by_byte(target: LocalTarget, tmp_path: Path) -> None:
    source = os.fsencode(tmp_path / "source")
    odd = [b"plain", b"n\xff\xfe", b"new\nline", b" ", b"-", "é".encode()]
    for folder in (b"", b"/sub", b"/sub/n\xff"):
        os.mkdir(source + folder, 0o751)  # noqa: PTH102 - bytes
        for at, name in enumerate(odd):
            with open(source + folder + b"/" + name, "wb") as file:  # noqa: PTH123
                file.write(name * (at * 300_000))
    (tmp_path / "source" / "sub" / "plain").chmod(0o4751)
    (tmp_path / "source" / "link").symlink_to("sub")
    tally = await copied(str(tmp_path / "source"), target, "got")
    assert (tally.files, tally.directories, tally.skipped_count) == (18, 3, 1)
    got = os.fsencode(tmp_path / "target" / "got")
    for folder in (b"", b"/sub", b"/sub/n\xff"):
        assert os.stat(got + folder).st_mode & 0o7777 == 0o751  # noqa: PTH116
        for at, name in enumerate(odd):
            with open(got + folder + b"/" + name, "rb") as file:  # noqa: PTH123
                assert file.read() == name * (at * 300_000)
    assert (tmp_path / "target" / "got" / "sub" / "plain").stat().st_mode & 0o7777 == 0o751


async def test_a_link_at_the_top_leads_on(target: LocalTarget, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_bytes(b"x")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "file link").symlink_to("real/f")
    assert (await copied(str(tmp_path / "link"), target, "a")).files == 1
    assert (await copied(str(tmp_path / "file link"), target, "b")).files == 1
    assert everything(tmp_path / "target") == ["a", "a/f", "b"]


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

    info = FileInfo("/workspace/log", FILE, 10, 0o4755, 0, 0, 0.0)

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
        await copy(source, target, ("log",), Tally())
    assert (tmp_path / "target" / "log").read_bytes() == b"1234567123"
    assert (tmp_path / "target" / "log").stat().st_mode & 0o7777 == 0o755
