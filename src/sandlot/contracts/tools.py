"""Tools: what they stand on, and tools of one's own as whoever brings one sees them."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from sandlot.contracts.files import FileStream, FoundStream
from sandlot.contracts.host import Host
from sandlot.model import (
    Block,
    FileFind,
    FileInfo,
    FileList,
    FileRead,
    FileSearch,
    FileStat,
    FileWrite,
    Match,
    Tool,
)


class ToolFiles(Protocol):
    """The verbs of files that the tools of Sandlot need, as `Files` has them. Whoever has these has all of them."""

    def read_file(self, request: FileRead) -> AbstractAsyncContextManager[FileStream]: ...

    async def write_file(self, request: FileWrite, content: AsyncIterable[bytes]) -> FileInfo: ...

    async def stat_file(self, request: FileStat) -> FileInfo: ...

    def list_files(self, request: FileList) -> AbstractAsyncContextManager[AsyncIterator[Sequence[FileInfo]]]: ...

    def find_files(self, request: FileFind) -> AbstractAsyncContextManager[FoundStream[FileInfo]]: ...

    def search_files(self, request: FileSearch) -> AbstractAsyncContextManager[FoundStream[Match]]: ...


class FileSetting(Protocol):
    """Where a tool of files is called."""

    @property
    def host(self) -> ToolFiles: ...

    @property
    def session_id(self) -> str: ...

    @property
    def user(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ToolSetting:
    """Where a tool of one's own is called: all verbs of the host are its hands."""

    host: Host
    session_id: str
    user: str | None
    call_id: str
    say: Callable[[str], None]  # progress, to whoever listens


@dataclass(frozen=True, slots=True)
class CustomTool:
    """A tool of one's own. It runs in the process of the engine, on its loop, and must not block it. Text or blocks are
    its result; raising ToolProblem makes one that is marked as an error."""

    tool: Tool
    run: Callable[[ToolSetting, Mapping[str, Any]], Awaitable[str | Sequence[Block]]]
