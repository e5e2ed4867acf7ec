"""`write_file` and `edit_file`."""

import difflib
from collections.abc import Mapping
from typing import Any

from sandlot.contracts.tools import FileSetting
from sandlot.model import Tool, ToolProblem, ToolTier, limits
from sandlot.tools.direct.hands import DirectTool, read, write
from sandlot.tools.outcome import Outcome
from sandlot.tools.schemas import flag, parameters, text

_SHORT_LINES = 20
_BEFORE, _AFTER = 2, 4
_COMPARED_LINES_MAX = 5000
_ALIKE = 0.6


async def _write_file(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    path, content = arguments["path"], _encoded("content", arguments["content"])
    await write(setting, path, content, parents=arguments.get("create_dirs", True))
    return Outcome.of(f"wrote {len(content)} bytes to {path}")


async def _edit_file(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    path = arguments["path"]
    old, new = _encoded("old_string", arguments["old_string"]), _encoded("new_string", arguments["new_string"])
    if old == new:
        raise ToolProblem("old_string and new_string are the same: nothing would change")
    content, size = await read(setting, path, limits.TOOL_FILE_BYTES_MAX + 1)
    if len(content) > limits.TOOL_FILE_BYTES_MAX:
        raise ToolProblem(f"{path} has {size} bytes, more than edit_file takes: use bash with sed")
    found = content.count(old)
    if not found:
        raise ToolProblem(_missing(path, content.decode(errors="replace"), arguments["old_string"]))
    if found > 1 and not arguments.get("replace_all", False):
        raise ToolProblem(
            f"old_string is in {path} {found} times: give more of the lines around it, or set replace_all"
        )
    await write(setting, path, content.replace(old, new), parents=False)
    return Outcome.of(f"edited {path}: {found} replacement{'s' * (found != 1)} made")


def _encoded(name: str, value: str) -> bytes:
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ToolProblem(f"{name} holds half a character that no file can have") from None


def _missing(path: str, content: str, old: str) -> str:
    """What is there instead: all of a short file, or the neighbourhood of the line that is most like the first one."""
    lines = content.splitlines()
    told = f"old_string is not in {path}."
    if len(lines) <= _SHORT_LINES:
        return f"{told} The file is:\n{content}" if content else f"{told} The file is empty."
    wanted = next((line.strip() for line in old.splitlines() if line.strip()), "")
    at = _most_alike(lines, wanted)
    if at is None:
        return f"{told} No line of it is like its first line: read the file again."
    near = range(max(0, at - _BEFORE), min(len(lines), at + _AFTER + 1))
    shown = "\n".join(f"{number + 1:6d}\t{lines[number]}" for number in near)
    return f"{told} Line {at + 1} is like its first line:\n{shown}"


def _most_alike(lines: list[str], wanted: str) -> int | None:
    if not wanted:
        return None
    for at, line in enumerate(lines):
        if wanted in line:
            return at
    # Long files and long lines are looked at in part: likeness is slow to tell.
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[:200])
    best, best_at = _ALIKE, None
    for at, line in enumerate(lines[:_COMPARED_LINES_MAX]):
        matcher.set_seq1(line.strip()[:200])
        if matcher.real_quick_ratio() > best and matcher.quick_ratio() > best and matcher.ratio() > best:
            best, best_at = matcher.ratio(), at
    return best_at


WRITE_FILE = DirectTool(
    Tool(
        "write_file",
        "Write a file: whole, or not at all. One that is there is replaced and keeps its mode and owner.",
        parameters(
            "path",
            "content",
            path=text("Path of the file, relative to the workspace or absolute."),
            content=text("All that the file is to hold.", empty=True),
            create_dirs=flag("Make the directories above it.", default=True),
        ),
        ToolTier.DIRECT,
    ),
    _write_file,
)
EDIT_FILE = DirectTool(
    Tool(
        "edit_file",
        "Replace a piece of text in a file. The text must be there exactly once, unless replace_all is set.",
        parameters(
            "path",
            "old_string",
            "new_string",
            path=text("Path of the file, relative to the workspace or absolute."),
            old_string=text("The text to replace, exactly as it is in the file."),
            new_string=text("The text to put there.", empty=True),
            replace_all=flag("Replace it wherever it is."),
        ),
        ToolTier.DIRECT,
    ),
    _edit_file,
)
