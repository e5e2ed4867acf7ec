"""Work at the files of a session without running a command in it.

`sandlot files ls ID src` lists, `sandlot files grep ID TODO src` searches, `sandlot files replace ID notes.txt old new`
edits. Paths are relative to the workspace, or absolute as the session sees them. `write` and `append` read stdin. To
bring files in and out, `sandlot cp` is there."""

import argparse
import base64
import dataclasses
import stat
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sandlot.cli.context import Context
from sandlot.cli.local_side import StandardInput
from sandlot.cli.screen import decoded, printable
from sandlot.cli.show import size_text
from sandlot.cli.stream import OwnStreams
from sandlot.contracts import Host
from sandlot.model import (
    ATTRIBUTE_PREFIX,
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileCopy,
    FileFind,
    FileInfo,
    FileKind,
    FileLines,
    FileList,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    InvalidArgument,
    LinkMake,
    Match,
    Stream,
    limits,
)

USAGE = "files WHAT ID [WORD...] [options]"
_LETTERS = {FileKind.DIRECTORY: stat.S_IFDIR, FileKind.SYMLINK: stat.S_IFLNK, FileKind.FILE: stat.S_IFREG}

Work = Callable[[Context, Host], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """What stands on the command line, without what is nobody's business here."""

    id: str
    words: Sequence[str]
    args: argparse.Namespace

    def path(self, at: int = 0) -> str:
        return self.words[at] if len(self.words) > at else "."

    @property
    def user(self) -> str | None:
        return self.args.user

    @property
    def mode(self) -> int | None:
        return None if self.args.mode is None else _mode(self.args.mode)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="WHAT", choices=tuple(_ACTIONS), help=", ".join(_ACTIONS))
    parser.add_argument("id", metavar="ID", help="the session's id")
    parser.add_argument("words", metavar="WORD", nargs="*", help="what it takes: paths, a pattern, texts")
    parser.add_argument("--user", metavar="NAME", help="with whose rights (default: the session's user)")
    parser.add_argument("-r", "--recursive", action="store_true", help="of cp, rm, chmod, chown: with all below")
    parser.add_argument("--mode", metavar="BITS", help="of write, append, mkdir: such as 644")
    parser.add_argument("--no-replace", action="store_true", help="of mv, cp: never over something")
    parser.add_argument("--depth", type=int, default=1, metavar="N", help="of ls: levels (default: 1)")
    parser.add_argument("--after", default="", metavar="PATH", help="of ls: the page behind this one")
    parser.add_argument("--limit", type=int, metavar="N", help="of ls, find, grep: at most so many")
    parser.add_argument("--lines", metavar="FIRST[:COUNT]", help="of cat: these lines alone, with their numbers")
    parser.add_argument("--kind", action="append", default=[], metavar="KIND", help="of find: file, directory, symlink")
    parser.add_argument("--hidden", action="store_true", help="of find, grep: also what begins with a dot")
    parser.add_argument("-i", "--ignore-case", action="store_true", help="of find, grep")
    parser.add_argument("-F", "--literal", action="store_true", help="of grep: the pattern is plain text")
    parser.add_argument("-C", "--context", type=int, default=0, metavar="N", help="of grep: lines on each side")
    parser.add_argument("--include", action="append", default=[], metavar="PATTERN", help="of grep: only such files")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="of grep: not such files")
    parser.add_argument("--all", action="store_true", help="of replace: everywhere, not in exactly one place")
    parser.add_argument("--remove", action="append", default=[], metavar="NAME", help="of xattr: this one goes")


async def run(context: Context) -> int:
    action = _ACTIONS[context.args.action]
    if not action.least <= len(context.args.words) <= action.most:
        raise InvalidArgument(
            f"{context.args.action} takes other words",
            next_step=f"usage: sandlot files {context.args.action} {action.usage}",
        )
    work = action.prepare(_Asked(context.args.id, context.args.words, context.args))
    async with context.host() as host:
        return await work(context, host)


# ---- reading ---------------------------------------------------------------------------------------------------------


def _ls(asked: _Asked) -> Work:
    args = asked.args
    request = FileList(asked.id, asked.path(), asked.user, args.depth, True, args.after, args.limit)

    async def work(context: Context, host: Host) -> int:
        async with host.list_files(request) as batches:
            return await _tell_files(context, batches)

    return work


def _find(asked: _Asked) -> Work:
    args = asked.args
    limit = limits.FIND_RESULTS if args.limit is None else args.limit
    kinds = tuple(_kind(kind) for kind in args.kind)
    request = FileFind(asked.id, asked.path(1), asked.user, asked.words[0], kinds, args.hidden, args.ignore_case, limit)

    async def work(context: Context, host: Host) -> int:
        async with host.find_files(request) as stream:
            code = await _tell_files(context, aiter(stream), names_alone=True)
            _tell_cut(context, is_cut=stream.tally.is_cut)
            return code

    return work


async def _tell_files(
    context: Context, batches: AsyncIterator[Sequence[FileInfo]], *, names_alone: bool = False
) -> int:
    found: list[FileInfo] = []
    async for batch in batches:
        if context.screen.as_json:
            found += batch
            continue
        for info in batch:
            context.screen.line(printable(info.path) if names_alone else _row(info))
    if context.screen.as_json:
        context.screen.json({"files": [_document(info) for info in found]})
    return 0


def _grep(asked: _Asked) -> Work:
    args = asked.args
    request = FileSearch(
        asked.id,
        asked.path(1),
        asked.user,
        asked.words[0],
        args.literal,
        args.ignore_case,
        tuple(args.include),
        tuple(args.exclude),
        args.hidden,
        args.context,
        limits.SEARCH_RESULTS if args.limit is None else args.limit,
    )

    async def work(context: Context, host: Host) -> int:
        found: list[Match] = []
        async with host.search_files(request) as stream:
            async for batch in stream:
                for match in batch:
                    if context.screen.as_json:
                        found.append(match)
                    else:
                        _tell_match(context, match)
            tally = stream.tally
        if context.screen.as_json:
            documents = [{**dataclasses.asdict(match), "path": decoded(match.path)} for match in found]
            context.screen.json({"matches": documents, "tally": dataclasses.asdict(tally)})
        else:
            _tell_cut(context, is_cut=tally.is_cut)
        return 0 if tally.found else 1

    return work


def _tell_match(context: Context, match: Match) -> None:
    path = printable(match.path)
    first = match.line - len(match.before)
    for number, text in enumerate(match.before, first):
        context.screen.line(f"{path}-{number}- {printable(text)}")
    context.screen.line(f"{path}:{match.line}: {printable(match.text)}{'…' if match.is_cut else ''}")
    for number, text in enumerate(match.after, match.line + 1):
        context.screen.line(f"{path}-{number}- {printable(text)}")


def _tell_cut(context: Context, *, is_cut: bool) -> None:
    if is_cut and not context.screen.as_json:
        context.screen.note("there is more; --limit says how much is told")


def _cat(asked: _Asked) -> Work:
    path = asked.words[0]
    if asked.args.lines is not None:
        return _lines(FileLines(asked.id, path, asked.user, *_lines_asked(asked.args.lines)))
    request = FileRead(asked.id, path, asked.user)

    async def work(context: Context, host: Host) -> int:
        async with host.read_file(request) as stream:
            if context.screen.as_json:
                if stream.info.size_bytes > limits.FILE_READ_BYTES_MAX:
                    raise InvalidArgument("it is too large for one document", next_step="leave --json out")
                content = b"".join([piece async for piece in stream])
                context.screen.json({"file": _document(stream.info), "base64": base64.b64encode(content).decode()})
                return 0
            streams = OwnStreams()
            async for piece in stream:
                await streams.write(Stream.STDOUT, piece)
        return 0

    return work


def _lines(request: FileLines) -> Work:
    async def work(context: Context, host: Host) -> int:
        documents: list[dict[str, object]] = []
        async with host.read_lines(request) as stream:
            async for batch in stream:
                for line in batch:
                    if context.screen.as_json:
                        documents.append({**dataclasses.asdict(line), "text": decoded(line.text)})
                    else:
                        context.screen.line(f"{line.number:>6}  {printable(line.text)}{'…' if line.is_cut else ''}")
        if context.screen.as_json:
            context.screen.json({"lines": documents})
        return 0

    return work


def _stat(asked: _Asked) -> Work:
    request = FileStat(asked.id, asked.path(), asked.user, follow=False)
    return _told(lambda host: host.stat_file(request))


def _du(asked: _Asked) -> Work:
    request = FileUsage(asked.id, asked.path(), asked.user)

    async def work(context: Context, host: Host) -> int:
        found = await host.measure_files(request)
        if context.screen.as_json:
            context.screen.json(dataclasses.asdict(found))
        else:
            disk, size = size_text(found.allocated_bytes), size_text(found.size_bytes)
            context.screen.line(
                f"{disk} on disk, {size} in {found.files:,} files and {found.directories:,} directories"
            )
        return 0

    return work


def _watch(asked: _Asked) -> Work:
    request = FileWatch(asked.id, asked.path(), asked.user)

    async def work(context: Context, host: Host) -> int:
        async with host.watch_files(request) as batches:
            async for batch in batches:
                for event in batch:
                    if context.screen.as_json:
                        paths = {"path": decoded(event.path), "old_path": decoded(event.old_path)}
                        context.screen.json({**dataclasses.asdict(event), **paths})
                    else:
                        old = f"{printable(event.old_path)} -> " if event.old_path else ""
                        context.screen.line(f"{event.kind:<10} {old}{printable(event.path)}")
        return 0

    return work


# ---- changing --------------------------------------------------------------------------------------------------------


def _write(asked: _Asked) -> Work:
    request = FileWrite(asked.id, asked.words[0], asked.user, asked.mode)
    return _told(lambda host: host.write_file(request, StandardInput()))


def _append(asked: _Asked) -> Work:
    request = FileAppend(asked.id, asked.words[0], asked.user, 0o644 if asked.mode is None else asked.mode)
    return _told(lambda host: host.append_file(request, StandardInput()))


def _mkdir(asked: _Asked) -> Work:
    request = DirectoryMake(asked.id, asked.words[0], asked.user, 0o755 if asked.mode is None else asked.mode)

    async def work(context: Context, host: Host) -> int:
        made = await host.make_directory(request)
        if context.screen.as_json:
            context.screen.json({"made": made})
        return 0

    return work


def _mv(asked: _Asked) -> Work:
    request = FileRename(asked.id, asked.words[0], asked.user, asked.words[1], not asked.args.no_replace)
    return _told(lambda host: host.rename_file(request))


def _cp(asked: _Asked) -> Work:
    args = asked.args
    request = FileCopy(asked.id, asked.words[0], asked.user, asked.words[1], args.recursive, not args.no_replace)

    async def work(context: Context, host: Host) -> int:
        tally = await host.copy_file(request)
        if context.screen.as_json:
            context.screen.json(dataclasses.asdict(tally))
        elif tally.skipped_count:
            context.screen.note(f"left out: {tally.skipped_count:,}, such as {printable(tally.skipped[0][0])}")
        return 0

    return work


def _rm(asked: _Asked) -> Work:
    requests = [FileRemove(asked.id, path, asked.user, asked.args.recursive) for path in asked.words]

    async def work(context: Context, host: Host) -> int:
        for request in requests:
            await host.remove_file(request)
        if context.screen.as_json:
            context.screen.json({"removed": [decoded(path) for path in asked.words]})
        return 0

    return work


def _chmod(asked: _Asked) -> Work:
    mode, path = _mode(asked.words[0]), asked.words[1]
    request = FileChange(asked.id, path, asked.user, mode, recursive=asked.args.recursive)
    return _told(lambda host: host.change_file(request))


def _chown(asked: _Asked) -> Work:
    owner, _colon, group = asked.words[0].partition(":")
    request = FileChange(asked.id, asked.words[1], asked.user, None, owner or None, group or None, asked.args.recursive)
    return _told(lambda host: host.change_file(request))


def _ln(asked: _Asked) -> Work:
    request = LinkMake(asked.id, asked.words[1], asked.user, asked.words[0])
    return _told(lambda host: host.make_link(request))


def _replace(asked: _Asked) -> Work:
    path, old, new = asked.words
    request = FileReplace(asked.id, path, asked.user, old, new, asked.args.all)

    async def work(context: Context, host: Host) -> int:
        count = await host.replace_in_file(request)
        if context.screen.as_json:
            context.screen.json({"count": count})
        else:
            context.screen.line(f"replaced {count}")
        return 0

    return work


def _xattr(asked: _Asked) -> Work:
    path, given = asked.words[0], asked.words[1:]
    values: dict[str, bytes | None] = {_attribute(name): None for name in asked.args.remove}
    for word in given:
        name, sign, value = word.partition("=")
        if not sign:
            raise InvalidArgument(f"{word!r} has no value", next_step="give NAME=VALUE, or --remove NAME")
        values[_attribute(name)] = value.encode("utf-8", "surrogateescape")
    setting = AttributesSet(asked.id, path, asked.user, values)

    async def work(context: Context, host: Host) -> int:
        getting = AttributesGet(asked.id, path, asked.user)
        found: Mapping[str, bytes] = await (host.set_attributes(setting) if values else host.get_attributes(getting))
        if context.screen.as_json:
            encoded = {decoded(name): base64.b64encode(value).decode() for name, value in found.items()}
            context.screen.json({"base64": encoded})
        else:
            for name, value in found.items():
                context.screen.line(f"{printable(name)}={printable(value.decode('utf-8', 'surrogateescape'))}")
        return 0

    return work


# ---- words and forms -------------------------------------------------------------------------------------------------


def _told(verb: Callable[[Host], Awaitable[FileInfo]]) -> Work:
    """A verb whose answer is a file."""

    async def work(context: Context, host: Host) -> int:
        info = await verb(host)
        if context.screen.as_json:
            context.screen.json(_document(info))
        else:
            context.screen.line(_row(info))
        return 0

    return work


def _row(info: FileInfo) -> str:
    bits = stat.filemode(_LETTERS.get(info.kind, 0) | info.mode)
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.modified))
    target = f" -> {printable(info.target)}" if info.kind is FileKind.SYMLINK else ""
    owner = f"{printable(info.owner)} {printable(info.group)}"
    return f"{bits} {owner} {info.size_bytes:>10} {when} {printable(info.path)}{target}"


def _document(info: FileInfo) -> dict[str, object]:
    return {**dataclasses.asdict(info), "path": decoded(info.path), "target": decoded(info.target)}


def _mode(text: str) -> int:
    try:
        return int(text, 8)
    except ValueError:
        raise InvalidArgument(f"{text!r} is no mode", next_step="give one such as 644") from None


def _kind(text: str) -> FileKind:
    try:
        return FileKind(text)
    except ValueError:
        raise InvalidArgument(f"{text!r} is no kind", next_step=f"use one of: {', '.join(FileKind)}") from None


def _lines_asked(text: str) -> tuple[int, int | None]:
    first, colon, count = text.partition(":")
    if not first.isdecimal() or (colon and not count.isdecimal()):
        raise InvalidArgument(f"--lines: {text!r} is no range of lines", next_step="give one such as 10:20")
    return int(first), int(count) if colon else None


def _attribute(name: str) -> str:
    return name if name.startswith(ATTRIBUTE_PREFIX) else ATTRIBUTE_PREFIX + name


@dataclass(frozen=True, slots=True)
class _Action:
    prepare: Callable[[_Asked], Work]
    least: int
    most: int
    usage: str


_MANY = 10_000
_ACTIONS: Mapping[str, _Action] = {
    "ls": _Action(_ls, 0, 1, "ID [PATH] [--depth N] [--limit N] [--after PATH]"),
    "cat": _Action(_cat, 1, 1, "ID PATH [--lines FIRST[:COUNT]]"),
    "watch": _Action(_watch, 0, 1, "ID [PATH], until it is interrupted"),
    "write": _Action(_write, 1, 1, "ID PATH <content"),
    "append": _Action(_append, 1, 1, "ID PATH <content"),
    "stat": _Action(_stat, 1, 1, "ID PATH"),
    "mkdir": _Action(_mkdir, 1, 1, "ID PATH [--mode BITS]"),
    "mv": _Action(_mv, 2, 2, "ID PATH NEW [--no-replace]"),
    "cp": _Action(_cp, 2, 2, "ID PATH NEW [-r] [--no-replace]"),
    "rm": _Action(_rm, 1, _MANY, "ID PATH... [-r]"),
    "chmod": _Action(_chmod, 2, 2, "ID BITS PATH [-r]"),
    "chown": _Action(_chown, 2, 2, "ID OWNER[:GROUP] PATH [-r]"),
    "ln": _Action(_ln, 2, 2, "ID TARGET PATH"),
    "find": _Action(_find, 1, 2, "ID PATTERN [PATH]"),
    "grep": _Action(_grep, 1, 2, "ID PATTERN [PATH]"),
    "replace": _Action(_replace, 3, 3, "ID PATH OLD NEW [--all]"),
    "xattr": _Action(_xattr, 1, _MANY, "ID PATH [NAME=VALUE...] [--remove NAME]"),
    "du": _Action(_du, 0, 1, "ID [PATH]"),
}
