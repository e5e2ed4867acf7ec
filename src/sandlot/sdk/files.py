"""Files of a sandbox."""

import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Literal, overload

from sandlot import registry
from sandlot.model import (
    AttributesGet,
    AttributesSet,
    DirectoryMake,
    FileAppend,
    FileChange,
    FileConflict,
    FileCopy,
    FileEvent,
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
    FileSearch,
    FileStat,
    FileUsage,
    FileWatch,
    FileWrite,
    InvalidArgument,
    LimitReached,
    Line,
    LinkMake,
    Match,
    TreeDownload,
    TreeTally,
    TreeUpload,
    Usage,
    limits,
)
from sandlot.sdk.client import Client, in_portal, iterate, take
from sandlot.sdk.content import Content, pieces_of


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
    ) -> AsyncGenerator[bytes]: ...

    async def read(
        self,
        path: str,
        *,
        format: Literal["text", "bytes", "stream"] = "text",
        offset: int = 0,
        length: int | None = None,
        user: str | None = None,
    ) -> str | bytes | AsyncGenerator[bytes]:
        """The content as text, as bytes, or as a stream of pieces; all of it, or `length` bytes from `offset` on.

        Text and bytes are read whole and at most 64 MiB: beyond that LimitReached is raised, and a stream takes any
        size; whoever leaves one early closes it. Bytes that are no UTF-8 show as replacement characters in text. Raises
        FileNotFound, FileConflict for what is no file, PermissionDenied.
        """
        request = FileRead(self._sandbox_id, path, user, offset, length)
        if format == "stream":
            pieces = self._pieces(request)
            # The first one now: what is not there is told at once, not at the first use.
            return iterate(self.client, pieces, await take(self.client, pieces))
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

    async def _pieces(self, request: FileRead) -> AsyncGenerator[bytes]:
        async with (await self.client.host()).read_file(request) as stream:
            async for piece in stream:
                yield piece

    @in_portal
    async def write(
        self, path: str, data: Content, *, mode: int | None = None, parents: bool = True, user: str | None = None
    ) -> FileInfo:
        """Make a file, or replace what is in it: whole, or not at all. Directories above it are made.

        `data` is text, bytes, a file object, or pieces that come one after another; they are asked for in the thread or
        on the loop of whoever called, and what they raise comes out of here. A new file has mode 0o644, one that was
        there keeps its mode and owner. Raises FileConflict, PermissionDenied, LimitReached when the disk is full.
        """
        request = FileWrite(self._sandbox_id, path, user, mode, parents)
        return await (await self.client.host()).write_file(request, pieces_of(data))

    @in_portal
    async def append(
        self, path: str, data: Content, *, mode: int = 0o644, parents: bool = True, user: str | None = None
    ) -> FileInfo:
        """Add to the end of a file, or make it. What came before an error stays. Raises as `write` does."""
        request = FileAppend(self._sandbox_id, path, user, mode, parents)
        return await (await self.client.host()).append_file(request, pieces_of(data))

    @in_portal
    async def read_lines(
        self,
        path: str,
        *,
        first: int = 1,
        count: int | None = None,
        line_bytes: int = limits.LINE_BYTES,
        user: str | None = None,
    ) -> list[Line]:
        """Some lines of a file of any size, numbered from 1; of a line that is longer than `line_bytes`, so much.

        Raises LimitReached when they have more than 64 MiB together, FileNotFound, FileConflict, PermissionDenied.
        """
        request = FileLines(self._sandbox_id, path, user, first, count, line_bytes=line_bytes)
        found: list[Line] = []
        size = 0
        async with (await self.client.host()).read_lines(request) as stream:
            async for batch in stream:
                found += batch
                size += sum(len(line.text) for line in batch)
                if size > limits.FILE_READ_BYTES_MAX:
                    raise _too_large(path, size)
        return found

    @in_portal
    async def replace(self, path: str, old: str, new: str, *, all: bool = False, user: str | None = None) -> int:
        """Put one text in the place of another, and tell how often. Whole or not at all, also when someone else writes.

        Raises FileConflict, with `count` in its context, when the text is not there exactly once and not all were asked
        for; LimitReached for a file of more than 64 MiB.
        """
        request = FileReplace(self._sandbox_id, path, user, old, new, all)
        return await (await self.client.host()).replace_in_file(request)

    @in_portal
    async def copy(
        self, path: str, to: str, *, recursive: bool = False, overwrite: bool = True, user: str | None = None
    ) -> TreeTally:
        """A file, or with `recursive` a directory, to another name; `to` is the copy itself, not a place for it. Links
        are copied as they are. Raises FileNotFound, FileConflict, PermissionDenied, LimitReached."""
        request = FileCopy(self._sandbox_id, path, user, to, recursive, overwrite)
        return await (await self.client.host()).copy_file(request)

    @in_portal
    async def chmod(self, path: str, mode: int, *, recursive: bool = False, user: str | None = None) -> FileInfo:
        """Permission bits, such as 0o755. Raises FileNotFound, PermissionDenied."""
        request = FileChange(self._sandbox_id, path, user, mode, recursive=recursive)
        return await (await self.client.host()).change_file(request)

    @in_portal
    async def chown(
        self,
        path: str,
        owner: str | None = None,
        group: str | None = None,
        *,
        recursive: bool = False,
        user: str | None = None,
    ) -> FileInfo:
        """By name, or by number as text. Most users may not give files away; `user="root"` may. Raises InvalidArgument
        for a name that the sandbox does not have, FileNotFound, PermissionDenied."""
        request = FileChange(self._sandbox_id, path, user, None, owner, group, recursive)
        return await (await self.client.host()).change_file(request)

    @in_portal
    async def symlink(self, path: str, target: str, *, parents: bool = True, user: str | None = None) -> FileInfo:
        """Make a link. Raises FileConflict when something is there, PermissionDenied."""
        request = LinkMake(self._sandbox_id, path, user, target, parents)
        return await (await self.client.host()).make_link(request)

    @in_portal
    async def get_attributes(self, path: str, *, user: str | None = None) -> dict[str, bytes]:
        """The extended attributes of a file or a directory that begin with `user.`. Raises FileNotFound,
        PermissionDenied."""
        return dict(await (await self.client.host()).get_attributes(AttributesGet(self._sandbox_id, path, user)))

    @in_portal
    async def set_attributes(
        self, path: str, values: Mapping[str, bytes | None], *, replace: bool = False, user: str | None = None
    ) -> dict[str, bytes]:
        """Set some, and remove those that are None; with `replace`, also all that are not named. Tells what is there.

        Raises InvalidArgument for a name that does not begin with `user.`, LimitReached when they are too large,
        FileNotFound, PermissionDenied.
        """
        request = AttributesSet(self._sandbox_id, path, user, values, replace)
        return dict(await (await self.client.host()).set_attributes(request))

    @in_portal
    async def find(
        self,
        pattern: str = "**",
        path: str = ".",
        *,
        kinds: Sequence[FileKind] = (),
        hidden: bool = False,
        ignore_case: bool = False,
        limit: int = limits.FIND_RESULTS,
        user: str | None = None,
    ) -> list[FileInfo]:
        """What is below a directory and fits a pattern such as `**/*.py`, in order; the first ones, up to `limit`.

        `*` and `?` stand for anything in a name, `**` for any directories, `[a-z]` for one character, `{a,b}` for one
        of several. What begins with a dot is found when the pattern says the dot, or with `hidden`. Links are
        told of, not followed. Raises InvalidArgument, FileNotFound, FileConflict, PermissionDenied.
        """
        request = FileFind(self._sandbox_id, path, user, pattern, tuple(kinds), hidden, ignore_case, limit)
        async with (await self.client.host()).find_files(request) as stream:
            return [info async for batch in stream for info in batch]

    @in_portal
    async def search(
        self,
        pattern: str,
        path: str = ".",
        *,
        literal: bool = False,
        ignore_case: bool = False,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        hidden: bool = False,
        context: int = 0,
        limit: int = limits.SEARCH_RESULTS,
        limit_per_file: int | None = None,
        user: str | None = None,
    ) -> list[Match]:
        """Lines that fit a regular expression, or with `literal` a text, in a file or in all files below a directory;
        the first ones in the order of paths, up to `limit`, with `context` lines on each side.

        Expressions have no references and no look-around, and take no longer than the text is long. `include` and
        `exclude` are patterns as for `find`; one without a slash fits a name in any directory. Files that are no text
        are left out. Raises InvalidArgument, FileNotFound, FileConflict, PermissionDenied.
        """
        request = FileSearch(
            self._sandbox_id,
            path,
            user,
            pattern,
            literal,
            ignore_case,
            tuple(include),
            tuple(exclude),
            hidden,
            context,
            limit,
            limit_per_file,
        )
        async with (await self.client.host()).search_files(request) as stream:
            return [match async for batch in stream for match in batch]

    async def watch(
        self, path: str = ".", *, recursive: bool = True, after: int | None = None, user: str | None = None
    ) -> AsyncGenerator[FileEvent]:
        """What changes in a directory, and below it, from now on; leave the loop to end it. With `after`, from behind
        the offset of an event that was told before.

        An event of the kind `overflow` says that some were lost, and that it is time to look again: after a burst, a
        rollback, or when `after` is not known any more. Raises LimitReached for too many directories, FileNotFound,
        FileConflict, PermissionDenied.
        """
        request = FileWatch(self._sandbox_id, path, user, recursive, after)
        opened = await self.client.run(self._watched(request))
        return iterate(self.client, self._events(*opened))

    async def _watched(self, request: FileWatch) -> tuple[AsyncExitStack, AsyncIterator[Sequence[FileEvent]]]:
        # Entered at once: what changes from now on is told, whenever the first event is asked for.
        stack = AsyncExitStack()
        return stack, await stack.enter_async_context((await self.client.host()).watch_files(request))

    async def _events(
        self, stack: AsyncExitStack, batches: AsyncIterator[Sequence[FileEvent]]
    ) -> AsyncGenerator[FileEvent]:
        async with stack:
            async for batch in batches:
                for event in batch:
                    yield event

    @in_portal
    async def usage(self, path: str = ".", *, user: str | None = None) -> Usage:
        """What a file, or a directory with all that is in it, takes. Raises FileNotFound, PermissionDenied."""
        return await (await self.client.host()).measure_files(FileUsage(self._sandbox_id, path, user))

    @in_portal
    async def list(
        self,
        path: str = ".",
        *,
        depth: int = 1,
        after: str = "",
        limit: int | None = None,
        user: str | None = None,
    ) -> list[FileInfo]:
        """The entries of a directory by name; with `depth`, those of directories in it too, each behind its directory.

        A page has at most `limit` entries and begins behind the path `after`, as it was told on the page before. Links
        are told of, not followed. Raises LimitReached beyond 100,000 entries, FileNotFound, FileConflict,
        PermissionDenied.
        """
        paged = bool(after) or limit is not None
        request = FileList(self._sandbox_id, path, user, depth, paged, after, limit)
        found: list[FileInfo] = []
        async with (await self.client.host()).list_files(request) as batches:
            async for batch in batches:
                found += batch
                if len(found) > limits.FILES_LISTED_MAX:
                    raise LimitReached(
                        f"{path} has more than {limits.FILES_LISTED_MAX} entries",
                        next_step="list it page by page, with `limit` and `after`",
                        limit="files_listed",
                    )
        return found if paged else sorted(found, key=lambda info: info.path.split("/"))

    @in_portal
    async def stat(self, path: str, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What is there; with `follow=False`, of a link itself. Raises FileNotFound, PermissionDenied."""
        request = FileStat(self._sandbox_id, path, user, follow)
        return await (await self.client.host()).stat_file(request)

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether something is there. A link that leads nowhere is not, nor is what would lie below a file."""
        try:
            await self.stat(path, user=user)
        except (FileNotFound, FileConflict):
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
        request = FileRemove(self._sandbox_id, path, user, recursive)
        await (await self.client.host()).remove_file(request)

    @in_portal
    async def upload(
        self, local: str | os.PathLike[str], path: str = ".", *, ignore: bool = False, user: str | None = None
    ) -> TreeTally:
        """All that is in a directory of yours, as one stream; files are replaced, directories filled, links kept as
        they are. With `ignore`, what git would ignore is left out. A file is there whole or as it was, also when this
        is broken off. Tells what came. Raises FileNotFound, FileConflict, PermissionDenied, LimitReached."""
        request = TreeUpload(self._sandbox_id, path, user)
        send = registry.load("sdk", "upload")
        return await send(await self.client.host(), request, os.fspath(local), ignore=ignore, tally=TreeTally())

    @in_portal
    async def download(
        self,
        path: str,
        local: str | os.PathLike[str],
        *,
        include: Sequence[str] = (),
        user: str | None = None,
    ) -> TreeTally:
        """The same the other way, into a directory that is made when it is not there. `include` are patterns of paths
        to take, such as `*.py`. Nothing outside the directory is touched: a link that leads out of it is left out, and
        told."""
        request = TreeDownload(self._sandbox_id, path, user, tuple(include))
        return await registry.load("sdk", "download")(await self.client.host(), request, os.fspath(local))


def _too_large(path: str, size_bytes: int) -> LimitReached:
    return LimitReached(
        f"{path} has {size_bytes} bytes, more than the {limits.FILE_READ_BYTES_MAX} that are read in one piece",
        next_step='read it with format="stream", or a part of it with offset and length',
        limit="file_read_bytes",
    )
