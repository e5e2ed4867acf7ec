"""`grep` and `glob`."""

import posixpath
from collections.abc import Mapping
from typing import Any

from sandlot.contracts.tools import FileSetting
from sandlot.model import FileFind, FileKind, FileSearch, FileStat, Match, Tool, ToolTier
from sandlot.tools.direct.hands import DirectTool
from sandlot.tools.direct.reading import shown_name
from sandlot.tools.outcome import Outcome
from sandlot.tools.schemas import count, flag, parameters, text

_MATCHES, _PATHS = 100, 200
_RESULTS_MAX = 10_000
_LINE_CHARS = 500
_CONTEXT_MAX = 20


async def _grep(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    wanted = arguments.get("max_results", _MATCHES)
    request = FileSearch(
        setting.session_id,
        arguments.get("path", "."),
        setting.user,
        pattern=arguments["pattern"],
        literal=arguments.get("literal", False),
        ignore_case=arguments.get("ignore_case", False),
        include=_globs(arguments, "include"),
        exclude=_globs(arguments, "exclude"),
        hidden=arguments.get("hidden", False),
        context=arguments.get("context_lines", 0),
        limit=wanted,
    )
    top = await _top(setting, request.path)
    async with setting.host.search_files(request) as found:
        matches = [match async for batch in found for match in batch]
        is_cut = found.tally.is_cut
    if not matches:
        return Outcome.of(f"No match in {found.tally.entries} files and directories")
    lines = [f"Found {len(matches)}{' or more' * is_cut} match{'es' * (len(matches) != 1)}"]
    for match in matches:
        lines += _told(match, top)
    if is_cut:
        lines.append(f"(showing the first {wanted}: narrow the pattern, or raise max_results)")
    return Outcome.of("\n".join(lines), truncated=is_cut or any(match.is_cut for match in matches))


def _told(match: Match, top: str) -> list[str]:
    before = [f"    {_line(line)}" for line in match.before]
    after = [f"    {_line(line)}" for line in match.after]
    return [*before, f"{_relative(match.path, top)}:{match.line}: {_line(match.text)}", *after]


def _line(line: str) -> str:
    clean = line.encode("utf-8", "surrogateescape").decode(errors="replace")
    return clean if len(clean) <= _LINE_CHARS else f"{clean[:_LINE_CHARS]}…"


async def _glob(setting: FileSetting, arguments: Mapping[str, Any]) -> Outcome:
    wanted = arguments.get("max_results", _PATHS)
    request = FileFind(
        setting.session_id,
        arguments.get("path", "."),
        setting.user,
        pattern=arguments["pattern"],
        kinds=(FileKind.FILE, FileKind.SYMLINK),
        hidden=arguments.get("hidden", False),
        limit=wanted,
    )
    top = await _top(setting, request.path)
    async with setting.host.find_files(request) as found:
        paths = [_relative(info.path, top) async for batch in found for info in batch]
        is_cut = found.tally.is_cut
    if not paths:
        return Outcome.of("No file fits the pattern")
    lines = [f"Found {len(paths)}{' or more' * is_cut} file{'s' * (len(paths) != 1)}", *paths]
    if is_cut:
        lines.append(f"(showing the first {wanted}: narrow the pattern, or raise max_results)")
    return Outcome.of("\n".join(lines), truncated=is_cut)


async def _top(setting: FileSetting, path: str) -> str:
    """The directory that results are told from; for a file, the one that it is in."""
    info = await setting.host.stat_file(FileStat(setting.session_id, path, setting.user))
    return info.path if info.kind is FileKind.DIRECTORY else posixpath.dirname(info.path)


def _relative(path: str, top: str) -> str:
    return shown_name(posixpath.relpath(path, top))


def _globs(arguments: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return (arguments[name],) if name in arguments else ()


_WHERE = text("Where to look; the workspace when it is left out.")
_HIDDEN = flag("Also in files and directories whose names begin with a dot.")

GREP = DirectTool(
    Tool(
        "grep",
        "Search the content of files for a regular expression: file, line number and line of each match. Binary files "
        "are left out.",
        parameters(
            "pattern",
            pattern=text("A regular expression without references and look-around."),
            path=_WHERE,
            include=text("Only files that fit this pattern, such as *.py or src/**/*.{c,h}."),
            exclude=text("No files, and no directories, that fit this pattern."),
            literal=flag("The pattern is plain text."),
            ignore_case=flag("Do not tell upper and lower case apart."),
            context_lines=count("Lines to show before and behind each match.", 0, _CONTEXT_MAX, 0),
            hidden=_HIDDEN,
            max_results=count("How many matches to show.", 1, _RESULTS_MAX, _MATCHES),
        ),
        ToolTier.DIRECT,
        changes=False,
    ),
    _grep,
)
GLOB = DirectTool(
    Tool(
        "glob",
        "Find files by the pattern of their path: `*` and `?` within a name, `**` for any directories.",
        parameters(
            "pattern",
            pattern=text("Such as **/*.py or src/*/test_?.{py,toml}."),
            path=_WHERE,
            hidden=_HIDDEN,
            max_results=count("How many files to show.", 1, _RESULTS_MAX, _PATHS),
        ),
        ToolTier.DIRECT,
        changes=False,
    ),
    _glob,
)
