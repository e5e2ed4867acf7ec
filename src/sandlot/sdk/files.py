"""Files of a sandbox."""

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Literal, Protocol, cast, overload, runtime_checkable

from sandlot.model import (
    DirectoryMake,
    FileInfo,
    FileList,
    FileNotFound,
    FileRead,
    FileRemove,
    FileRename,
    FileStat,
    FileWrite,
    InvalidArgument,
    LimitReached,
    limits,
)
from sandlot.sdk.client import Client, in_portal, iterate_in_portal

_PIECE_BYTES = 1 << 20


@runtime_checkable
class Readable(Protocol):
    """A file object, opened in text or binary mode."""

    def read(self, size: int, /) -> str | bytes: ...


Content = str | bytes | bytearray | memoryview | Readable | Iterable[bytes] | AsyncIterable[bytes]


class AsyncFiles:
    """`sandbox.files`. Paths are relative to the workspace, or absolute as the sandbox sees them; links in them never
    lead out of it. `user` says with whose rights; without it, those of the sandbox's user."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    @overload
    async def read(
        self,
        path: str,
        *,
        format: Literal["text"] = "text",
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
    ) -> str: ...

    @overload
    async def read(
        self,
        path: str,
        *,
        format: Literal["bytes"],
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
    ) -> bytes: ...

    @overload
    async def read(
        self,
        path: str,
        *,
        format: Literal["stream"],
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
    ) -> AsyncIterator[bytes]: ...

    async def read(
        self,
        path: str,
        *,
        format: Literal["text", "bytes", "stream"] = "text",
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
    ) -> str | bytes | AsyncIterator[bytes]:
        """The content as text, as bytes, or as a stream of pieces; all of it, or `length` bytes from `offset` on.

        Text and bytes are read whole and at most 64 MiB: beyond that LimitReached is raised, and a stream takes any
        size. Bytes that are no UTF-8 show as replacement characters in text. Raises FileNotFound, FileConflict for what
        is no file, PermissionDenied.
        """
        request = FileRead(self._sandbox_id, path, user, offset, length)
        if format == "stream":
            stream = self._stream(request)
            # The first piece now: what is not there is told at once, not at the first use.
            return _resumed(await anext(stream, None), stream)
        if format not in ("text", "bytes"):
            raise InvalidArgument(f"format {format!r} is not known", next_step="use text, bytes or stream")
        content = await self.client.run(self._whole(request))
        return content.decode(errors="replace") if format == "text" else content

    async def _whole(self, request: FileRead) -> bytes:
        pieces: list[bytes] = []
        size = 0
        async with (await self.client.host()).read_file(request) as stream:
            if request.length is None and stream.info.size_bytes - request.offset > limits.FILE_READ_BYTES_MAX:
                raise _too_large(request.path, stream.info.size_bytes)
            async for piece in stream:
                pieces.append(piece)
                size += len(piece)
                if size > limits.FILE_READ_BYTES_MAX:
                    raise _too_large(request.path, size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @iterate_in_portal
    async def _stream(self, request: FileRead) -> AsyncGenerator[bytes]:
        async with (await self.client.host()).read_file(request) as stream:
            async for piece in stream:
                yield piece

    @in_portal
    async def write(
        self, path: str, data: Content, *, mode: int | None = None, parents: bool = True, user: str | None = None
    ) -> FileInfo:
        """Make a file, or replace what is in it: whole, or not at all. Directories above it are made.

        `data` is text, bytes, a file object, or pieces that come one after another. A new file has mode 0o644, one that
        was there keeps its mode and owner. Raises FileConflict, PermissionDenied, LimitReached when the disk is full.
        """
        request = FileWrite(self._sandbox_id, path, user, mode, parents)
        return await (await self.client.host()).write_file(request, _pieces(data))

    @in_portal
    async def list(self, path: str = ".", *, depth: int = 1, user: str | None = None) -> list[FileInfo]:
        """The entries of a directory, sorted by path; with `depth`, those of directories in it too. Links are told of,
        not followed. Raises LimitReached beyond 100,000 entries, FileNotFound, FileConflict, PermissionDenied."""
        found: list[FileInfo] = []
        async with (await self.client.host()).list_files(FileList(self._sandbox_id, path, user, depth)) as batches:
            async for batch in batches:
                found += batch
                if len(found) > limits.FILES_LISTED_MAX:
                    raise LimitReached(
                        f"{path} has more than {limits.FILES_LISTED_MAX} entries",
                        next_step="list it with a command, or one directory at a time",
                        limit="files_listed",
                    )
        return sorted(found, key=lambda info: info.path)

    @in_portal
    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What is there; with `follow=False`, of a link itself. Raises FileNotFound, PermissionDenied."""
        return await (await self.client.host()).stat_file(FileStat(self._sandbox_id, path, user, follow))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether something is there. A link that leads nowhere is not."""
        try:
            await self.stat(path, user=user)
        except FileNotFound:
            return False
        return True

    @in_portal
    async def make_dir(self, path: str, *, mode: int = 0o755, parents: bool = True, user: str | None = None) -> bool:
        """False when the directory is there already. Raises FileConflict when something else is."""
        request = DirectoryMake(self._sandbox_id, path, user, mode, parents)
        return await (await self.client.host()).make_directory(request)

    @in_portal
    async def rename(self, path: str, to: str, *, overwrite: bool = True, user: str | None = None) -> FileInfo:
        """Raises FileNotFound, FileConflict, PermissionDenied."""
        request = FileRename(self._sandbox_id, path, user, to, overwrite)
        return await (await self.client.host()).rename_file(request)

    @in_portal
    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """A file, an empty directory, or with `recursive` a directory with all that is in it. Links are not followed.

        Raises FileNotFound, FileConflict for a directory that is not empty, PermissionDenied.
        """
        await (await self.client.host()).remove_file(FileRemove(self._sandbox_id, path, user, recursive))


def _too_large(path: str, size_bytes: int) -> LimitReached:
    return LimitReached(
        f"{path} has {size_bytes} bytes, more than the {limits.FILE_READ_BYTES_MAX} that are read in one piece",
        next_step='read it with format="stream", or a part of it with offset and length',
        limit="file_read_bytes",
    )


async def _resumed(first: bytes | None, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        if first is not None:
            yield first
            async for piece in rest:
                yield piece
    finally:
        await rest.aclose()


async def _pieces(data: Content) -> AsyncGenerator[bytes]:
    """Raises InvalidArgument for what has no bytes."""
    import asyncio  # as everywhere in the SDK, not before it is used

    if isinstance(data, str):
        yield data.encode()
    elif isinstance(data, bytes | bytearray | memoryview):
        yield bytes(data)
    elif isinstance(data, AsyncIterable):
        async for piece in data:
            yield _bytes(piece)
    elif isinstance(data, Readable):
        # Reading may block, and must not block the engine.
        while piece := await asyncio.to_thread(data.read, _PIECE_BYTES):
            yield _bytes(piece)
    else:
        source = cast("Iterator[object]", iter(data))
        while (piece := await asyncio.to_thread(next, source, None)) is not None:
            yield _bytes(piece)


def _bytes(piece: object) -> bytes:
    if isinstance(piece, str):
        return piece.encode()
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, bytearray | memoryview):
        return bytes(cast("bytearray", piece))
    raise InvalidArgument(f"content comes as text or bytes, not as {type(piece).__name__}")
