"""Which tools there are: those of Sandlot, and those that a user of the library brings."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sandlot.contracts.tools import CustomTool, FileSetting, ToolSetting
from sandlot.model import InvalidArgument
from sandlot.tools.contained.bash import BASH
from sandlot.tools.contained.command import ContainedTool
from sandlot.tools.contained.git import GIT_TOOLS
from sandlot.tools.direct.hands import DirectTool, adopted
from sandlot.tools.direct.reading import LIST_DIR, READ_FILE
from sandlot.tools.direct.searching import GLOB, GREP
from sandlot.tools.direct.writing import EDIT_FILE, WRITE_FILE

Entry = DirectTool[ToolSetting] | ContainedTool

BUILT_IN: tuple[DirectTool[FileSetting] | ContainedTool, ...] = (
    READ_FILE,
    WRITE_FILE,
    EDIT_FILE,
    LIST_DIR,
    GREP,
    GLOB,
    BASH,
    *GIT_TOOLS,
)


def toolbox(own: Iterable[CustomTool] = ()) -> Mapping[str, Entry]:
    """By name, in the order of the catalogue. Raises InvalidArgument when two have the same name."""
    box: dict[str, Entry] = {}
    for entry in (*BUILT_IN, *map(adopted, own)):
        if entry.tool.name in box:
            raise InvalidArgument(f"there are two tools {entry.tool.name!r}", next_step="give yours another name")
        box[entry.tool.name] = entry
    return MappingProxyType(box)
