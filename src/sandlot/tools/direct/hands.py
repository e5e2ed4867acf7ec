"""What direct tools do with files, and what makes one of them."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sandlot.contracts.tools import CustomTool, FileSetting, ToolSetting
from sandlot.model import FileRead, FileWrite, TextBlock, Tool
from sandlot.tools.outcome import Outcome

_Setting = TypeVar("_Setting", contravariant=True)


@dataclass(frozen=True, slots=True)
class DirectTool(Generic[_Setting]):
    """One that changes files works alone in its session: what it read must be what it changes."""

    tool: Tool
    run: Callable[[_Setting, Mapping[str, Any]], Awaitable[Outcome]]


def adopted(own: CustomTool) -> DirectTool[ToolSetting]:
    """A tool that a user of the library brings."""

    async def run(setting: ToolSetting, arguments: Mapping[str, Any]) -> Outcome:
        given = await own.run(setting, arguments)
        return Outcome((TextBlock(given),) if isinstance(given, str) else tuple(given))

    return DirectTool(own.tool, run)


async def read(setting: FileSetting, path: str, bytes_max: int) -> tuple[bytes, int]:
    """The beginning of a file, and how large it is."""
    request = FileRead(setting.session_id, path, setting.user, length=bytes_max)
    async with setting.host.read_file(request) as stream:
        return b"".join([piece async for piece in stream]), stream.info.size_bytes


async def write(setting: FileSetting, path: str, content: bytes, *, parents: bool) -> None:
    request = FileWrite(setting.session_id, path, setting.user, parents=parents)
    await setting.host.write_file(request, _one(content))


async def _one(content: bytes) -> AsyncIterator[bytes]:
    yield content
