"""What the file verbs promise, on every runtime."""

import asyncio
import hashlib
import os
import posixpath
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from sandlot.host.service import SandboxHostService
from sandlot.model import (
    CallRequest,
    CapabilityNotSupported,
    DirectoryMake,
    FileConflict,
    FileInfo,
    FileKind,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    InvalidArgument,
    PermissionDenied,
    SandlotError,
    SessionNotFound,
    SessionSpec,
)
from tests.conftest import run

MIB = 1 << 20
RUNTIMES = [pytest.param("namespaces", marks=pytest.mark.root), "none"]


@dataclass(frozen=True)
class Files:
    """The verbs on one session. Paths are below its workspace."""

    host: SandboxHostService
    session: str
    workspace: str

    async def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        async with self.host.read_file(FileRead(self.session, path, offset=offset, length=length)) as stream:
            return b"".join([piece async for piece in stream])

    async def write(self, path: str, *content: bytes | str, mode: int | None = None, parents: bool = True) -> FileInfo:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in content:
                yield piece.encode() if isinstance(piece, str) else piece

        return await self.host.write_file(FileWrite(self.session, path, mode=mode, parents=parents), pieces())

    async def list(self, path: str = ".", depth: int = 1) -> list[FileInfo]:
        async with self.host.list_files(FileList(self.session, path, depth=depth)) as batches:
            return [info async for batch in batches for info in batch]

    async def names(self, path: str = ".", depth: int = 1) -> set[str]:
        start = posixpath.normpath(posixpath.join(self.workspace, path))
        return {posixpath.relpath(info.path, start) for info in await self.list(path, depth)}

    async def stat(self, path: str, *, follow: bool = True) -> FileInfo:
        return await self.host.stat_file(FileStat(self.session, path, follow=follow))

    async def make(self, path: str, mode: int = 0o755, *, parents: bool = True) -> bool:
        return await self.host.make_directory(DirectoryMake(self.session, path, mode=mode, parents=parents))

    async def rename(self, path: str, to: str, *, overwrite: bool = True) -> FileInfo:
        return await self.host.rename_file(FileRename(self.session, path, to=to, overwrite=overwrite))

    async def remove(self, path: str, *, recursive: bool = False) -> None:
        await self.host.remove_file(FileRemove(self.session, path, recursive=recursive))

    async def shell(self, script: str) -> str:
        ran = await run(self.host, CallRequest(self.session, ("sh", "-c", script)))
        assert ran.exit_code == 0, ran
        return ran.stdout.decode()


@pytest.fixture(params=RUNTIMES)
async def files(host: SandboxHostService, request: pytest.FixtureRequest) -> Files:
    info = await host.create(SessionSpec(runtime=request.param))
    return Files(host, info.session_id, info.workspace)


# ---- reading and writing ---------------------------------------------------------------------------------------


async def test_what_is_written_is_read(files: Files) -> None:
    for content in (b"", b"x", "grüße\n".encode(), bytes(range(256)) * 10):
        info = await files.write("file", content)
        assert await files.read("file") == content
        assert (info.size_bytes, info.path) == (len(content), f"{files.workspace}/file")


async def test_five_megabytes_in_pieces_of_any_size(files: Files) -> None:
    content = os.urandom(5 * MIB + 17)
    for size in (len(content), MIB, 77_777):
        await files.write("large", *(content[at : at + size] for at in range(0, len(content), size)))
        assert (await files.shell("sha256sum <large")).split()[0] == hashlib.sha256(content).hexdigest()
        assert await files.read("large") == content
    async with files.host.read_file(FileRead(files.session, "large")) as stream:
        sizes = [len(piece) async for piece in stream]
    assert stream.info.size_bytes == sum(sizes)
    assert min(sizes) > 0
    assert max(sizes) <= MIB


async def test_content_may_come_in_empty_pieces(files: Files) -> None:
    await files.write("file", b"", b"a", b"", b"b", b"")
    assert await files.read("file") == b"ab"
    await files.write("file")
    assert await files.read("file") == b""


async def test_ranges(files: Files) -> None:
    content = os.urandom(3 * MIB)
    await files.write("file", content)
    edges = (0, 1, 1000, MIB - 1, MIB, MIB + 1, len(content) - 1, len(content), len(content) + 1, 1 << 62)
    for offset in edges:
        assert await files.read("file", offset) == content[offset:]
        for length in edges:
            assert await files.read("file", offset, length) == content[offset : offset + length]


async def test_a_file_that_grows_is_read_at_least_as_far_as_it_was(files: Files) -> None:
    await files.write("log", bytes(2 * MIB))
    async with files.host.read_file(FileRead(files.session, "log")) as stream:
        pieces = aiter(stream)
        size = len(await anext(pieces))
        await files.shell("head -c 100 /dev/zero >>log")
        size += sum([len(piece) async for piece in pieces])
    assert 2 * MIB <= size <= 2 * MIB + 100


async def test_commands_and_the_host_see_the_same_files(files: Files) -> None:
    await files.shell("mkdir -p a/b && printf one >a/b/file")
    assert await files.read("a/b/file") == b"one"
    assert await files.read(f"{files.workspace}/a/b/file") == b"one"
    await files.write("a/b/file", "two")
    assert await files.shell(f"cat a/b/file; cat {files.workspace}/a/b/file") == "twotwo"
    await files.rename("a/b", "c")
    assert await files.shell("cat c/file; ls a") == "two"
    await files.remove("c", recursive=True)
    assert await files.shell("ls") == "a\n"


async def test_a_reader_never_sees_half_a_file(files: Files) -> None:
    """Every content has one letter, and is as long as all: a mixture would show."""
    script = """
import time
end, seen = time.monotonic() + 2.5, 0
while time.monotonic() < end:
    with open("file", "rb") as file: content = file.read()
    assert len(content) == 600_000 and len(set(content)) == 1, (len(content), set(content))
    seen += 1
print(seen)
"""
    await files.write("file", b"a" * 600_000)
    reading = asyncio.ensure_future(run(files.host, CallRequest(files.session, ("python3", "-c", script))))
    rounds = 0
    while not reading.done():
        letter = b"abcdefgh"[rounds % 8 : rounds % 8 + 1]
        await files.write("file", *(letter * 100_000 for _ in range(6)))
        rounds += 1
        assert set(await files.read("file")) == set(letter)
    ran = await reading
    assert ran.exit_code == 0, ran
    assert int(ran.stdout) > 20
    assert rounds > 20
    assert await files.names() == {"file"}


async def test_many_writers_and_one_survives(files: Files) -> None:
    contents = [bytes([number]) * 300_000 for number in range(12)]
    await asyncio.gather(*(files.write("file", content[:1000], content[1000:]) for content in contents))
    assert await files.read("file") in contents
    assert await files.names() == {"file"}


async def test_modes(files: Files) -> None:
    assert (await files.write("file", "x")).mode == 0o644
    assert (await files.write("file", "x", mode=0o751)).mode == 0o751
    assert (await files.write("file", "y")).mode == 0o751
    assert (await files.stat("file")).mode == 0o751
    await files.make("private", 0o700)
    await files.make("new/below", 0o711)
    assert await files.shell("stat -c %a file private new new/below") == "751\n700\n755\n711\n"


async def test_parents_are_made_when_asked_for(files: Files) -> None:
    with pytest.raises(FileNotFound):
        await files.write("a/b/file", "x", parents=False)
    with pytest.raises(FileNotFound):
        await files.make("a/b", parents=False)
    assert await files.names() == set()
    await files.write("a/b/file", "x")
    await files.write("a/b/other", "x", parents=False)
    assert await files.make("a/./c//d")
    assert await files.names(".", 5) == {"a", "a/b", "a/b/file", "a/b/other", "a/c", "a/c/d"}


# ---- directories -----------------------------------------------------------------------------------------------


async def test_making_a_directory_tells_whether_it_was_there(files: Files) -> None:
    assert await files.make("a") is True
    assert await files.make("a") is False
    assert await files.make("a/") is False
    assert await files.make(".") is False
    await files.write("file", "x")
    with pytest.raises(FileConflict):
        await files.make("file")
    with pytest.raises(FileConflict):
        await files.make("file/below")


async def test_one_of_many_makes_the_directory(files: Files) -> None:
    for number in range(10):
        made = await asyncio.gather(*(files.make(f"{number}/same") for _ in range(8)))
        assert sorted(made) == [False] * 7 + [True]


async def test_depth_of_a_listing(files: Files) -> None:
    await files.shell("mkdir -p a/b/c/d; touch 1 a/2 a/b/3 a/b/c/4; ln -s a link; ln -s nowhere a/dangling")
    levels = [{"1", "a", "link"}, {"a/2", "a/b", "a/dangling"}, {"a/b/3", "a/b/c"}, {"a/b/c/4", "a/b/c/d"}]
    for depth in range(1, 7):
        assert await files.names(".", depth) == set[str]().union(*levels[:depth])
    order = [info.path for info in await files.list(".", 9)]
    for path in order:
        above = posixpath.dirname(path)
        assert above == files.workspace or order.index(above) < order.index(path)
    assert await files.names("link", 9) == {"2", "b", "b/3", "b/c", "b/c/4", "b/c/d", "dangling"}
    assert await files.names("a/b/c/d") == set()
    with pytest.raises(FileConflict):
        await files.list("1")


async def test_a_listing_comes_in_batches_and_may_be_left(files: Files) -> None:
    await files.shell("seq 2500 | xargs touch")
    async with files.host.list_files(FileList(files.session, ".")) as batches:
        first = await anext(batches)
    assert 0 < len(first) <= 1000
    assert len(await files.list()) == 2500


async def test_what_is_told_of_a_file(files: Files) -> None:
    before = time.time()
    await files.shell("printf hello >file; chmod 640 file; mkdir dir; mkfifo pipe; ln -s x/y link; ln -s file good")
    uid, gid = map(int, (await files.shell("id -u; id -g")).split())
    told = {info.name: info for info in await files.list()}
    assert {name: info.kind for name, info in told.items()} == {
        "file": FileKind.FILE,
        "dir": FileKind.DIRECTORY,
        "pipe": FileKind.OTHER,
        "link": FileKind.SYMLINK,
        "good": FileKind.SYMLINK,
    }
    assert {name: info.target for name, info in told.items() if info.target} == {"link": "x/y", "good": "file"}
    for name, info in told.items():
        assert info == await files.stat(name, follow=False)
        assert info.path == f"{files.workspace}/{name}"
        assert (info.uid, info.gid) == (uid, gid)
        assert before - 2 < info.modified < time.time() + 2
    file = told["file"]
    assert (file.size_bytes, file.mode) == (5, 0o640)
    followed = await files.stat("good")
    assert (followed.kind, followed.target, followed.size_bytes) == (FileKind.FILE, "", 5)
    with pytest.raises(FileNotFound):
        await files.stat("link")


async def test_paths_are_told_without_what_says_nothing(files: Files) -> None:
    await files.shell("mkdir -p a/b; touch a/b/file; ln -s a/b link")
    told = await files.stat("./a//b/./file")
    assert told.path == f"{files.workspace}/a/b/file"
    # Not `a`: after a link, the text does not tell where `..` leads.
    assert (await files.stat("link/..")).path == f"{files.workspace}/link/.."
    assert [info.path for info in await files.list("link/../")] == [f"{files.workspace}/link/../b"]


# ---- moving and removing ---------------------------------------------------------------------------------------


async def test_renaming(files: Files) -> None:
    await files.write("a", "one")
    await files.write("b", "two")
    told = await files.rename("a", "a2")
    assert (told.path, told.size_bytes) == (f"{files.workspace}/a2", 3)
    with pytest.raises(FileConflict):
        await files.rename("a2", "b", overwrite=False)
    assert await files.read("b") == b"two"
    await files.rename("a2", "b")
    assert await files.read("b") == b"one"
    await files.rename("b", "c", overwrite=False)
    with pytest.raises(FileNotFound):
        await files.rename("b", "d")
    with pytest.raises(FileNotFound, match="nowhere"):
        await files.rename("c", "nowhere/c")
    await files.shell("ln -s c link; mkdir full empty; touch full/x")
    moved = await files.rename("link", "link2")
    assert (moved.kind, moved.target) == (FileKind.SYMLINK, "c")
    with pytest.raises(FileConflict):
        await files.rename("empty", "full")
    with pytest.raises(FileConflict):
        await files.rename("c", "empty")
    with pytest.raises(InvalidArgument):
        await files.rename("full", "full/below")
    assert await files.names() == {"c", "link2", "full", "empty"}


async def test_removing(files: Files) -> None:
    await files.shell(
        "mkdir -p full/a/b empty; touch file full/1 full/a/2 full/a/b/3; ln -s full link; ln -s / full/top"
    )
    await files.remove("file")
    await files.remove("empty")
    with pytest.raises(FileConflict, match="not empty"):
        await files.remove("full")
    await files.remove("link", recursive=True)
    assert await files.names() == {"full"}
    await files.remove("full", recursive=True)
    assert await files.names() == set()
    with pytest.raises(FileNotFound):
        await files.remove("full", recursive=True)
    for path in (".", "..", "./", "a/.."):
        with pytest.raises(SandlotError):
            await files.remove(path, recursive=True)
    assert (await files.shell("pwd; ls -d /usr")).splitlines() == [files.workspace, "/usr"]


# ---- errors ----------------------------------------------------------------------------------------------------


async def test_errors_are_also_those_of_the_language(files: Files) -> None:
    with pytest.raises(FileNotFound) as missing:
        await files.read("missing")
    assert isinstance(missing.value, FileNotFoundError)
    assert isinstance(missing.value, OSError)
    assert isinstance(missing.value, LookupError)
    assert (missing.value.code, missing.value.context["path"]) == ("file_not_found", f"{files.workspace}/missing")
    await files.make("dir")
    with pytest.raises(FileConflict, match="directory") as conflict:
        await files.read("dir")
    assert isinstance(conflict.value, OSError)
    assert conflict.value.code == "file_conflict"
    with pytest.raises(InvalidArgument) as wrong:
        await files.read("x" * 300)
    assert isinstance(wrong.value, ValueError)


async def test_what_is_there_and_is_not_what_is_needed(files: Files) -> None:
    await files.write("file", "x")
    await files.make("dir")
    for refused in (
        files.write("dir", "x"),
        files.write("dir/", "x"),
        files.write(".", "x"),
        files.write("file/below", "x"),
        files.read("dir"),
        files.read("file/below"),
        files.stat("file/"),
        files.list("file"),
        files.remove("file/below"),
    ):
        with pytest.raises(FileConflict):
            await refused
    assert await files.names(".", 3) == {"file", "dir"}


async def test_sessions_that_are_not_there(files: Files) -> None:
    for missing in ("s-unknown", files.session + "x"):
        other = Files(files.host, missing, files.workspace)
        for refused in (other.read("x"), other.write("x", "y"), other.list(), other.stat("x"), other.remove("x")):
            with pytest.raises(SessionNotFound):
                await refused
    await files.host.destroy(files.session)
    with pytest.raises(SessionNotFound):
        await files.read("x")


# ---- the runtime `none` ----------------------------------------------------------------------------------------


async def test_without_isolation_the_workspace_is_all_there_is(host: SandboxHostService) -> None:
    info = await host.create(SessionSpec(runtime="none"))
    files = Files(host, info.session_id, info.workspace)
    outside = posixpath.join(posixpath.dirname(info.workspace), "outside")
    with open(outside, "w") as file:  # noqa: PTH123
        file.write("kept")
    await files.shell(f"ln -s {outside} abs; ln -s ../outside rel; ln -s .. up; ln -s /etc etc")
    for path in (outside, "../outside", "/etc/passwd", "abs", "rel", "up/outside", "etc/passwd", "../../../x"):
        for refused in (files.read(path), files.write(path, "x"), files.stat(path), files.list(path), files.make(path)):
            with pytest.raises(PermissionDenied, match="leads out"):
                await refused
    for path in (outside, "../outside", "up/outside", "/etc/passwd"):
        for refused in (files.remove(path), files.rename(path, "x"), files.rename("abs", path)):
            with pytest.raises(PermissionDenied, match="leads out"):
                await refused
    with open(outside) as file:  # noqa: PTH123
        assert file.read() == "kept"
    assert await files.write(f"{info.workspace}/inside/file", "x")
    assert await files.read(f"{info.workspace}/inside/../inside/file") == b"x"
    assert {told.path for told in await files.list(info.workspace)} >= {f"{info.workspace}/inside"}
    with pytest.raises(CapabilityNotSupported):
        await host.stat_file(FileStat(files.session, "inside", user="root"))


async def test_without_isolation_files_are_the_engines(host: SandboxHostService) -> None:
    info = await host.create(SessionSpec(runtime="none"))
    told = await Files(host, info.session_id, info.workspace).write("file", "x")
    assert (told.uid, told.gid) == (os.geteuid(), os.getegid())
