"""`read_file` and `list_dir`."""

import posixpath
from collections.abc import Mapping
from typing import Any

from sandlot.contracts.tools import FileSetting
from sandlot.model import (
    FileInfo,
    FileKind,
    FileList,
    FileStat,
    ImageBlock,
    TextBlock,
    Tool,
    ToolProblem,
    ToolTier,
    limits,
)
from sandlot.tools.direct.hands import DirectTool, read
from sandlot.tools.outcome import Outcome
from sandlot.tools.schemas import count, parameters, text

_LINES = 2000
_LINE_BYTES = 2000
_SNIFFED_BYTES = 8192
_IMAGE_BYTES_MAX = 5 * limits.MIB
_ENTRIES = 200
_ENTRIES_MAX = 10_000
_IMAGES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}


async def _read_file(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    path, offset, limit = arguments["path"], arguments.get("offset", 0), arguments.get("limit", _LINES)
    content, size = await read(setting, path, limits.TOOL_FILE_BYTES_MAX + 1)
    if size > limits.TOOL_FILE_BYTES_MAX or len(content) > limits.TOOL_FILE_BYTES_MAX:
        raise ToolProblem(
            f"{path} has {size} bytes, more than the {limits.TOOL_FILE_BYTES_MAX} that read_file takes: "
            "use grep, or bash with head, tail or sed"
        )
    if mime := _image(content):
        return _picture(path, content, mime)
    if b"\0" in content[:_SNIFFED_BYTES]:
        raise ToolProblem(f"{path} is binary ({size} bytes): look at it with bash, for instance with `file` or `xxd`")
    lines = content.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if offset and offset >= len(lines):
        raise ToolProblem(f"{path} has {len(lines)} lines, and offset {offset} is behind them")
    shown = lines[offset : offset + limit]
    text = "\n".join(f"{number:6d}\t{_line(line)}" for number, line in enumerate(shown, offset + 1))
    whole = len(shown) == len(lines)
    if not whole:
        text += f"\n(showing lines {offset + 1}-{offset + len(shown)} of {len(lines)})"
    cut = any(len(line) > _LINE_BYTES for line in shown)
    return Outcome.of(text or "(the file is empty)", truncated=cut or not whole)


def _line(line: bytes) -> str:
    if len(line) <= _LINE_BYTES:
        return line.decode(errors="replace")
    return f"{line[:_LINE_BYTES].decode(errors='replace')}… ({len(line) - _LINE_BYTES} bytes more)"


def _image(content: bytes) -> str:
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for magic, mime in _IMAGES.items() if content.startswith(magic)), "")


def _picture(path: str, content: bytes, mime: str) -> Outcome:
    told = f"{path}: {mime}, {len(content)} bytes"
    if len(content) > _IMAGE_BYTES_MAX:
        raise ToolProblem(f"{told}, more than the {_IMAGE_BYTES_MAX} of a picture that is shown: make it smaller first")
    return Outcome((TextBlock(told), ImageBlock(content, mime)))


async def _list_dir(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    path, depth = arguments.get("path", "."), arguments.get("depth", 1)
    wanted = arguments.get("max_results", _ENTRIES)
    found: list[FileInfo] = []
    top = (await setting.host.stat_file(FileStat(setting.session_id, path, setting.user))).path
    async with setting.host.list_files(FileList(setting.session_id, path, setting.user, depth)) as batches:
        async for batch in batches:
            found += batch
            if len(found) > limits.FILES_LISTED_MAX:
                raise ToolProblem(f"{path} has more than {limits.FILES_LISTED_MAX} entries: use glob with a pattern")
    found.sort(key=lambda info: info.path)
    text = "\n".join(_entry(info, top) for info in found[:wanted]) or "(the directory is empty)"
    if len(found) > wanted:
        text += f"\n(showing {wanted} of {len(found)} entries)"
    return Outcome.of(text, truncated=len(found) > wanted)


def _entry(info: FileInfo, top: str) -> str:
    name = shown_name(posixpath.relpath(info.path, top))
    match info.kind:
        case FileKind.DIRECTORY:
            return f"{name}/"
        case FileKind.SYMLINK:
            return f"{name} -> {shown_name(info.target)}"
        case FileKind.FILE:
            return f"{name} ({info.size_bytes} bytes)"
        case FileKind.OTHER:
            return f"{name} (no file)"


def shown_name(name: str) -> str:
    """On one line, whatever it holds."""
    return name.encode("utf-8", "surrogateescape").decode(errors="replace").replace("\n", "\\n")


READ_FILE = DirectTool(
    Tool(
        "read_file",
        "Read a text file, with line numbers. Long files are read in parts with offset and limit. Pictures are shown.",
        parameters(
            "path",
            path=text("Path of the file, relative to the workspace or absolute."),
            offset=count("How many lines to skip.", 0, 1 << 31, 0),
            limit=count("How many lines to read.", 1, 1 << 31, _LINES),
        ),
        ToolTier.DIRECT,
        changes=False,
    ),
    _read_file,
)
LIST_DIR = DirectTool(
    Tool(
        "list_dir",
        "List a directory, sorted by path: directories end with /, links show where they lead.",
        parameters(
            path=text("Path of the directory; the workspace when it is left out."),
            depth=count("How many levels to go down.", 1, limits.FILE_DEPTH_MAX, 1),
            max_results=count("How many entries to show.", 1, _ENTRIES_MAX, _ENTRIES),
        ),
        ToolTier.DIRECT,
        changes=False,
    ),
    _list_dir,
)
