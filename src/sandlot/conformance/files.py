"""What every host promises of a session's files, whatever the runtime and the storage. All checks share one session;
each has a directory of its own."""

import os
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace

from sandlot.conformance.checks import Check, Outcome, Stage, equal, expect, judge
from sandlot.conformance.file_stage import FileStage, refused
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    DirectoryMake,
    FileConflict,
    FileEvent,
    FileEventKind,
    FileInfo,
    FileKind,
    FileNotFound,
    FileWatch,
    InvalidArgument,
    Line,
    Match,
    PermissionDenied,
    SessionNotFound,
    SessionSpec,
)

_ODD = "a\nb \udcff\u00e9 'x"  # a newline, a byte that is no UTF-8, and what shells mind
_MIB = 1 << 20


# ---- reading and writing ---------------------------------------------------------------------------------------------


async def what_is_written_is_read_by_both(stage: FileStage) -> None:
    """Host and commands see the same bytes, in any pieces, under any name."""
    content = os.urandom(3 * _MIB + 17)
    await stage.write(_ODD, content[:5], b"", content[5:])
    equal(await stage.read(_ODD) == content, True)
    equal(await stage.read(_ODD, offset=_MIB - 3, length=9), content[_MIB - 3 : _MIB + 6])
    equal(await stage.sh("cat * | wc -c"), str(len(content)))
    await stage.sh("printf 'from a command' | tee * >/dev/null")
    equal(await stage.read(_ODD), b"from a command")
    equal([info.name for info in await stage.listing()], [_ODD])


async def a_write_keeps_mode_and_owner(stage: FileStage) -> None:
    """New content does not change whose a file is."""
    await stage.write("a", b"1", mode=0o750)
    before = await stage.stat("a")
    after = await stage.write("a", b"22")
    equal((after.mode, after.uid, after.gid, after.size_bytes), (0o750, before.uid, before.gid, 2))
    equal((await stage.sh("stat -c '%U %G' a")).split(), [after.owner, after.group])


async def what_is_appended_stands_behind(stage: FileStage) -> None:
    """A file is made when it is not there; every piece comes behind what is there, also behind what a command wrote."""
    equal((await stage.append("deep/log", b"one\n", mode=0o600)).mode, 0o600)
    await stage.sh("printf 'two\\n' >>deep/log")
    equal((await stage.append("deep/log", b"th", b"ree\n")).size_bytes, 14)
    equal(await stage.read("deep/log"), b"one\ntwo\nthree\n")
    await stage.link("way", "deep/log")
    await stage.append("way", b"4")
    equal(await stage.sh("tail -c 1 deep/log"), "4")
    await refused(stage.append("deep", b"x"), FileConflict)


async def lines_are_told_by_number(stage: FileStage) -> None:
    """From any line on, so many; the last one may have no newline; a long one is cut, and the lines are counted."""
    await stage.write("a", b"".join(b"line %d\n" % number for number in range(1, 100_001)) + b"last")
    found, total = await stage.lines("a", first=99_999, total=True)
    equal(
        [(line.number, line.text) for line in found],
        [(99_999, "line 99999"), (100_000, "line 100000"), (100_001, "last")],
    )
    equal(total, 100_001)
    found, total = await stage.lines("a", first=2, count=2)
    equal(([line.text for line in found], total), (["line 2", "line 3"], None))
    equal((await stage.lines("a", count=1, total=True))[1], 100_001)
    equal(await stage.lines("a", first=100_002), (list[Line](), 100_001))
    await stage.write("long", b"x" * (2 * _MIB) + b"\nshort\n\xff")
    equal(
        (await stage.lines("long", line_bytes=3))[0],
        [Line(1, "xxx", is_cut=True), Line(2, "sho", is_cut=True), Line(3, "\udcff")],
    )
    await stage.write("empty", b"")
    equal(await stage.lines("empty", total=True), (list[Line](), 0))
    await refused(stage.lines("."), FileConflict)


async def a_text_is_replaced_once_or_everywhere(stage: FileStage) -> None:
    """Exactly one place, or all of them; another count is an error that tells it, and changes nothing."""
    await stage.write("a", "grün, grün, grün\n".encode(), mode=0o640)
    error = await refused(stage.replace("a", "grün", "rot"), FileConflict)
    equal(error.context.get("count"), 3)
    error = await refused(stage.replace("a", "blau", "rot"), FileConflict)
    equal(error.context.get("count"), 0)
    equal(await stage.replace("a", "blau", "rot", all=True), 0)
    equal(await stage.replace("a", "grün\n", "gelb\n"), 1)
    equal(await stage.replace("a", "grün", "", all=True), 2)
    equal(await stage.read("a"), b", , gelb\n")
    equal((await stage.stat("a")).mode, 0o640)
    await refused(stage.replace("missing", "a", "b"), FileNotFound)


# ---- directories -----------------------------------------------------------------------------------------------------


async def a_copy_is_a_copy(stage: FileStage) -> None:
    """Content and bits are copied, links are copied as links, a hole stays a hole, and what is no file is left out."""
    await stage.sh("mkdir -p a/b a/empty; echo x >a/b/f; chmod 751 a/b/f; ln -s ../nowhere a/l; mkfifo a/p")
    await stage.sh("dd if=/dev/zero of=a/hole bs=1 count=0 seek=1G 2>/dev/null; printf end >>a/hole")
    pipes = int(await stage.exists("a/p"))  # none where the session has a kernel of its own
    tally = await stage.copy("a", "c", recursive=True)
    equal((tally.files, tally.directories, tally.links, tally.skipped_count), (2, 3, 1, pipes))
    equal(await stage.read("c/b/f"), b"x\n")
    equal((await stage.stat("c/b/f")).mode, 0o751)
    equal((await stage.stat("c/l", follow=False)).target, "../nowhere")
    equal(await stage.sh("tail -c 3 c/hole; stat -c ' %s' c/hole"), f"end {(1 << 30) + 3}")
    before, after = map(int, (await stage.sh("stat -c %b a/hole c/hole")).split())
    expect(after <= before + 64, f"the hole was filled: {before} blocks became {after}")
    equal(await stage.exists("c/p"), False)


async def a_copy_goes_where_it_may(stage: FileStage) -> None:
    """Not over what is there when that is not asked for, not into itself, not a directory when a file is meant."""
    await stage.sh("mkdir -p a/b; echo 1 >f; echo 2 >g; ln -s a loop")
    await refused(stage.copy("f", "g", overwrite=False), FileConflict)
    equal(await stage.read("g"), b"2\n")
    await stage.copy("f", "g")
    equal(await stage.read("g"), b"1\n")
    await refused(stage.copy("a", "d"), FileConflict)
    await refused(stage.copy("a", "a/b/c", recursive=True), FileConflict)
    await refused(stage.copy("a", "loop/b/c", recursive=True), FileConflict)
    await refused(stage.copy("missing", "d"), FileNotFound)
    await refused(stage.copy("f", "a"), FileConflict)
    equal((await stage.copy("loop", "loop2")).links, 1)
    equal(sorted(info.name for info in await stage.listing()), ["a", "f", "g", "loop", "loop2"])


async def bits_are_changed(stage: FileStage) -> None:
    """Of a file, or of all below a directory; links below are left alone, and what they point at too."""
    await stage.sh("mkdir -p d/e; touch d/f d/e/g outside; chmod 600 outside; ln -s ../outside d/l; ln -s d/f way")
    equal((await stage.change("way", mode=0o604)).mode, 0o604)
    equal((await stage.stat("d/f")).mode, 0o604)
    await stage.change("d", mode=0o750, recursive=True)
    equal([(await stage.stat(name)).mode for name in ("d", "d/e", "d/f", "d/e/g")], [0o750] * 4)
    equal((await stage.stat("outside")).mode, 0o600)
    await refused(stage.change("missing", mode=0o600), FileNotFound)


async def owners_are_those_of_the_session(stage: FileStage) -> None:
    """Names and numbers mean what they mean in the session; only root gives files away, and a link itself is given."""
    await stage.sh("mkdir d; touch d/f; ln -s f d/l")
    if stage.stage.session.runtime == "none":
        await refused(stage.change("d/f", owner="no-such-user"), InvalidArgument)
        return
    told = await stage.change("d", owner="root", group="12", recursive=True, user="root")
    equal((told.uid, told.gid, told.owner), (0, 12, "root"))
    link = await stage.stat("d/l", follow=False)
    equal((link.uid, link.gid), (0, 12))
    equal(await stage.sh("stat -c '%u %g' d/f"), "0 12")
    await refused(stage.change("d/f", owner="user"), PermissionDenied)
    await refused(stage.change("d/f", owner="no-such-user", user="root"), InvalidArgument)
    await refused(stage.change("d/f", group="no-such-group", user="root"), InvalidArgument)


async def a_link_is_text(stage: FileStage) -> None:
    """It is made as it was asked for, wherever it points, and never over something."""
    told = await stage.link("deep/l", _ODD)
    equal((told.kind, told.target, told.path), (FileKind.SYMLINK, _ODD, stage.at("deep/l")))
    await refused(stage.link("deep/l", "x"), FileConflict)
    await stage.link("out", "/../../../etc/passwd")
    equal(await stage.sh("readlink out"), "/../../../etc/passwd")


async def attributes_are_kept(stage: FileStage) -> None:
    """Of files and directories, under names that begin with `user.`; some or all of them are changed."""
    await stage.sh("mkdir d; echo x >f; mkfifo p")
    try:
        told = await stage.attribute("f", {"user.a": b"\0\xff", "user.b": b""})
    except InvalidArgument as error:
        expect("filesystem" in error.message, error)  # it keeps none, and says so
        return
    equal(told, {"user.a": b"\0\xff", "user.b": b""})
    await stage.attribute("f", {"user.b": None, "user.c": b"1"})
    equal(await stage.attributes("f"), {"user.a": b"\0\xff", "user.c": b"1"})
    equal(await stage.attribute("f", {"user.d": b"2"}, replace=True), {"user.d": b"2"})
    equal(await stage.attribute("d", {"user.a": b"1"}), {"user.a": b"1"})
    if await stage.exists("p"):
        await refused(stage.attribute("p", {"user.a": b"1"}), PermissionDenied)


# ---- looking for files -----------------------------------------------------------------------------------------------


async def a_listing_has_an_order_and_pages(stage: FileStage) -> None:
    """By name, each directory before what is in it; pages begin where the one before ended."""
    await stage.sh("mkdir -p a/b a-c; touch a/b/x a/c a-c/y z; ln -s a loop")
    expected = ["a", "a/b", "a/b/x", "a/c", "a-c", "a-c/y", "loop", "z"]
    told = await stage.listing(depth=9, ordered=True)
    equal([posixpath.relpath(info.path, stage.folder) for info in told], expected)
    found = {info.path: info for info in await stage.listing(depth=9)}
    equal([(info.kind, info.mode, info.owner, info.target) for info in told if found[info.path] != info], [])
    pages: list[FileInfo] = []
    while page := await stage.listing(depth=9, ordered=True, limit=3, after=pages[-1].path if pages else ""):
        pages += page
    equal(pages, told)


async def files_are_found_by_name(stage: FileStage) -> None:
    """By pattern and kind; no link is followed, and what begins with a dot is found when it is asked for."""
    await stage.sh("mkdir -p src/inner .git; touch src/a.py src/inner/b.py src/c.txt .git/d.py; ln -s src way")
    await stage.write(f"src/{_ODD}.py", b"")
    equal(await stage.find("**/*.py"), [f"src/{_ODD}.py", "src/a.py", "src/inner/b.py"])
    equal(await stage.find("**/*.py", hidden=True, limit=1), [".git/d.py"])
    equal(await stage.find(kinds=(FileKind.SYMLINK,)), ["way"])
    equal(await stage.find("*/?.{py,txt}"), ["src/a.py", "src/c.txt"])
    await refused(stage.find("[a"), InvalidArgument)
    await refused(stage.find(name="src/a.py"), FileConflict)


async def lines_are_found_by_content(stage: FileStage) -> None:
    """Lines with what stands around them, in the order of paths; a pattern that is none says where it is wrong."""
    await stage.sh(
        "mkdir d; printf 'one\ntwo\nthree\n' >d/a; printf '\\000two\n' >d/binary; echo two >d/.b; mkfifo d/p"
    )
    await stage.write(f"d/{_ODD}", b"x\xff Two\n")
    equal(await stage.search("^two$", context=1), [Match(stage.at("d/a"), 2, "two", ("one",), ("three",))])
    equal([match.text for match in await stage.search("two", ignore_case=True)], ["two", "x\udcff Two"])
    equal([match.line for match in await stage.search("t", "d/a", literal=True, limit=1)], [2])
    equal(await stage.search("two", exclude=("a",)), [])
    error = await refused(stage.search("(two"), InvalidArgument)
    expect(bool(error.next_step), "no next step")


async def usage_is_counted(stage: FileStage) -> None:
    """Bytes as a reader sees them and as the disk does, files and directories; links are not followed."""
    await stage.sh(
        "mkdir -p d/e; printf 12345 >d/f; ln -s / d/e/l; dd if=/dev/zero of=d/hole bs=1 count=0 seek=1G 2>/dev/null"
    )
    told = await stage.usage("d")
    equal((told.files, told.directories, told.closed), (3, 2, 0))
    equal(told.size_bytes, 5 + 1 + (1 << 30))
    expect(told.allocated_bytes < 1 << 20, told)
    equal((await stage.usage("d/f")).size_bytes, 5)


async def the_user_sees_what_the_user_may_see(stage: FileStage) -> None:
    """A search has the rights of the user who asks, and no more; root of the session has more."""
    if stage.stage.session.runtime == "none":
        return
    await stage.sh("mkdir -p d/closed; echo secret >d/closed/f; echo secret >d/g")
    await stage.change("d/closed", owner="root", recursive=True, user="root")
    await stage.change("d/closed", mode=0o700, user="root")
    equal([match.path for match in await stage.search("secret")], [stage.at("d/g")])
    equal((await stage.usage("d")).closed, 1)
    equal(await stage.find("d/**", kinds=(FileKind.FILE,)), ["d/g"])
    equal(len(await stage.search("secret", user="root")), 2)
    equal((await stage.usage("d", user="root")).closed, 0)
    await refused(stage.find(name="d/closed"), PermissionDenied)


async def changes_are_told(stage: FileStage) -> None:
    """What commands and the host do is told, also in directories that are new; who comes back misses nothing."""
    request = FileWatch(stage.id, stage.folder)
    async with stage.host.watch_files(request) as batches:
        await stage.sh("mkdir -p new/deep; echo x >new/deep/f")
        told = await _until(batches, "new/deep/f", FileEventKind.CREATED)
        # From here on they are watched; what came and went before that nobody saw.
        await stage.sh("mv new/deep/f new/g; chmod 600 new/g; rm new/g")
        told += await _until(batches, "new/g", FileEventKind.REMOVED)
        known = {(event.kind, posixpath.relpath(event.path, stage.folder)) for event in told}
        for kind, name in (("created", "new"), ("created", "new/deep"), ("removed", "new/g")):
            expect((FileEventKind(kind), name) in known, f"{kind} {name} was not told: {sorted(known)}")
        await stage.write("new/h", b"1")
        await stage.write("new/h", b"2")
        told = await _until(batches, "new/h", FileEventKind.CHANGED)
        expect(all(".sandlot-" not in event.path for event in told), told)
    await stage.write("later", b"")
    last = told[-1].offset
    async with stage.host.watch_files(replace(request, after=last)) as batches:
        told = await _until(batches, "later", FileEventKind.CREATED)
        expect(all(event.kind is not FileEventKind.OVERFLOW and event.offset > last for event in told), told)
    async with stage.host.watch_files(replace(request, after=1)) as batches:
        equal((await anext(batches))[0].kind, FileEventKind.OVERFLOW)
    await refused(_entered(stage.host.watch_files(FileWatch(stage.id, stage.at("missing")))), FileNotFound)
    await refused(_entered(stage.host.watch_files(FileWatch(stage.id, stage.at("later")))), FileConflict)


async def _entered(manager: AbstractAsyncContextManager[object]) -> None:
    async with manager:
        pass


async def _until(batches: AsyncIterator[Sequence[FileEvent]], name: str, kind: FileEventKind) -> list[FileEvent]:
    """All events up to this one. The check's own deadline ends the waiting."""
    told: list[FileEvent] = []
    async for batch in batches:
        told += batch
        if any(event.path.endswith(f"/{name}") and event.kind is kind for event in batch):
            break
    return told


# ---- what is hostile -------------------------------------------------------------------------------------------------


def every_verb(stage: FileStage, name: str) -> dict[str, Callable[[], Awaitable[object]]]:
    """Each verb that takes a path, on this one."""
    return {
        "read": lambda: stage.read(name),
        "write": lambda: stage.write(name, b"x", parents=False),
        "append": lambda: stage.append(name, b"x", parents=False),
        "lines": lambda: stage.lines(name),
        "replace": lambda: stage.replace(name, "root", "x", all=True),
        "copy": lambda: stage.copy(name, "copied", recursive=True),
        "change": lambda: stage.change(name, mode=0o600),
        "change all": lambda: stage.change(name, mode=0o600, recursive=True),
        "list": lambda: stage.listing(name, ordered=True),
        "find": lambda: stage.find(name=name),
        "search": lambda: stage.search("root", name),
        "watch": lambda: _entered(stage.host.watch_files(FileWatch(stage.id, stage.at(name)))),
        "usage": lambda: stage.usage(f"{name}/."),
        "attributes": lambda: stage.attributes(name),
        "set attributes": lambda: stage.attribute(name, {"user.a": b"1"}),
    }


async def no_link_leads_out_for_any_verb(stage: FileStage) -> None:
    """What a link points at outside of the session is not there, for every verb."""
    outside = "/proc/1/root/etc" if stage.stage.session.runtime != "none" else "/etc"
    await stage.sh(f"ln -s {outside}/hostname out; ln -s {outside} folder")
    for name in ("out", "folder/hostname"):
        for verb, attempt in every_verb(stage, name).items():
            try:
                await attempt()
            except (PermissionDenied, FileNotFound, FileConflict):
                continue
            expect(verb == "copy" and name == "out", f"{verb} of {name} was done")  # of the link itself


async def no_pipe_is_opened_by_any_verb(stage: FileStage) -> None:
    """Every verb that would read or write one is refused at once, and does not wait for the other end."""
    await stage.sh("mkfifo p")
    if not await stage.exists("p"):  # it is in a kernel of the session's own
        return
    for verb, attempt in every_verb(stage, "p").items():
        try:
            await attempt()
        except (FileConflict, PermissionDenied, InvalidArgument):
            continue
        expect(verb in ("change", "change all", "attributes"), f"{verb} of a pipe was done")


async def what_is_missing_is_missing_for_every_verb(stage: FileStage) -> None:
    """The same error, whichever verb meets it."""
    for attempt in every_verb(stage, "no/such").values():
        await refused(attempt(), FileNotFound)


FILE_CHECKS: tuple[Check[FileStage], ...] = tuple(
    Check(run)
    for run in (
        what_is_written_is_read_by_both,
        a_write_keeps_mode_and_owner,
        what_is_appended_stands_behind,
        lines_are_told_by_number,
        a_text_is_replaced_once_or_everywhere,
        a_copy_is_a_copy,
        a_copy_goes_where_it_may,
        bits_are_changed,
        owners_are_those_of_the_session,
        a_link_is_text,
        attributes_are_kept,
        a_listing_has_an_order_and_pages,
        files_are_found_by_name,
        lines_are_found_by_content,
        usage_is_counted,
        the_user_sees_what_the_user_may_see,
        changes_are_told,
        no_link_leads_out_for_any_verb,
        no_pipe_is_opened_by_any_verb,
        what_is_missing_is_missing_for_every_verb,
    )
)


async def conform_files(
    host: Host, runtime: str, storage: str = AUTO, checks: Sequence[Check[FileStage]] = FILE_CHECKS
) -> AsyncIterator[Outcome]:
    """One session for all of them; nothing is left of it."""
    session = await host.create(SessionSpec(runtime=runtime, storage=storage))
    stage = Stage(host, runtime, session, [], storage)

    async def attempt(check: Check[FileStage]) -> None:
        folder = f"{session.workspace}/{check.name}"
        await host.make_directory(DirectoryMake(session.session_id, folder))
        await check.run(FileStage(stage, folder))

    try:
        async for outcome in judge(checks, {}, None, attempt):
            yield outcome
    finally:
        with suppress(SessionNotFound):
            await host.destroy(session.session_id)
