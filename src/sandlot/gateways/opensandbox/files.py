"""ExecD's files: each verb is one of the waist, as the sandbox's user or as another one who is named in the path."""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from urllib.parse import quote

from sandlot.contracts import Host
from sandlot.gateways.multipart import Part, boundary_of, read_parts
from sandlot.gateways.opensandbox import translate
from sandlot.gateways.opensandbox.schema import Reader, Refused
from sandlot.gateways.web import Answer, Request, read_json
from sandlot.model import (
    DirectoryMake,
    FileChange,
    FileConflict,
    FileFind,
    FileInfo,
    FileKind,
    FileLines,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileReplace,
    FileStat,
    FileWrite,
    InvalidArgument,
    limits,
)

METADATA_BYTES_MAX: Final = 64 << 10
PATHS_MAX: Final = 1000
HOME: Final = "/root"
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})(?:,.*)?", re.ASCII)


class Files:
    def __init__(self, host: Host, user: str) -> None:
        self._host = host
        self._user = user

    def _who(self, request: Request) -> str:
        if "uid" not in request.values:
            return self._user
        ids = (request.values["uid"], request.values["gid"])
        if not all(one.isascii() and one.isdecimal() and len(one) < 11 for one in ids):
            raise Refused("INVALID_REQUEST_BODY", "uid and gid must be numbers")
        return ":".join(ids)

    def _paths(self, request: Request) -> list[str]:
        paths = request.all("path")
        if not paths:
            raise Refused("MISSING_QUERY", "path is missing")
        if len(paths) > PATHS_MAX:
            raise Refused("INVALID_REQUEST_BODY", f"more than {PATHS_MAX} paths")
        return [where(path) for path in paths]

    async def _stat(self, request: Request, path: str) -> FileInfo:
        return await self._host.stat_file(FileStat(request.values["id"], path, self._who(request), follow=False))

    async def info(self, request: Request) -> Answer:
        asked = request.all("path")
        found = [await self._stat(request, path) for path in self._paths(request)]
        told = {name: translate.file_info(info) for name, info in zip(asked, found, strict=True)}
        return Answer.json(told)

    async def upload(self, request: Request) -> Answer:
        boundary = boundary_of(request.headers.get("content-type", ""))
        about: Reader | None = None
        written = 0
        async for part in read_parts(request.stream(), boundary):
            if part.name == "metadata":
                about = Reader(read_json(await _small(part)), "metadata")
            elif part.name == "file":
                if about is None:
                    raise Refused("INVALID_FILE_METADATA", "a file without metadata before it")
                await self._write(request, about, part)
                about, written = None, written + 1
        if about is not None or not written:
            raise Refused("INVALID_FILE", "metadata without a file behind it, or nothing at all")
        return Answer()

    async def _write(self, request: Request, about: Reader, part: Part) -> None:
        path = about.text("path")
        if not path:
            raise Refused("INVALID_FILE_METADATA", "metadata.path is empty")
        mode = mode_of(about)
        write = FileWrite(request.values["id"], where(path), self._who(request), mode=mode)
        info = await self._host.write_file(write, part.content)
        owner, group = about.text("owner"), about.text("group")
        if owner or group:
            change = FileChange(request.values["id"], info.path, "root", owner=owner or None, group=group or None)
            await self._host.change_file(change)

    async def download(self, request: Request) -> Answer:
        (path,) = self._paths(request)[:1]
        ranged = request.headers.get("range", "")
        offset, count = request.one("offset"), request.one("limit")
        if ranged and (offset or count):
            raise Refused("INVALID_REQUEST_BODY", "a range of bytes and lines cannot be had at once")
        if offset or count:
            return await self._lines(request, path, offset, count)
        info = await self._host.stat_file(FileStat(request.values["id"], path, self._who(request)))
        if info.kind is not FileKind.FILE:
            raise Refused("RUNTIME_ERROR", f"{path[:200]} is no file", status=500)
        begin, length = _range(ranged, info.size_bytes) if ranged else (0, info.size_bytes)
        stack = AsyncExitStack()
        read = FileRead(request.values["id"], path, self._who(request), begin, length)
        stream = await stack.enter_async_context(self._host.read_file(read))
        name = quote(info.path.rpartition("/")[2], safe="", errors="replace")
        headers = {
            "content-type": "application/octet-stream",
            "content-disposition": f"attachment; filename*=UTF-8''{name}",
            "content-length": str(length),
            "accept-ranges": "bytes",
        }
        if ranged:
            headers["content-range"] = f"bytes {begin}-{begin + length - 1}/{info.size_bytes}"
        return Answer(206 if ranged else 200, _closing(stack, aiter(stream)), headers)

    async def _lines(self, request: Request, path: str, offset: str, count: str) -> Answer:
        first, most = _number("offset", offset or "1"), _number("limit", count) if count else None
        asked = FileLines(
            request.values["id"],
            path,
            self._who(request),
            first=max(1, first),
            count=most,
            line_bytes=limits.LINE_BYTES_MAX,
        )
        found: list[str] = []
        size = 0
        async with self._host.read_lines(asked) as stream:
            async for batch in stream:
                found += [line.text for line in batch]
                size += sum(len(line.text) for line in batch)
                if size > limits.FILE_READ_BYTES_MAX:
                    raise Refused("RUNTIME_ERROR", "these lines are too many: ask for less", status=500)
        body = "\n".join(found).encode("utf-8", "surrogateescape")
        return Answer(200, body, {"content-type": "text/plain; charset=utf-8"})

    async def search(self, request: Request) -> Answer:
        """Their pattern is for the name alone."""
        (path,) = self._paths(request)[:1]
        pattern = request.one("pattern") or "**"
        if pattern != "**" and "/" not in pattern:
            pattern = f"**/{pattern}"
        find = FileFind(
            request.values["id"],
            path,
            self._who(request),
            pattern=pattern,
            kinds=(FileKind.FILE, FileKind.SYMLINK),
            hidden=True,
            limit=limits.FILES_LISTED_MAX,
        )
        found: list[dict[str, Any]] = []
        async with self._host.find_files(find) as stream:
            async for batch in stream:
                found += map(translate.file_info, batch)
        return Answer.json(found)

    async def replace(self, request: Request) -> Answer:
        body = Reader(await request.document())
        told: dict[str, dict[str, int]] = {}
        for name in sorted(body.names()):
            change = body.inner(name)
            if change is None or not change.text("old"):
                raise Refused("INVALID_REQUEST_BODY", f"{name[:200]}: old is empty")
            asked = FileReplace(
                request.values["id"],
                where(name),
                self._who(request),
                old=change.text("old"),
                new=change.text("new"),
                all=True,
            )
            try:
                count = await self._host.replace_in_file(asked)
            except FileConflict:
                await self._stat(request, where(name))
                count = 0  # it is not in it
            told[name] = {"replacedCount": count}
        return Answer.json(told) if request.one("verbose") == "true" else Answer()

    async def move(self, request: Request) -> Answer:
        items = await request.document()
        for item in Reader({"moves": items}).items("moves"):
            source, target = item.text("src"), item.text("dest")
            if not source or not target:
                raise Refused("INVALID_REQUEST_BODY", "every move has a src and a dest")
            await self._above(request, where(target))
            rename = FileRename(
                request.values["id"], where(source), self._who(request), to=where(target), overwrite=False
            )
            try:
                await self._host.rename_file(rename)
            except FileConflict as error:
                raise Refused("RUNTIME_ERROR", str(error), status=500) from error
        return Answer()

    async def _above(self, request: Request, path: str) -> None:
        above = path.rstrip("/").rpartition("/")[0]
        if above:
            await self._host.make_directory(DirectoryMake(request.values["id"], above, self._who(request)))

    async def permissions(self, request: Request) -> Answer:
        body = Reader(await request.document())
        for name in sorted(body.names()):
            wanted = body.inner(name) or Reader({})
            mode, owner, group = mode_of(wanted), wanted.text("owner") or None, wanted.text("group") or None
            if (mode, owner, group) != (None, None, None):
                who = self._who(request)
                await self._host.change_file(FileChange(request.values["id"], where(name), who, mode, owner, group))
        return Answer()

    async def remove(self, request: Request) -> Answer:
        for path in self._paths(request):
            with suppress(FileNotFound):
                info = await self._stat(request, path)
                if info.kind is FileKind.DIRECTORY:
                    raise Refused("RUNTIME_ERROR", f"{path[:200]} is a directory", status=500)
                await self._host.remove_file(FileRemove(request.values["id"], path, self._who(request)))
        return Answer()

    async def list_directory(self, request: Request) -> Answer:
        (path,) = self._paths(request)[:1]
        depth = _number("depth", request.one("depth", "1"))
        if (await self._stat(request, path)).kind is not FileKind.DIRECTORY:
            raise Refused("INVALID_REQUEST_BODY", f"{path[:200]} is no directory")
        asked = FileList(
            request.values["id"],
            path,
            self._who(request),
            depth=max(1, depth),
            ordered=True,
            limit=limits.FILES_LISTED_MAX,
        )
        found: list[dict[str, Any]] = []
        async with self._host.list_files(asked) as batches:
            async for batch in batches:
                found += map(translate.file_info, batch)
        return Answer.json(found)

    async def make_directories(self, request: Request) -> Answer:
        body = Reader(await request.document())
        for name in sorted(body.names()):
            wanted = body.inner(name) or Reader({})
            mode = mode_of(wanted)
            who = self._who(request)
            is_new = await self._host.make_directory(DirectoryMake(request.values["id"], where(name), who))
            owner, group = wanted.text("owner") or None, wanted.text("group") or None
            if is_new and (mode, owner, group) != (None, None, None):
                await self._host.change_file(FileChange(request.values["id"], where(name), who, mode, owner, group))
        return Answer()

    async def remove_directories(self, request: Request) -> Answer:
        for path in self._paths(request):
            with suppress(FileNotFound):
                remove = FileRemove(request.values["id"], path, self._who(request), recursive=True)
                await self._host.remove_file(remove)
        return Answer()


def where(path: str) -> str:
    """`~` is root's home, and what is relative stands below /."""
    if path == "~" or path.startswith("~/"):
        path = f"{HOME}{path[1:]}"
    return path if path.startswith("/") or not path else f"/{path}"


def mode_of(about: Reader) -> int | None:
    """644 is 0o644; 0 leaves it as it is."""
    digits = about.integer("mode")
    if not digits:
        return None
    if digits < 0 or not set(str(digits)) <= set("01234567") or digits > 7777:
        raise Refused("INVALID_FILE_METADATA", f"{digits} is no mode, such as 644")
    return int(str(digits), 8)


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise Refused("INVALID_REQUEST_BODY", f"{name} must be a number")
    return int(text)


def _range(text: str, size: int) -> tuple[int, int]:
    """The first one: where it begins, and how long it is."""
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if not found or not (found[1] or found[2]):
        raise Refused("INVALID_REQUEST_BODY", f"{text[:80]!r} is no range", status=416)
    if not found[1]:
        begin, end = max(0, size - int(found[2])), size - 1
    else:
        begin, end = int(found[1]), min(int(found[2] or size - 1), size - 1)
    if begin > end:
        raise Refused("INVALID_REQUEST_BODY", f"{text[:80]!r} lies behind the end", status=416)
    return begin, end - begin + 1


async def _small(part: Part) -> bytes:
    whole = bytearray()
    async for piece in part.content:
        whole += piece
        if len(whole) > METADATA_BYTES_MAX:
            raise InvalidArgument("metadata of a file is too long")
    return bytes(whole)


async def _closing(stack: AsyncExitStack, source: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    async with stack:
        async for piece in source:
            yield piece
            await asyncio.sleep(0)
