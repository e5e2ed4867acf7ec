"""What the fake host does beside the suite of hosts: its file verbs, its shell, and what it refuses."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager

import pytest

from sandlot.fakes.calls import Running
from sandlot.fakes.host import FakeHost
from sandlot.model import (
    AttributesSet,
    CallRequest,
    CapabilityNotSupported,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileConflict,
    FileCopy,
    FileFind,
    FileKind,
    FileLines,
    FileList,
    FileNotFound,
    FileRead,
    FileRename,
    FileReplace,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    InvalidArgument,
    LinkMake,
    MaxSessionsReached,
    Resources,
    SessionSpec,
    TerminalSize,
    TreeUpload,
)
from tests.conftest import collect

ID = "fake-1"


async def pieces(*content: bytes) -> AsyncIterator[bytes]:
    for piece in content:
        yield piece


@pytest.fixture
async def fake() -> FakeHost:
    host = FakeHost()
    await host.create(SessionSpec(session_id=ID))
    await host.write_file(FileWrite(ID, "src/a.py"), pieces(b"one\ntwo\nthree\n"))
    await host.write_file(FileWrite(ID, "src/deep/b.py"), pieces(b"Two"))
    await host.write_file(FileWrite(ID, ".hid/c.py"), pieces(b"two\n"))
    return host


async def sh(host: FakeHost, script: str) -> tuple[int, str, str]:
    async with host.call(CallRequest(ID, ("sh", "-c", script))) as stream:
        ran = await collect(stream)
    return ran.exit_code, ran.stdout.decode(), ran.stderr.decode()


async def test_lines_and_texts(fake: FakeHost) -> None:
    async with fake.read_lines(FileLines(ID, "src/a.py", first=2, count=1, line_bytes=2)) as stream:
        assert [(line.number, line.text, line.is_cut) async for batch in stream for line in batch] == [(2, "tw", True)]
        assert stream.total is None
    assert await fake.replace_in_file(FileReplace(ID, "src/a.py", old="t", new="T", all=True)) == 2
    with pytest.raises(FileConflict) as caught:
        await fake.replace_in_file(FileReplace(ID, "src/a.py", old="T", new="t"))
    assert caught.value.context["count"] == 2
    await fake.append_file(FileAppend(ID, "log/new", mode=0o600), pieces(b"a", b"b"))
    assert (await fake.stat_file(FileStat(ID, "log/new"))).mode == 0o600
    assert await sh(fake, "cat log/new src/a.py") == (0, "abone\nTwo\nThree\n", "")


async def test_links_lead_to_files_and_never_out(fake: FakeHost) -> None:
    await fake.make_link(LinkMake(ID, "way", target="src/a.py"))
    await fake.make_link(LinkMake(ID, "loop", target="loop"))
    await fake.make_link(LinkMake(ID, "up", target="../../../.."))
    await fake.write_file(FileWrite(ID, "way"), pieces(b"through"))
    assert (await sh(fake, "cat src/a.py up/workspace/way"))[1] == "throughthrough"
    link = await fake.stat_file(FileStat(ID, "way", follow=False))
    assert (link.kind, link.target) == (FileKind.SYMLINK, "src/a.py")
    with pytest.raises(FileConflict):
        await fake.stat_file(FileStat(ID, "loop"))
    assert (await fake.stat_file(FileStat(ID, "up"))).path == "/"


async def test_what_is_below_a_directory(fake: FakeHost) -> None:
    async def found(request: FileFind) -> list[str]:
        async with fake.find_files(request) as stream:
            return [info.name async for batch in stream for info in batch]

    assert await found(FileFind(ID, ".", pattern="**/*.py")) == ["a.py", "b.py"]
    assert await found(FileFind(ID, ".", pattern="**/*.py", hidden=True)) == ["c.py", "a.py", "b.py"]
    assert await found(FileFind(ID, ".", pattern="src/*", kinds=(FileKind.DIRECTORY,))) == ["deep"]
    with pytest.raises(InvalidArgument):
        await found(FileFind(ID, ".", pattern="[z-a]"))
    async with fake.search_files(FileSearch(ID, ".", pattern="^t", include=("*.py",), context=1)) as stream:
        hits = [(one.line, one.text, one.before, one.after) async for batch in stream for one in batch]
    assert hits == [(2, "two", ("one",), ("three",)), (3, "three", ("two",), ())]
    async with fake.list_files(FileList(ID, "src", depth=2, ordered=True, limit=2)) as batches:
        assert [info.name async for batch in batches for info in batch] == ["a.py", "deep"]
    usage = await fake.measure_files(FileUsage(ID, "src"))
    assert (usage.size_bytes, usage.files, usage.directories) == (17, 2, 2)


async def test_copies_and_moves(fake: FakeHost) -> None:
    tally = await fake.copy_file(FileCopy(ID, "src", to="copy", recursive=True))
    assert (tally.files, tally.directories) == (2, 2)
    await fake.write_file(FileWrite(ID, "copy/a.py"), pieces(b"changed"))
    assert (await sh(fake, "cat src/deep/b.py copy/a.py"))[1] == "Twochanged"
    for wrong in (
        fake.copy_file(FileCopy(ID, "src", to="other")),
        fake.copy_file(FileCopy(ID, "src", to="src/in", recursive=True)),
        fake.copy_file(FileCopy(ID, "src/a.py", to="copy/a.py", overwrite=False)),
        fake.rename_file(FileRename(ID, "src", to="src/deep/in")),
        fake.rename_file(FileRename(ID, "src/a.py", to="copy")),
    ):
        with pytest.raises(FileConflict):
            await wrong
    assert (await fake.rename_file(FileRename(ID, "src/a.py", to="copy/a.py"))).size_bytes == 14
    with pytest.raises(FileNotFound):
        await fake.stat_file(FileStat(ID, "src/a.py"))


async def test_bits_owners_and_attributes(fake: FakeHost) -> None:
    told = await fake.change_file(FileChange(ID, "src", mode=0o700, owner="root", recursive=True))
    assert (told.mode, told.owner, told.uid) == (0o700, "root", 0)
    assert (await fake.stat_file(FileStat(ID, "src/deep/b.py"))).owner == "root"
    with pytest.raises(InvalidArgument):
        await fake.change_file(FileChange(ID, "src", owner="nobody-here"))
    assert await fake.set_attributes(AttributesSet(ID, "src", values={"user.a": b"1"})) == {"user.a": b"1"}
    assert await fake.set_attributes(AttributesSet(ID, "src", values={"user.b": b"2"}, replace=True)) == {
        "user.b": b"2"
    }
    assert not await fake.make_directory(DirectoryMake(ID, "src"))
    assert await fake.make_directory(DirectoryMake(ID, "new/one", mode=0o711))


async def test_an_archive_that_leads_out_is_refused(fake: FakeHost) -> None:
    with pytest.raises(InvalidArgument):
        await fake.upload_tree(TreeUpload(ID, "in"), pieces(b"no archive" * 100))


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo a  'b  c' \"d $HOME\"", (0, "a b  c d /home/user\n", "")),
        ("X=1; echo $X ${X}2 '$X' \\$X", (0, "1 12 $X $X\n", "")),
        ("false && echo no || echo yes", (0, "yes\n", "")),
        ("false; echo $?", (0, "1\n", "")),
        ("printf '%s-%s\\n' a b c", (0, "a-b\nc-\n", "")),
        ("echo one > f; echo two >> f; wc -l < f; cat f | wc -c", (0, "2\n8\n", "")),
        ("echo err >&2; ls missing 2> e; cat e", (0, "ls: there is no missing\n", "err\n")),
        ("ls missing 2>/dev/null; echo $?", (0, "1\n", "")),
        ("cd src; pwd; ls", (0, "/workspace/src\na.py\ndeep\n", "")),
        ("mkdir d && touch d/a d/b && rm d/a && mv d/b d/c && cp d/c d/e && ls d", (0, "c\ne\n", "")),
        ("[ -f src/a.py ] && test -d src && test -n x && [ a = a ] && echo all", (0, "all\n", "")),
        ("export A=b; env | wc -l; exit 7", (7, "4\n", "")),
        ("no-such", (127, "", "sh: no-such: not found\n")),
        ("for x in a; do echo $x; done", (2, "", "sh: for is not known here\n")),
        ("echo $(pwd)", (2, "", "sh: this is not known here: '(pwd)'\n")),
        ("ls -l", (2, "", "ls: the fake does not know -l\n")),
    ],
)
async def test_the_shell(fake: FakeHost, script: str, told: tuple[int, str, str]) -> None:
    assert await sh(fake, script) == told


async def test_programs_of_ones_own() -> None:
    async def greet(running: Running) -> int:
        await running.out(f"hello {running.argv[1]}")
        return 3

    async def falls(running: Running) -> int:
        raise ZeroDivisionError(running.argv[0])

    host = FakeHost({"greet": greet, "falls": falls})
    await host.create(SessionSpec(session_id=ID))
    assert await sh(host, "greet you") == (3, "hello you", "")
    async with host.call(CallRequest(ID, ("falls",))) as stream:
        result = await stream.result()
    assert (result.exit_code, "ZeroDivisionError" in result.reason) == (1, True)


async def test_what_it_does_not_have_is_refused(fake: FakeHost) -> None:
    async def entered(manager: AbstractAsyncContextManager[object]) -> None:
        async with manager:
            pass

    for attempt in (
        fake.create(SessionSpec(resources=Resources(cpus=1))),
        fake.create(SessionSpec(user="root")),
        entered(fake.call(CallRequest(ID, ("true",), user="root"))),
        entered(fake.call(CallRequest(ID, ("true",), terminal=TerminalSize()))),
        entered(fake.read_file(FileRead(ID, "src/a.py", user="root"))),
        entered(fake.watch_files(FileWatch(ID, "src"))),
    ):
        with pytest.raises(CapabilityNotSupported):
            await attempt
    full = FakeHost(sessions_max=1)
    await full.create(SessionSpec())
    with pytest.raises(MaxSessionsReached):
        await full.create(SessionSpec())
