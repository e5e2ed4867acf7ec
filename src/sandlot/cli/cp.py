"""Copy files and directories into a session, out of one, or from one to another.

`sandlot cp data.csv ID:` puts a file into the workspace, `sandlot cp ID:results .` brings a directory back. ID:PATH is
a path in a session; a relative one begins in its workspace. ./a:b is a file here with a colon in its name. - is stdin
or stdout, for one file. As `cp -r`: into a directory that is there, or to a new name. Permission bits are kept. A
directory goes as one stream, with its links as they are; on the way out, links that lead out of the directory are left
out. Pipes, sockets and devices are always left out, and all that is left out is counted."""

import argparse
import asyncio
import os
import posixpath
import time
from collections.abc import Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from sandlot.cli import local_side, progress, session_side
from sandlot.cli.context import Context
from sandlot.cli.local_side import LocalSource, LocalTarget, StandardInput, StandardOutput
from sandlot.cli.screen import Screen, decoded, printable
from sandlot.cli.session_side import Place, SessionSource, SessionTarget
from sandlot.cli.show import size_text
from sandlot.cli.transfer import Entry, Source, Tally, Target, copy_file
from sandlot.contracts import Host
from sandlot.model import (
    FileConflict,
    FileKind,
    FileNotFound,
    InvalidArgument,
    SandlotError,
    SessionNotFound,
    TreeDownload,
    TreeUpload,
    check_session_id,
)
from sandlot.sdk.below import Parts
from sandlot.sdk.packing import packed
from sandlot.sdk.unpacking import unpack

USAGE = "cp [options] SRC... DST"
_SKIPPED_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("sources", metavar="SRC", nargs="+", help="PATH, ID:PATH or - for stdin")
    parser.add_argument("target", metavar="DST", help="ID:PATH, PATH or - for stdout")
    parser.add_argument(
        "--include", metavar="PATTERN", action="append", default=[], help="of a directory in a session; can be repeated"
    )
    parser.add_argument("--user", metavar="USER", help="who touches the session's files (default: the session's user)")


@dataclass(frozen=True, slots=True)
class Operand:
    """One word of the command line. Without a session it is a path of this machine, or `-`."""

    path: str
    session_id: str | None = None

    @property
    def is_standard(self) -> bool:
        return self.session_id is None and self.path == "-"

    def __str__(self) -> str:
        return self.path if self.session_id is None else f"{self.session_id}:{self.path}"


def operand(text: str) -> Operand:
    """Raises InvalidArgument."""
    head, colon, path = text.partition(":")
    if not colon or "/" in head:
        if not text:
            raise InvalidArgument("a path is empty", next_step="give one; `.` is where you are")
        return Operand(text)
    try:
        return Operand(path or ".", check_session_id(head))
    except InvalidArgument:
        raise InvalidArgument(
            f"{head!r} is no session id", next_step=f"for a file here with a colon in its name, write ./{text}"
        ) from None


def check(sources: Sequence[Operand], target: Operand, *, as_json: bool) -> None:
    """Whether these can be copied at all. Raises InvalidArgument."""
    for source in sources:
        if source.session_id is target.session_id is None:
            raise InvalidArgument(
                f"neither {source} nor {target} is in a session", next_step="write ID:PATH for the session's side"
            )
    if any(source.is_standard for source in sources) and len(sources) > 1:
        raise InvalidArgument("stdin is one file, and cannot be copied with others", next_step="copy it by itself")
    if target.is_standard and len(sources) > 1:
        raise InvalidArgument("stdout takes one file", next_step="copy one, or copy into a directory")
    if target.is_standard and as_json:
        raise InvalidArgument("stdout cannot take a file and a document", next_step="leave out --json, or name a file")
    if target.session_id is not None and any(source.session_id == target.session_id for source in sources):
        raise InvalidArgument(
            "both sides are the same session",
            next_step=f"copy inside it: `sandlot exec {target.session_id} -- cp -r SRC DST`",
        )


def plan(sources: Sequence[Entry], target: Operand, there: FileKind | None) -> tuple[str, list[Parts]]:
    """The directory that takes them, and what each is called below it; an empty name fills the directory itself.

    `there` is what the target is now. Raises InvalidArgument, FileNotFound, FileConflict."""
    if there is FileKind.DIRECTORY:
        return target.path, _names_in(sources, target)
    if len(sources) > 1:
        raise InvalidArgument(
            f"{target} is no directory, and takes no {len(sources)} things", next_step="make the directory first"
        )
    (source,) = sources
    path = target.path.rstrip("/")
    folder, name = posixpath.split(path)
    if there is not None and (source.kind is FileKind.DIRECTORY or there is not FileKind.FILE):
        raise FileConflict(
            f"{target}: something else is there, and is not replaced",
            next_step="move it away, or take another path",
            path=target.path,
        )
    if (source.kind is FileKind.FILE and path != target.path) or name in ("", ".", ".."):
        raise _no_directory(Operand(path or "/", target.session_id))
    return folder or ".", [(name,)]


def _names_in(sources: Sequence[Entry], target: Operand) -> list[Parts]:
    names: set[str] = set()
    for source in sources:
        if source.kind is FileKind.FILE and not source.name:
            raise InvalidArgument(
                f"{target} is a directory, and stdin has no name", next_step="give the path of the new file"
            )
        if source.name in names:
            raise InvalidArgument(f"two of them are called {source.name!r}", next_step="copy them one by one")
        names.add(source.name)
    return [(source.name,) if source.name else () for source in sources]


def _no_directory(folder: Operand) -> FileNotFound:
    make = f"`mkdir -p {folder.path}`"
    if folder.session_id is not None:
        make = f"`sandlot exec {folder.session_id} -- mkdir -p {folder.path}`"
    return FileNotFound(f"there is no directory {folder}", next_step=f"make it first: {make}", path=folder.path)


async def run(context: Context) -> int:
    args = context.args
    sources, target = [operand(text) for text in args.sources], operand(args.target)
    check(sources, target, as_json=args.json)
    tally = Tally()
    try:
        async with context.host() as host:
            with ExitStack() as stack:
                await _copy(context, host, stack, sources, target, tally)
    except BaseException as error:  # however it ends, what it has done is told
        _tell_of_the_rest(context.screen, tally, error)
        raise
    _report(context.screen, tally)
    return 0


async def _copy(
    context: Context, host: Host, stack: ExitStack, sources: Sequence[Operand], target: Operand, tally: Tally
) -> None:
    # All that can be wrong is found before anything is written.
    user = context.args.user
    opened = [await _open_source(host, stack, source, user) for source in sources]
    entries = [source.entry for source in opened]
    to, names = await _open_target(host, stack, target, entries, user)
    tally.began = time.monotonic()
    whole = sum(entry.size_bytes for entry in entries)
    is_known = all(entry.kind is FileKind.FILE for entry in entries) and whole > 0
    quiet = context.screen.as_json or (target.is_standard and context.screen.is_terminal)
    async with progress.shown(tally, whole if is_known else None, quiet=quiet):
        for source, parts in zip(opened, names, strict=True):
            await _copy_one(host, source, to, parts, tally, tuple(context.args.include))


async def _copy_one(
    host: Host, source: Source, to: Target, parts: Parts, tally: Tally, include: tuple[str, ...]
) -> None:
    if source.entry.kind is FileKind.FILE:
        await copy_file(source, to, parts, tally)
    elif isinstance(source, SessionSource):
        place = source.place
        request = TreeDownload(place.session_id, place.path, place.user, include)
        async with host.download_tree(request) as stream:
            if isinstance(to, LocalTarget):
                await unpack(stream, to.path, parts, tally)
            elif isinstance(to, SessionTarget):
                tally.add(await host.upload_tree(_upload(to, parts), stream))
        for path, why in stream.tally.skipped:
            tally.skipped.append((f"{place.session_id}:{place.below((path,))}", why))
        tally.skipped_count += stream.tally.skipped_count
    elif isinstance(source, LocalSource) and isinstance(to, SessionTarget):
        async with aclosing(packed(source.path, tally)) as pieces:
            await host.upload_tree(_upload(to, parts), pieces)


def _upload(to: SessionTarget, parts: Parts) -> TreeUpload:
    return TreeUpload(to.place.session_id, to.place.below(parts), to.place.user)


async def _open_source(host: Host, stack: ExitStack, source: Operand, user: str | None) -> Source:
    if source.is_standard:
        return StandardInput()
    if source.session_id is not None:
        return await _open_in_session(host, source, Place(source.session_id, source.path, user))
    found = LocalSource(source.path)
    await found.open()
    return found


async def _open_in_session(host: Host, source: Operand, place: Place) -> Source:
    found = SessionSource(host, place)
    try:
        await found.open()
    except SessionNotFound as error:
        if await asyncio.to_thread(os.path.lexists, str(source)):
            error.next_step = f"for the file here, write ./{source}"
        raise
    except FileNotFound:
        raise FileNotFound(
            f"{source}: there is no such file or directory",
            next_step=f"`sandlot exec {place.session_id} -- ls` shows what is there",
            path=place.path,
        ) from None
    return found


async def _open_target(
    host: Host, stack: ExitStack, target: Operand, entries: Sequence[Entry], user: str | None
) -> tuple[Target, list[Parts]]:
    if target.is_standard:
        if entries[0].kind is not FileKind.FILE:
            raise FileConflict("a directory does not go to stdout", next_step="name a directory to copy it into")
        return StandardOutput(), [()]
    path, names = plan(entries, target, await _kind_of(host, target, user))
    folder = Operand(path, target.session_id)
    if path != target.path:
        kind = await _kind_of(host, folder, user)
        if kind is None:
            raise _no_directory(folder)
        if kind is not FileKind.DIRECTORY:
            raise FileConflict(f"{folder}: is no directory", next_step="take another path", path=path)
    if target.session_id is not None:
        return SessionTarget(host, Place(target.session_id, path, user)), names
    found = LocalTarget(path)
    stack.callback(found.close)
    await found.open()
    return found, names


async def _kind_of(host: Host, what: Operand, user: str | None) -> FileKind | None:
    if what.session_id is None:
        return await asyncio.to_thread(local_side.kind_of, what.path)
    return await session_side.kind_of(host, Place(what.session_id, what.path, user))


# ---- telling -----------------------------------------------------------------------------------------------------


def _report(screen: Screen, tally: Tally) -> None:
    seconds = time.monotonic() - tally.began
    if screen.as_json:
        screen.json(
            {
                "files": tally.files,
                "directories": tally.directories,
                "links": tally.links,
                "bytes": tally.size_bytes,
                "seconds": round(seconds, 3),
                "skipped_count": tally.skipped_count,
                "skipped": [{"path": decoded(path), "reason": why} for path, why in tally.skipped],
            }
        )
        return
    _tell_skipped(screen, tally)
    screen.note(f"copied {_amount(tally)} in {seconds:.1f} s")


def _tell_of_the_rest(screen: Screen, tally: Tally, error: BaseException) -> None:
    if isinstance(error, FileNotFound | FileConflict) and not error.next_step:
        error.next_step = "take another path"
    if isinstance(error, SandlotError):
        # What was sent is not yet there; the host tells what is.
        tally.files = int(error.context.get("files_done", tally.files))
        tally.size_bytes = int(error.context.get("bytes_done", tally.size_bytes))
        error.context = {**error.context, "files_copied": tally.files, "bytes_copied": tally.size_bytes}
    if not screen.as_json and tally.files + tally.skipped_count:
        _tell_skipped(screen, tally)
        screen.note(f"it stopped after {_amount(tally)}; those are there")


def _tell_skipped(screen: Screen, tally: Tally) -> None:
    for path, why in tally.skipped[:_SKIPPED_SHOWN]:
        screen.note(f"left out {printable(path)}: {why}")
    if tally.skipped_count > _SKIPPED_SHOWN:
        screen.note(f"left out {tally.skipped_count:,} in all; --json tells more")


def _amount(tally: Tally) -> str:
    files = "1 file" if tally.files == 1 else f"{tally.files:,} files"
    size = f"{tally.size_bytes:,} bytes"
    return f"{files}, {size} ({size_text(tally.size_bytes)})" if tally.size_bytes >= 1024 else f"{files}, {size}"
