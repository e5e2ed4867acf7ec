"""Every verb of files and every tool, as it would be called for one path. They are found in the contract and in the
catalogue, so that one that is new is tried without being named here."""

import asyncio
import inspect
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from sandlot.contracts.files import Files
from sandlot.host.service import SandboxHostService
from sandlot.model import Tool, ToolRequest, ToolTier

DEADLINE_S = 100.0
TOOL_S = 5.0  # a clone waits for what never comes; that it is ended is what is asked
_READ_BYTES = 1 << 20  # of a stream, before it is left
_ITEMS = 5000
ENDLESS = {"watch_files"}  # entered and left
# What a request or a tool wants beside a path. A name that is new and that nothing can be made without is told by an
# error of the request: it gets its line here.
WORDS: Mapping[str, Any] = {
    "old": "old",
    "new": "new",
    "pattern": "secret",
    "literal": True,
    "values": {"user.a": b"1"},
    "content": "new",
    "message": "m",
    "command": "true",
}
MORE: Mapping[str, Mapping[str, Any]] = {"change_file": {"mode": 0o600}, "find_files": {"pattern": "**"}}
PLACES = ("path", "paths", "directory", "file", "cwd", "args")  # what a tool takes for a path


@dataclass(frozen=True, slots=True)
class Verb:
    """`run` is given a host, a session, a path, and another one that is free; what it answers is anything."""

    name: str
    run: Callable[[SandboxHostService, str, str, str], Awaitable[object]]
    is_program: bool = False  # that runs in the session


def archive() -> bytes:
    """Content for whoever takes some: a file, and an archive with one."""
    told = io.BytesIO()
    with tarfile.open(fileobj=told, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("from-archive"))
    return told.getvalue()


async def _content() -> AsyncIterator[bytes]:
    yield archive()


async def _read(stream: Any) -> list[object]:
    """The beginning of whatever it gives."""
    found: list[object] = []
    size = 0
    async for piece in stream:
        found.append(piece)
        size += len(piece) if isinstance(piece, bytes) else 0
        if size > _READ_BYTES or len(found) > _ITEMS:
            break
    return found


def _file_verb(method: str, options: Mapping[str, Any], *, swapped: bool) -> Verb:
    hints = get_type_hints(getattr(Files, method))
    request_type = hints["request"]
    names = {field.name for field in fields(request_type)}
    given = {name: value for name, value in WORDS.items() if name in names} | dict(MORE.get(method, {})) | dict(options)

    async def run(host: SandboxHostService, session_id: str, path: str, other: str) -> object:
        first, second = (other, path) if swapped else (path, other)
        ends = {name: second for name in ("to", "target") if name in names}
        request = request_type(session_id, first, **ends, **given)
        arguments = (request, _content()) if "content" in hints else (request,)
        called = getattr(host, method)(*arguments)
        if inspect.isawaitable(called):
            return await called
        async with called as stream:
            return [] if method in ENDLESS else await _read(stream)

    told = ", ".join([*(f"{name}={value}" for name, value in options.items()), *(["other end"] if swapped else [])])
    return Verb(f"{method}({told})", run)


def file_verbs() -> list[Verb]:
    """What destroys stands last."""
    found: list[Verb] = []
    for method, function in vars(Files).items():
        if method.startswith("_") or not inspect.isfunction(function):
            continue
        names = {field.name for field in fields(get_type_hints(function)["request"])}
        ways: list[dict[str, Any]] = [{}]
        if "recursive" in names:
            ways = [{"recursive": False}, {"recursive": True}]
        if "depth" in names:
            ways += [{"depth": 9, "ordered": True}]
        found += [_file_verb(method, way, swapped=False) for way in ways]
        if "to" in names:
            found += [_file_verb(method, way, swapped=True) for way in ways]
    return sorted(found, key=lambda verb: verb.name.startswith(("rename", "remove")))


def _argument(name: str, schema: Mapping[str, Any], path: str) -> Any:
    value = path if name in PLACES else WORDS.get(name, "x")
    return [value] if schema.get("type") == "array" else value


def _tool_verb(tool: Tool) -> Verb:
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    wanted = {*tool.parameters.get("required", ()), *PLACES} & properties.keys()

    async def run(host: SandboxHostService, session_id: str, path: str, other: str) -> object:
        del other
        arguments = {name: _argument(name, properties[name], path) for name in wanted}
        async with host.execute_tool(ToolRequest(session_id, tool.name, arguments, timeout_s=TOOL_S)) as stream:
            async for _event in stream:
                pass
            return (await stream.result()).text

    return Verb(f"tool {tool.name}", run, tool.tier is ToolTier.CONTAINED)


def tool_verbs(tools: Sequence[Tool]) -> list[Verb]:
    return [_tool_verb(tool) for tool in tools]


async def ends(attempt: Awaitable[object]) -> object:
    """Its answer or its error. Raises TimeoutError for one that hangs."""
    with suppress(asyncio.CancelledError):
        async with asyncio.timeout(DEADLINE_S):
            return await attempt
    raise TimeoutError
