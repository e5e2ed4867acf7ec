"""The client of an OpenSandbox server, async: its lifecycle API, and ExecD and egress in each sandbox. `client.py`
is made from this file.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from pyqwest import Client, Multipart, Part

from sandlot.model import DeadlineExceeded, InvalidArgument, StartFailed, Unavailable
from sandlot.opensandbox import answers, asks
from sandlot.opensandbox.asks import Ask
from sandlot.opensandbox.events import OUTPUT_BYTES_MAX, Collector, Event, EventReader
from sandlot.opensandbox.http import AsyncHttp, AsyncIncoming, Sending
from sandlot.opensandbox.values import (
    EGRESS_PORT,
    EXECD_PORT,
    CommandLogs,
    CommandResult,
    CommandStatus,
    EgressRule,
    Endpoint,
    FileInfo,
    FileUpload,
    NetworkPolicy,
    SandboxMetrics,
    SandboxOpts,
    SandboxResponse,
    SnapshotResponse,
)

T = TypeVar("T")
_PAGES_MAX = 1000
_PIECE = 1 << 18
_ENDED = frozenset(["Failed", "Terminated"])
_GRACE_S = 15.0  # a server ends a command itself and tells so; what is not told then is given up
__all__ = ["EXECD_PORT", "AsyncOpenSandboxClient"]


class AsyncOpenSandboxClient:
    """Given the address of the lifecycle API (`http://host:port/v1`) and its key. Every request ends after
    `request_timeout_s`; transfers and commands last as long as they go on.

    Every method raises Unavailable, DeadlineExceeded, PermissionDenied, LimitReached and, for a wrong request,
    InvalidArgument; what is asked for by an id that is unknown there raises NotFound.
    """

    def __init__(
        self,
        lifecycle_url: str,
        api_key: str = "",
        *,
        http_client: Client | None = None,
        request_timeout_s: float = 30.0,
        use_server_proxy: bool = False,
    ) -> None:
        parts = urlsplit(lifecycle_url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidArgument(f"{lifecycle_url[:200]!r} is no address", next_step="give http://HOST:PORT/v1")
        self._base = lifecycle_url.rstrip("/")
        self._scheme = parts.scheme
        self._headers = {"OPEN-SANDBOX-API-KEY": api_key} if api_key else {}
        self._timeout_s = request_timeout_s
        self._use_server_proxy = use_server_proxy
        self._http = AsyncHttp(http_client)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """A client of HTTP that was given stays open."""
        await self._http.aclose()

    @property
    def address(self) -> str:
        """Of the lifecycle API."""
        return self._base

    # Sandboxes.

    async def create_sandbox(self, opts: SandboxOpts) -> SandboxResponse:
        """It may still be pending when this returns: `wait_ready`."""
        return await self._ask(asks.create_sandbox(opts))

    async def get_sandbox(self, sandbox_id: str) -> SandboxResponse:
        return await self._ask(asks.get_sandbox(sandbox_id))

    async def list_sandboxes(
        self, metadata: Mapping[str, str] | None = None, states: Sequence[str] = ()
    ) -> list[SandboxResponse]:
        """All of them, however many pages they are: with all of the metadata, in any of the states."""
        found: dict[str, SandboxResponse] = {}
        for number in range(1, _PAGES_MAX + 1):
            items, more = await self._ask(asks.list_sandboxes(metadata or {}, states, number))
            found |= {item.sandbox_id: item for item in items}
            if not more or not items:
                break
        return list(found.values())

    async def delete_sandbox(self, sandbox_id: str) -> None:
        await self._ask(asks.delete_sandbox(sandbox_id))

    async def pause_sandbox(self, sandbox_id: str) -> None:
        await self._ask(asks.pause_sandbox(sandbox_id))

    async def resume_sandbox(self, sandbox_id: str) -> None:
        await self._ask(asks.resume_sandbox(sandbox_id))

    async def renew_sandbox(self, sandbox_id: str, timeout_s: float) -> float:
        """So long from now on; gives when it ends then."""
        return await self._ask(asks.renew_sandbox(sandbox_id, time.time() + timeout_s))

    async def patch_metadata(self, sandbox_id: str, changes: Mapping[str, str | None]) -> SandboxResponse:
        """None removes a key."""
        return await self._ask(asks.patch_metadata(sandbox_id, changes))

    async def wait_ready(self, sandbox_id: str, timeout_s: float = 60.0) -> SandboxResponse:
        """Until it runs. Raises StartFailed when it failed or has ended, DeadlineExceeded."""
        deadline, pause = time.monotonic() + timeout_s, 0.05
        while True:
            found = await self.get_sandbox(sandbox_id)
            if found.state == "Running":
                return found
            if found.state in _ENDED:
                why = found.message or found.reason or "the server does not say why"
                raise StartFailed(f"the sandbox is {found.state}: {why}", sandbox_id=sandbox_id)
            if (left := deadline - time.monotonic()) <= 0:
                raise DeadlineExceeded(f"the sandbox is {found.state} after {timeout_s} s", sandbox_id=sandbox_id)
            await asyncio.sleep(min(pause, left))
            pause = min(2.0, pause * 2)

    async def get_endpoint(self, sandbox_id: str, port: int) -> Endpoint:
        ask = asks.get_endpoint(sandbox_id, port, self._scheme, use_server_proxy=self._use_server_proxy)
        return await self._ask(ask)

    async def discover_execd(self, sandbox_id: str) -> Endpoint:
        """What all methods below `ping` are given."""
        return await self.get_endpoint(sandbox_id, EXECD_PORT)

    async def discover_egress(self, sandbox_id: str) -> Endpoint:
        return await self.get_endpoint(sandbox_id, EGRESS_PORT)

    async def create_snapshot(self, sandbox_id: str, name: str = "") -> SnapshotResponse:
        return await self._ask(asks.create_snapshot(sandbox_id, name))

    async def get_snapshot(self, snapshot_id: str) -> SnapshotResponse:
        return await self._ask(asks.get_snapshot(snapshot_id))

    async def list_snapshots(self, sandbox_id: str = "") -> list[SnapshotResponse]:
        found: dict[str, SnapshotResponse] = {}
        for number in range(1, _PAGES_MAX + 1):
            items, more = await self._ask(asks.list_snapshots(sandbox_id, number))
            found |= {item.snapshot_id: item for item in items}
            if not more or not items:
                break
        return list(found.values())

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self._ask(asks.delete_snapshot(snapshot_id))

    # Commands.

    async def ping(self, execd: Endpoint) -> None:
        await self._ask(asks.ping(), execd)

    async def run_command(
        self,
        execd: Endpoint,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        envs: Mapping[str, str] | None = None,
        uid: int | None = None,
        gid: int | None = None,
        output_bytes_max: int = OUTPUT_BYTES_MAX,
    ) -> CommandResult:
        """A line for the shell, or arguments, until it has ended."""
        begun, collector = time.monotonic(), Collector(output_bytes_max)
        stream = self.stream_command(execd, command, cwd=cwd, timeout_s=timeout_s, envs=envs, uid=uid, gid=gid)
        async with aclosing(stream):
            async for event in stream:
                collector.take(event)
        return collector.result(time.monotonic() - begun)

    async def stream_command(
        self,
        execd: Endpoint,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        envs: Mapping[str, str] | None = None,
        uid: int | None = None,
        gid: int | None = None,
        background: bool = False,
    ) -> AsyncGenerator[Event]:
        """What it says while it runs. Leaving early leaves it running: `interrupt_command`."""
        body = asks.command_document(
            command, cwd=cwd, timeout_s=timeout_s, envs=envs or {}, uid=uid, gid=gid, background=background
        )
        async with aclosing(self._events(execd, "run_command", "/command", body, timeout_s)) as events:
            async for event in events:
                yield event
                if background and event.is_end:
                    return

    async def start_command(
        self,
        execd: Endpoint,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout_s: float | None = None,
        envs: Mapping[str, str] | None = None,
        uid: int | None = None,
        gid: int | None = None,
    ) -> str:
        """In the background. Gives the id that `command_status`, `command_logs` and `interrupt_command` take."""
        collector = Collector(0)
        stream = self.stream_command(
            execd, command, cwd=cwd, timeout_s=timeout_s, envs=envs, uid=uid, gid=gid, background=True
        )
        async with aclosing(stream):
            async for event in stream:
                collector.take(event)
        started = collector.result(0.0)
        if started.error or not started.command_id:
            raise StartFailed(f"run_command: {started.error or 'the server did not tell the id of the command'}")
        return started.command_id

    async def command_status(self, execd: Endpoint, command_id: str) -> CommandStatus:
        return await self._ask(asks.command_status(command_id), execd)

    async def command_logs(self, execd: Endpoint, command_id: str, cursor: int = 0) -> CommandLogs:
        """What a command in the background has printed behind the cursor."""
        return await self._ask(asks.command_logs(command_id, cursor), execd)

    async def interrupt_command(self, execd: Endpoint, command_id: str) -> None:
        await self._ask(asks.interrupt_command(command_id), execd)

    async def create_session(self, execd: Endpoint, cwd: str | None = None) -> str:
        """A shell that keeps its directory and its variables from one command to the next."""
        return await self._ask(asks.create_session(cwd), execd)

    async def run_in_session(
        self, execd: Endpoint, session_id: str, command: str, *, cwd: str | None = None, timeout_s: float | None = None
    ) -> CommandResult:
        body: dict[str, Any] = {"command": command}
        body |= {"cwd": cwd} if cwd is not None else {}
        body |= {"timeout": max(1, round(timeout_s * 1000))} if timeout_s is not None else {}
        begun, collector = time.monotonic(), Collector()
        events = self._events(execd, "run_in_session", asks.session_path(session_id), body, timeout_s)
        async with aclosing(events):
            async for event in events:
                collector.take(event)
        return collector.result(time.monotonic() - begun)

    async def delete_session(self, execd: Endpoint, session_id: str) -> None:
        await self._ask(asks.delete_session(session_id), execd)

    # Files.

    async def upload_files(self, execd: Endpoint, files: Sequence[FileUpload]) -> None:
        """Written in this order, directories above them made. What is there is replaced."""
        if not files:
            return
        sending = self._sending("upload_files", "POST", "/files/upload", execd, content=_multipart(files))
        async with self._http.stream(sending, None) as incoming:
            await incoming.check(200, 201, 204)

    @asynccontextmanager
    async def download_file(self, execd: Endpoint, path: str) -> AsyncGenerator[AsyncIterator[bytes]]:
        """In pieces, as they come. Raises FileNotFound."""
        sending = self._sending("download_file", "GET", "/files/download", execd, params=(("path", path),))
        async with self._http.stream(sending, None) as incoming:
            await incoming.check(200)
            yield _whole(incoming)

    async def search_files(self, execd: Endpoint, directory: str, pattern: str) -> list[FileInfo]:
        """Below the directory, those whose names match."""
        return await self._ask(asks.search_files(directory, pattern), execd)

    async def file_info(self, execd: Endpoint, *paths: str) -> dict[str, FileInfo]:
        return await self._ask(asks.file_info(paths), execd)

    async def list_directory(self, execd: Endpoint, path: str, depth: int = 1) -> list[FileInfo]:
        return await self._ask(asks.list_directory(path, depth), execd)

    async def make_directories(self, execd: Endpoint, *paths: str, mode: int = 0o755) -> None:
        await self._ask(asks.make_directories(paths, mode), execd)

    async def remove_directories(self, execd: Endpoint, *paths: str) -> None:
        await self._ask(asks.remove_directories(paths), execd)

    async def remove_files(self, execd: Endpoint, *paths: str) -> None:
        await self._ask(asks.remove_files(paths), execd)

    async def move_files(self, execd: Endpoint, moves: Mapping[str, str]) -> None:
        """From each key to its value. What is there is not replaced."""
        await self._ask(asks.move_files(moves), execd)

    async def replace_in_files(self, execd: Endpoint, changes: Mapping[str, tuple[str, str]]) -> dict[str, int]:
        """By path, what is to be replaced by what; gives how often it was."""
        return await self._ask(asks.replace_in_files(changes), execd)

    async def set_permissions(self, execd: Endpoint, path: str, mode: int, *, owner: str = "", group: str = "") -> None:
        await self._ask(asks.set_permissions(path, mode, owner, group), execd)

    async def metrics(self, execd: Endpoint) -> SandboxMetrics:
        return await self._ask(asks.metrics(), execd)

    # What may be reached from inside.

    async def get_policy(self, egress: Endpoint) -> NetworkPolicy:
        return await self._ask(asks.get_policy(), egress)

    async def set_policy(self, egress: Endpoint, policy: NetworkPolicy) -> None:
        await self._ask(asks.set_policy(policy), egress)

    async def add_rules(self, egress: Endpoint, rules: Sequence[EgressRule]) -> None:
        await self._ask(asks.add_rules(rules), egress)

    async def remove_rules(self, egress: Endpoint, targets: Sequence[str]) -> None:
        await self._ask(asks.remove_rules(targets), egress)

    # How it travels.

    async def _ask(self, ask: Ask[T], endpoint: Endpoint | None = None) -> T:
        content = None if ask.body is None else json.dumps(ask.body).encode()
        sending = self._sending(
            ask.operation, ask.method, ask.path, endpoint, params=ask.params, content=content, is_safe=ask.is_safe
        )
        answer = await self._http.send(sending, self._timeout_s)
        if answer.status not in ask.expected:
            raise answers.refusal(ask.operation, answer)
        return ask.read(ask.operation, answer)

    def _sending(
        self,
        operation: str,
        method: str,
        path: str,
        endpoint: Endpoint | None,
        *,
        params: tuple[tuple[str, str], ...] = (),
        content: bytes | Multipart | None = None,
        is_safe: bool = False,
    ) -> Sending:
        """The key goes to the server alone; to an endpoint below it, too, because that is the server's own proxy."""
        headers: dict[str, str] = {}
        if endpoint is None or endpoint.url.startswith(f"{self._base}/"):
            headers |= self._headers
        if endpoint is not None:
            headers |= endpoint.headers
        if isinstance(content, bytes):
            headers["content-type"] = "application/json"
        url = f"{endpoint.url if endpoint else self._base}{path}"
        return Sending(operation, method, url, headers, params, content, is_safe)

    async def _events(
        self, execd: Endpoint, operation: str, path: str, body: Mapping[str, Any], timeout_s: float | None
    ) -> AsyncGenerator[Event]:
        sending = self._sending(operation, "POST", path, execd, content=json.dumps(body).encode())
        reader = EventReader()
        async with self._http.stream(sending, None if timeout_s is None else timeout_s + _GRACE_S) as incoming:
            await incoming.check(200)
            async with aclosing(incoming.chunks()) as chunks:
                async for chunk in chunks:
                    for event in reader.feed(chunk):
                        yield event
            for event in reader.close():
                yield event


def _multipart(files: Sequence[FileUpload]) -> Multipart:
    """A pair for each file: what it is, and what is in it."""
    parts: list[tuple[str, Part]] = []
    for file in files:
        about: dict[str, Any] = {"path": file.path, "mode": answers.to_digits(file.mode)}
        about |= {name: value for name, value in (("owner", file.owner), ("group", file.group)) if value}
        kind = [("content-type", "application/json")]
        parts.append(("metadata", Part(json.dumps(about), filename="metadata.json", headers=kind)))
        name = file.path.rstrip("/").rpartition("/")[2] or "file"
        safe = re.sub(r"[^ -~]|[\"\\]", "_", name)
        kind = [("content-type", "application/octet-stream")]
        parts.append(("file", Part(_pieces(file.content), filename=safe, headers=kind)))
    return Multipart(parts)


def _pieces(content: object) -> bytes | AsyncIterator[bytes]:
    if isinstance(content, bytes):
        return content
    if isinstance(content, Path):
        return _read(content)
    return _each(content)


async def _read(path: Path) -> AsyncGenerator[bytes]:
    with await asyncio.to_thread(path.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, _PIECE):
            yield piece


async def _each(content: Any) -> AsyncGenerator[bytes]:
    if hasattr(content, "__aiter__"):
        async for piece in content:
            yield piece
        return
    for piece in content:
        yield piece


async def _whole(incoming: AsyncIncoming) -> AsyncGenerator[bytes]:
    """Raises Unavailable when it was cut short."""
    said, seen = incoming.headers.get("content-length", ""), 0
    async with aclosing(incoming.chunks()) as chunks:
        async for chunk in chunks:
            seen += len(chunk)
            yield chunk
    if said.isdecimal() and "content-encoding" not in incoming.headers and int(said) != seen:
        raise Unavailable(f"download_file: {seen} of {said} bytes came")
