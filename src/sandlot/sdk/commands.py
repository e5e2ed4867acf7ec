"""Commands of a sandbox: run them, leave them running, talk to them."""

import codecs
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, overload

from sandlot.contracts import CallStream, Host
from sandlot.model import (
    CallOutput,
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    InvalidArgument,
    Stream,
    limits,
)
from sandlot.sdk.caller import call_back
from sandlot.sdk.client import Client, in_portal, iterate_in_portal
from sandlot.sdk.results import CommandOutput, CommandResult

_SHELLS = ("bash", "sh")  # for a command that is given as text; the first that the session has
_EXIT_NOT_FOUND = 127

OnOutput = Callable[[str], object]


class _Output:
    """Keeps what a command prints, and tells whoever listens, as text that is never cut inside a character."""

    def __init__(self, on_stdout: OnOutput | None, on_stderr: OnOutput | None) -> None:
        self._kept: dict[Stream, list[bytes]] = {Stream.STDOUT: [], Stream.STDERR: []}
        self._tell = {Stream.STDOUT: on_stdout, Stream.STDERR: on_stderr}
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {stream: decoder(errors="replace") for stream, tell in self._tell.items() if tell}

    async def follow(self, stream: CallStream) -> CommandResult:
        async for event in stream:
            if isinstance(event, CallOutput):
                self._kept[event.stream].append(event.data)
                if self._decoders:
                    await self._say(event.stream, event.data)
            elif isinstance(event, CallResult):
                for name in self._decoders:
                    await self._say(name, b"", final=True)
                stdout, stderr = (b"".join(pieces) for pieces in self._kept.values())
                return CommandResult(event, stdout, stderr)
        raise AssertionError("a stream ends with its result")

    async def _say(self, stream: Stream, data: bytes, *, final: bool = False) -> None:
        tell = self._tell[stream]
        if tell is not None and (text := self._decoders[stream].decode(data, final)):
            await call_back(tell, text)


class AsyncCommand:
    """A command that was left running. It goes on whether or not anyone holds this; `commands.connect` finds it."""

    def __init__(self, client: Client, sandbox_id: str, id: str) -> None:
        self.client = client
        self.sandbox_id = sandbox_id
        self.id = id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sandbox_id!r}, {self.id!r})"

    @in_portal
    async def wait(
        self,
        *,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Its result, with all that it printed from the beginning. Raises Unavailable when it was lost, CommandFailed
        with `check`."""
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            result = await _Output(on_stdout, on_stderr).follow(stream)
        return result.check() if check else result

    @iterate_in_portal
    async def output(self) -> AsyncGenerator[CommandOutput]:
        """What it prints, from the beginning, until it ends."""
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            async for event in stream:
                if isinstance(event, CallOutput):
                    yield CommandOutput(event.stream, event.data)

    @in_portal
    async def send_stdin(self, data: str | bytes) -> None:
        """Waits while the command does not read. Raises InvalidState when it was started without `stdin=True`."""
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            await stream.write_stdin(data.encode() if isinstance(data, str) else data)

    @in_portal
    async def close_stdin(self) -> None:
        """The command reads the end of its input."""
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            await stream.close_stdin()

    @in_portal
    async def send_signal(self, number: int) -> None:
        """To it and its process group; one that has ended ignores it."""
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            await stream.signal(number)

    @in_portal
    async def kill(self) -> bool:
        """End it now, and wait until it has. False when it had ended already."""
        host = await self.client.host()
        if await _has_ended(host, self.sandbox_id, self.id):
            return False
        async with host.attach(self.sandbox_id, self.id) as stream:
            await stream.signal(signal.SIGKILL)
            await stream.result()
        return True


async def _has_ended(host: Host, sandbox_id: str, id: str) -> bool:
    return any(call.call_id == id and call.state is not CallState.RUNNING for call in await host.calls(sandbox_id))


class AsyncCommands:
    """`sandbox.commands`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id
        self._shell = 0

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        stdin: str | bytes | bool = False,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        background: Literal[False] = False,
        check: bool = False,
        output_max: int = limits.CALL_OUTPUT_BYTES,
        id: str | None = None,
    ) -> CommandResult: ...

    @overload
    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        stdin: str | bytes | bool = False,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        background: Literal[True],
        check: bool = False,
        output_max: int = limits.CALL_OUTPUT_BYTES,
        id: str | None = None,
    ) -> AsyncCommand: ...

    async def run(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        stdin: str | bytes | bool = False,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        background: bool = False,
        check: bool = False,
        output_max: int = limits.CALL_OUTPUT_BYTES,
        id: str | None = None,
    ) -> CommandResult | AsyncCommand:
        """Run a command to its end, or leave it running with `background=True`.

        Text is run by the session's shell, a list is a program with its arguments. `timeout` is in seconds and ends the
        command with all it started; 0 or None lets it run. `stdin` is what it reads: text, bytes, or with `background`
        True, to `send_stdin` later. `on_stdout` and `on_stderr` hear text while it comes, in the thread or on the loop
        of whoever called. `check=True` raises CommandFailed unless the exit code is 0. An `id` that is given twice runs
        once: the second call gets what the first one got.
        """
        if background and (on_stdout or on_stderr or check):
            raise InvalidArgument(
                "a command in the background has nobody to tell", next_step="give them to its `wait` instead"
            )
        if stdin is True and not background:
            raise InvalidArgument(
                "stdin=True needs background=True, or nobody could send any", next_step="give the input itself"
            )
        request = CallRequest(
            self._sandbox_id,
            argv=(_SHELLS[self._shell], "-c", cmd) if isinstance(cmd, str) else tuple(cmd),
            cwd=cwd,
            envs=envs or {},
            user=user,
            timeout_s=timeout or None,
            stdin=stdin is not False,
            output_bytes_max=output_max,
            detach=background,
            call_id=id,
        )
        given = None if isinstance(stdin, bool) else stdin.encode() if isinstance(stdin, str) else stdin
        if background:
            return await self.client.run(self._start(request, cmd, given))
        result = await self.client.run(self._run(request, cmd, given, _Output(on_stdout, on_stderr)))
        return result.check() if check else result

    async def _run(
        self, request: CallRequest, cmd: str | Sequence[str], stdin: bytes | None, output: _Output
    ) -> CommandResult:
        host = await self.client.host()
        while True:
            async with host.call(request) as stream:
                if stdin is not None:
                    await stream.write_stdin(stdin)
                    await stream.close_stdin()
                result = await output.follow(stream)
            if not self._try_next_shell(cmd, result.call):
                return result
            request = replace(request, argv=(_SHELLS[self._shell], *request.argv[1:]))

    async def _start(self, request: CallRequest, cmd: str | Sequence[str], stdin: bytes | None) -> AsyncCommand:
        host = await self.client.host()
        while True:
            async with host.call(request) as stream:
                # The first sign of life: a program that cannot be run shows itself by then.
                first = await anext(aiter(stream))
                if isinstance(first, CallResult) and self._try_next_shell(cmd, first):
                    request = replace(request, argv=(_SHELLS[self._shell], *request.argv[1:]))
                    continue
                if stdin is not None:
                    await stream.write_stdin(stdin)
                    await stream.close_stdin()
                return AsyncCommand(self.client, self._sandbox_id, stream.call_id)

    def _try_next_shell(self, cmd: str | Sequence[str], result: CallResult) -> bool:
        """Whether the shell was not there, so that nothing ran, and there is another to try."""
        missing = isinstance(cmd, str) and result.exit_code == _EXIT_NOT_FOUND and bool(result.reason)
        if missing and self._shell + 1 < len(_SHELLS):
            self._shell += 1
            return True
        return False

    @in_portal
    async def list(self) -> list[CallRecord]:
        """The commands of the sandbox, oldest first, those that have ended too."""
        return list(await (await self.client.host()).calls(self._sandbox_id))

    @in_portal
    async def connect(self, id: str) -> AsyncCommand:
        """A command that someone else left running, or that has ended. Raises CallNotFound."""
        async with (await self.client.host()).attach(self._sandbox_id, id):
            return AsyncCommand(self.client, self._sandbox_id, id)

    async def send_stdin(self, id: str, data: str | bytes) -> None:
        await AsyncCommand(self.client, self._sandbox_id, id).send_stdin(data)

    async def close_stdin(self, id: str) -> None:
        await AsyncCommand(self.client, self._sandbox_id, id).close_stdin()

    async def kill(self, id: str) -> bool:
        """False when it had ended already. Raises CallNotFound."""
        return await AsyncCommand(self.client, self._sandbox_id, id).kill()
