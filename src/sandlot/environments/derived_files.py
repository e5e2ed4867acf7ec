"""The files that tools need, of a sandbox that can run a program, take a file and give one."""

import asyncio
import posixpath
import secrets
import stat
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from sandlot.contracts import VendorCommand, VendorHands
from sandlot.environments import derived_scripts as scripts
from sandlot.environments.searching import Finding, Found, Searching, lines_of
from sandlot.model import (
    CapabilityNotSupported,
    FileConflict,
    FileFind,
    FileInfo,
    FileKind,
    FileList,
    FileNotFound,
    FileRead,
    FileRequest,
    FileSearch,
    FileStat,
    FileWrite,
    InvalidArgument,
    LimitReached,
    Match,
    Member,
    MemberKind,
    PermissionDenied,
    SandlotError,
    Stream,
    TarReader,
    ToolProblem,
    Unavailable,
    limits,
)

_SCRIPT_S = 60.0
_SCRIPT_BYTES_MAX = 64 * limits.MIB  # of what a script tells
_COMPLAINT_BYTES = 4 * limits.KIB
_NAMES_BYTES, _NAMES = 24 * limits.KIB, 300  # of one command; quoting may make several times as much of it
_ARCHIVE_BYTES = 8 * limits.MIB  # of files that are fetched together
_HELD_BYTES = limits.FILE_READ_BYTES_MAX
_MISSING_PROGRAM, _CANNOT_RUN = 127, 126
_KINDS = {stat.S_IFREG: FileKind.FILE, stat.S_IFDIR: FileKind.DIRECTORY, stat.S_IFLNK: FileKind.SYMLINK}
_COMPLAINTS: tuple[tuple[str, type[SandlotError]], ...] = (
    ("No space left", LimitReached),
    ("quota exceeded", LimitReached),
    ("Permission denied", PermissionDenied),
    ("not permitted", PermissionDenied),
    ("Read-only file system", PermissionDenied),
    ("Not a directory", FileConflict),
    ("Is a directory", FileConflict),
    ("File exists", FileConflict),
    ("too long", InvalidArgument),
    ("No such file", FileNotFound),
)


@dataclass(frozen=True, slots=True)
class _Reading:
    info: FileInfo
    content: bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.content:
            yield self.content


@dataclass(frozen=True, slots=True)
class _Answer:
    code: int
    text: str
    complaint: str


class DerivedFiles:
    """Paths are looked up over there: inside of a vendor's sandbox there is nothing to protect, and the sandbox is the
    wall."""

    def __init__(self, hands: VendorHands, session_id: str, workspace: str, who: str) -> None:
        self._hands = hands
        self._session_id = session_id
        self._workspace = workspace
        self._who = who

    # ---- one file ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def read_file(self, request: FileRead) -> AsyncGenerator[_Reading]:
        info, real = await self._look(request, follow=True)
        if info.kind is not FileKind.FILE:
            raise FileConflict(f"{info.path} is no file but a {info.kind}", next_step="name a file")
        end = None if request.length is None else request.offset + request.length
        content = (await self._fetch(real, _HELD_BYTES + 1 if end is None else end))[request.offset :]
        if len(content) > _HELD_BYTES:
            raise LimitReached(f"{request.path}: more than {_HELD_BYTES} bytes at once", limit="file_read_bytes")
        # It may have grown meanwhile, or stand in a filesystem that does not tell how large files are.
        yield _Reading(replace(info, size_bytes=max(info.size_bytes, request.offset + len(content))), content)

    async def stat_file(self, request: FileStat) -> FileInfo:
        return (await self._look(request, follow=request.follow))[0]

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo:
        path, mark = self._path(request), _mark()
        answer = await self._ask(scripts.PREPARE, path, "1" if request.parents else "0", mark)
        said, real = _told(self._good(answer, request.path), mark)
        old_mode, owner = said.split(" ", 1)
        mode = f"{request.mode:o}" if request.mode is not None else "644" if old_mode == "-" else old_mode
        new = posixpath.join(posixpath.dirname(real), f".sandlot-{mark}")
        try:
            await self._hands.upload(self._session_id, new, content)
            self._good(await self._ask(scripts.FINISH, new, real, mode, owner), request.path)
        except BaseException:  # whatever it was: what is half written does not stay
            await self._remove(new)
            raise
        return (await self._look(request, follow=True))[0]

    async def _look(self, request: FileRequest, *, follow: bool) -> tuple[FileInfo, str]:
        path, mark = self._path(request), _mark()
        answer = await self._ask(scripts.STAT, path, "1" if follow else "0", mark)
        said, real = _told(self._good(answer, request.path), mark)
        return _info(said, posixpath.normpath(path)), real

    def _path(self, request: FileRequest) -> str:
        if request.user is not None:
            raise CapabilityNotSupported(
                f"files of {self._who} are touched as one user", next_step="leave the user out", capability="users"
            )
        return posixpath.join(self._workspace, request.path)

    async def _fetch(self, path: str, most: int) -> bytes:
        """Of a file, at most so many bytes."""
        found = bytearray()
        if most > 0:
            async with self._hands.download(self._session_id, path) as pieces:
                async for piece in pieces:
                    found += piece
                    if len(found) >= most:
                        break
        return bytes(found[:most])

    async def _remove(self, path: str) -> None:
        """Also while it is cancelled, and never for long."""
        removing = asyncio.ensure_future(self._ask(scripts.REMOVE, path))
        removing.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may wait any more
        with suppress(SandlotError, TimeoutError):
            async with asyncio.timeout(limits.KILL_DEADLINE_S):
                await asyncio.shield(removing)

    # ---- many files --------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def list_files(self, request: FileList) -> AsyncGenerator[AsyncIterator[Sequence[FileInfo]]]:
        path = self._path(request)
        entries = await self._entries(request, path, request.depth, hidden=True)
        links = [name for name, info in entries if info.kind is FileKind.SYMLINK]
        targets = dict(zip(links, await self._targets(path, links), strict=False))
        yield _one([replace(info, target=targets.get(name, "")) for name, info in entries])

    @asynccontextmanager
    async def find_files(self, request: FileFind) -> AsyncGenerator[Found[FileInfo]]:
        finding = Finding(request)
        for name, info in await self._entries(request, self._path(request), hidden=finding.hidden):
            if not finding.take(name, info):
                break
        yield Found(finding.tally, finding.found)

    @asynccontextmanager
    async def search_files(self, request: FileSearch) -> AsyncGenerator[Found[Match]]:
        searching = Searching(request)
        info, real = await self._look(request, follow=True)
        if info.kind is FileKind.FILE:
            searching.tally.entries += 1
            content = await self._fetch(real, _HELD_BYTES)
            await asyncio.to_thread(searching.take, info.path, lines_of([content]))
        else:
            entries = await self._entries(request, self._path(request), hidden=request.hidden)
            for batch in _batches(_wanted(searching, entries)):
                await self._search(searching, real, info.path, batch)
                if searching.is_enough:
                    break
        yield Found(searching.tally, searching.found)

    async def _entries(
        self, request: FileRequest, path: str, depth: int = limits.FILE_DEPTH_MAX, *, hidden: bool
    ) -> list[tuple[str, FileInfo]]:
        """In order, with their paths from there on."""
        mark = _mark()
        answer = await self._ask(scripts.LIST, path, str(depth), "1" if hidden else "0", mark)
        if not answer.text:  # what may not be entered is complained of, and the rest is told
            self._good(answer, request.path)
        top, found = posixpath.normpath(path), list[tuple[str, FileInfo]]()
        for record in answer.text.split(f"{mark}\n")[:-1]:
            *said, name = record.split(" ", 5)
            if name.startswith("./"):
                found.append((name[2:], _info(" ".join(said), posixpath.join(top, name[2:]))))
        return sorted(found, key=lambda entry: entry[0].encode("utf-8", "surrogateescape").split(b"/"))

    async def _targets(self, path: str, links: Sequence[str]) -> list[str]:
        found: list[str] = []
        for names in _portions(links):
            mark = _mark()
            answer = await self._ask(scripts.TARGETS, path, mark, *(f"./{name}" for name in names))
            told = answer.text.split(f"{mark}\n")[:-1]
            found += [target.removesuffix("\n") for target in told] or [""] * len(names)
        return found

    async def _search(self, searching: Searching, top: str, shown: str, batch: dict[str, int]) -> None:
        names = await self._with_text(searching.needle, top, list(batch))
        if sum(batch[name] for name in names) > _ARCHIVE_BYTES:  # one that is large by itself
            contents = {name: await self._fetch(posixpath.join(top, name), _HELD_BYTES) for name in names}
        else:
            contents = await self._fetch_all(top, names)
        searching.tally.unreadable += sum(name not in contents for name in names)

        def take() -> None:
            for name in names:
                if name in contents and not searching.is_enough:
                    searching.take(posixpath.join(shown, name), lines_of([contents[name]]))

        await asyncio.to_thread(take)

    async def _with_text(self, needle: bytes, top: str, names: list[str]) -> list[str]:
        """Those that may have a line that fits; all of them where that cannot be found out."""
        plain = [name for name in names if "\n" not in name]
        if not needle or b"\n" in needle or b"\r" in needle or not plain:
            return names
        text = needle.decode("utf-8", "surrogateescape")
        answer = await self._ask(scripts.WITH_TEXT, top, text, *(f"./{name}" for name in plain))
        if answer.code not in (0, 1):
            return names
        found = {line.removeprefix("./") for line in answer.text.split("\n")}
        return [name for name in names if "\n" in name or name in found]

    async def _fetch_all(self, top: str, names: Sequence[str]) -> dict[str, bytes]:
        """Together, as an archive; one by one where there is no `tar`."""
        if not names:
            return {}
        archive = f"/tmp/.sandlot-{_mark()}.tar"
        try:
            answer = await self._ask(scripts.PACK, top, archive, *(f"./{name}" for name in names))
            if answer.code != _MISSING_PROGRAM:
                with suppress(FileNotFound):
                    packed = await self._fetch(archive, 2 * _ARCHIVE_BYTES)
                    return await asyncio.to_thread(_unpack, packed, frozenset(names))
        finally:
            await self._remove(archive)
        found: dict[str, bytes] = {}
        for name in names:
            with suppress(FileNotFound, PermissionDenied):
                found[name] = await self._fetch(posixpath.join(top, name), _ARCHIVE_BYTES)
        return found

    # ---- scripts -----------------------------------------------------------------------------------------------

    async def _ask(self, script: str, *arguments: str) -> _Answer:
        said = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}

        async def hear(stream: Stream, data: bytes) -> None:
            said[stream] += data
            if len(said[Stream.STDOUT]) > _SCRIPT_BYTES_MAX:
                raise LimitReached("there are too many files to tell", next_step="name a directory with fewer")
            del said[Stream.STDERR][_COMPLAINT_BYTES:]

        command = VendorCommand(("/bin/sh", "-c", script, "sh", *arguments), "/", timeout_s=_SCRIPT_S)
        code = await self._hands.execute(self._session_id, command, hear)
        out, err = (bytes(said[stream]).decode("utf-8", "surrogateescape") for stream in Stream)
        return _Answer(code, out, err.strip())

    def _good(self, answer: _Answer, path: str) -> str:
        """What it told. Raises what it complained of."""
        match answer.code:
            case 0:
                return answer.text
            case scripts.NO_FILE:
                raise FileNotFound(f"{path} is not there", next_step="list the directory above it")
            case scripts.DIRECTORY:
                raise FileConflict(f"{path} is a directory", next_step="name a file")
            case scripts.OTHER_KIND:
                raise FileConflict(f"{path} is of another kind", next_step="look what is there")
            case scripts.REFUSED:
                raise PermissionDenied(f"{path} may not be touched")
            case scripts.OF_THE_KERNEL:
                raise FileNotFound(f"{path} is the kernel's own", next_step="look at it with bash")
            case _:
                pass
        complaint = answer.complaint.encode("utf-8", "surrogateescape").decode(errors="replace")
        if answer.code in (_MISSING_PROGRAM, _CANNOT_RUN):
            raise ToolProblem(f"{self._who} lacks a program that this tool needs: {complaint}")
        for words, kind in _COMPLAINTS:
            if words in complaint:
                raise kind(f"{path}: {complaint}")
        raise Unavailable(f"{self._who} did not say what it was asked: exit code {answer.code}: {complaint}")


def _mark() -> str:
    return secrets.token_hex(12)


def _told(text: str, mark: str) -> tuple[str, str]:
    said, newline, rest = text.partition("\n")
    if not newline or not rest.endswith(f"{mark}\n"):
        raise Unavailable("the sandbox told something that cannot be", next_step="look what its shell is")
    return said, rest.removesuffix(f"{mark}\n")


def _info(said: str, path: str) -> FileInfo:
    try:
        mode, size, uid, gid, modified = said.split()
        bits = int(mode, 16)
        numbers = [int(number) for number in (size, uid, gid, modified)]
    except ValueError:
        raise Unavailable("the sandbox told something that cannot be", next_step="look what its `stat` is") from None
    kind = _KINDS.get(stat.S_IFMT(bits), FileKind.OTHER)
    return FileInfo(path, kind, numbers[0], stat.S_IMODE(bits), numbers[1], numbers[2], float(numbers[3]))


def _wanted(searching: Searching, entries: Sequence[tuple[str, FileInfo]]) -> Iterator[tuple[str, int]]:
    """Files that are searched, with their sizes."""
    closed: str | None = None
    for name, info in entries:
        if closed is not None and name.startswith(closed):
            continue
        if info.kind is FileKind.DIRECTORY:
            if not searching.enters(name):
                closed = f"{name}/"
        elif info.kind is FileKind.FILE and searching.wants(name):
            yield name, info.size_bytes


def _batches(files: Iterator[tuple[str, int]]) -> Iterator[dict[str, int]]:
    """As many as go into one command and one archive."""
    batch: dict[str, int] = {}
    for name, size in files:
        full = len(batch) >= _NAMES or sum(map(len, batch)) + len(name) > _NAMES_BYTES
        if batch and (full or sum(batch.values()) + size > _ARCHIVE_BYTES):
            yield batch
            batch = {}
        batch[name] = size
    if batch:
        yield batch


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    yield from (list(batch) for batch in _batches(iter([(name, 0) for name in names])))


def _unpack(packed: bytes, names: frozenset[str]) -> dict[str, bytes]:
    """Nothing in it is believed: plain files that were asked for, in memory, as far as they are there."""
    found: dict[str, bytes] = {}
    name, content, left = "", bytearray(), 0
    with suppress(InvalidArgument, LimitReached):
        for item in TarReader().feed(packed):
            if isinstance(item, Member):
                name, content, left = item.path, bytearray(), item.size_bytes
                if item.kind is MemberKind.HARD_LINK and name in names and item.target in found:
                    found[name] = found[item.target]
                if item.kind is not MemberKind.FILE:
                    continue
            else:
                content += item
                left -= len(item)
            if not left and name in names:
                found[name] = bytes(content)
    return found


async def _one(found: Sequence[FileInfo]) -> AsyncIterator[Sequence[FileInfo]]:
    if found:
        yield found
