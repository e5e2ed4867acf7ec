"""Commands of a sandbox: run them, leave them running, talk to them."""

import codecs
import signal
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal, cast, overload

from sandlot.contracts import CallStream, Host
from sandlot.model import (
    NO_LIMITS,
    CallNotFound,
    CallOutput,
    CallRecord,
    CallRequest,
    CallResult,
    CallState,
    InvalidArgument,
    Resources,
    SandlotError,
    Stream,
    limits,
)
from sandlot.sdk.caller import call_back
from sandlot.sdk.client import Client, in_portal, iterate_in_portal
from sandlot.sdk.content import to_bytes
from sandlot.sdk.results import CommandOutput, CommandResult

# For a command that is given as text: the first that the session has, whatever its PATH is.
_SHELLS = ("/bin/bash", "/bin/sh")
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
        result: CallResult | None = None
        # To its very end: what is left in the middle has to be closed by someone, later.
        async for event in stream:
            if isinstance(event, CallOutput):
                self._kept[event.stream].append(event.data)
                if self._decoders:
                    await self._say(event.stream, event.data)
            elif isinstance(event, CallResult):
                result = event
        assert result is not None, "a stream ends with its result"
        for name in self._decoders:
            await self._say(name, b"", final=True)
        stdout, stderr = (b"".join(pieces) for pieces in self._kept.values())
        return CommandResult(result, stdout, stderr)

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
        given = to_bytes(data)
        async with (await self.client.host()).attach(self.sandbox_id, self.id) as stream:
            await stream.write_stdin(given)

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
        self._knows_shell = False

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
        resources: Resources = NO_LIMITS,
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
        resources: Resources = NO_LIMITS,
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
        resources: Resources = NO_LIMITS,
        id: str | None = None,
    ) -> CommandResult | AsyncCommand:
        """Run a command to its end, or leave it running with `background=True`: then its `wait` tells all about it,
        also why it could not be run.

        Text is run by the session's shell, a list is a program with its arguments. `timeout` is in seconds and ends the
        command with all it started; 0 or None lets it run. `stdin` is what it reads: text, bytes, or with `background`
        True, to `send_stdin` later. `on_stdout` and `on_stderr` hear text while it comes, in the thread or on the loop
        of whoever called; what they raise ends the command and comes out of here. `check=True` raises CommandFailed
        unless the exit code is 0. `resources` are limits of the command, below those of the sandbox. An `id` that is
        given twice runs once: the second call gets what the first one got.
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
            argv=(_SHELLS[self._shell], "-c", cmd) if isinstance(cmd, str) else _words(cmd),
            cwd=cwd,
            envs=envs or {},
            user=user,
            timeout_s=timeout or None,
            stdin=stdin is not False,
            output_bytes_max=output_max,
            detach=background,
            call_id=id,
            resources=resources,
        )
        given = None if isinstance(stdin, bool) else to_bytes(stdin)
        is_text = isinstance(cmd, str)
        if background:
            return await self.client.run(self._start(request, given, is_text=is_text))
        output = _Output(on_stdout, on_stderr)
        result = await self.client.run(self._run(request, given, output, is_text=is_text))
        return result.check() if check else result

    async def _run(self, request: CallRequest, stdin: bytes | None, output: _Output, *, is_text: bool) -> CommandResult:
        host = await self.client.host()
        if request.call_id is not None:
            with suppress(CallNotFound):
                async with host.attach(self._sandbox_id, request.call_id) as stream:
                    return await output.follow(stream)
            request = await self._find_shell(host, request) if is_text else request
        while True:
            async with host.call(request) as stream:
                result = await (output.follow(stream) if stdin is None else _feed(stream, stdin, output))
            shell = self._next_shell(request, result.call) if is_text else None
            if shell is None:
                return result
            request = _with_shell(request, shell)

    async def _start(self, request: CallRequest, stdin: bytes | None, *, is_text: bool) -> AsyncCommand:
        host = await self.client.host()
        if request.call_id is not None:
            with suppress(CallNotFound):
                async with host.attach(self._sandbox_id, request.call_id):
                    return AsyncCommand(self.client, self._sandbox_id, request.call_id)
        request = await self._find_shell(host, request) if is_text else request
        async with host.call(request) as stream:
            try:
                if stdin is not None:
                    await stream.write_stdin(stdin)
                    await stream.close_stdin()
            except BaseException:  # cancelled, for one; then raised again
                if request.call_id is None:  # nobody could find it
                    with suppress(SandlotError):
                        await stream.signal(signal.SIGKILL)
                raise
            return AsyncCommand(self.client, self._sandbox_id, stream.call_id)

    # ---- the shell of the session ------------------------------------------------------------------------------

    async def _find_shell(self, host: Host, request: CallRequest) -> CallRequest:
        """Which shell there is has to be known before, where nobody waits for the end, or where an id can run once."""
        while not self._knows_shell:
            argv = (_SHELLS[self._shell], "-c", ":")
            probe = replace(request, argv=argv, call_id=None, stdin=False, detach=False)
            async with host.call(probe) as stream:
                self._next_shell(probe, await stream.result())
        return _with_shell(request, _SHELLS[self._shell])

    def _next_shell(self, request: CallRequest, result: CallResult) -> str | None:
        """Which one to try when the shell is not there, so that nothing has run."""
        at = _SHELLS.index(request.argv[0])
        is_missing = result.exit_code == _EXIT_NOT_FOUND and bool(result.reason)
        if not is_missing or at + 1 == len(_SHELLS):
            self._knows_shell = True
            return None
        self._shell = max(self._shell, at + 1)
        return _SHELLS[at + 1]

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


def _words(cmd: object) -> tuple[str, ...]:
    words = tuple(cast("Sequence[object]", cmd)) if isinstance(cmd, Sequence) and not isinstance(cmd, bytes) else (cmd,)
    for word in words:
        if not isinstance(word, str):
            raise InvalidArgument(
                f"a command is text or a list of texts, not {type(word).__name__}", next_step="give each word as text"
            )
    return cast("tuple[str, ...]", words)


def _with_shell(request: CallRequest, shell: str) -> CallRequest:
    return replace(request, argv=(shell, *request.argv[1:]))


async def _feed(stream: CallStream, stdin: bytes, output: _Output) -> CommandResult:
    """Both at once: a command that prints before it has read all is heard meanwhile."""
    import asyncio  # as everywhere in the SDK, not before it is used

    async def write() -> None:
        await stream.write_stdin(stdin)
        await stream.close_stdin()

    writing = asyncio.get_running_loop().create_task(write(), name="stdin")
    try:
        result = await output.follow(stream)
        await writing
        return result
    finally:
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
