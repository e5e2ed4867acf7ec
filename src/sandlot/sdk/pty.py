"""Terminals of a sandbox: programs that go on while their clients come and go."""

import builtins
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack

from sandlot.contracts import TerminalStream
from sandlot.model import (
    CallResult,
    InputMode,
    InvalidArgument,
    Terminal,
    TerminalAttach,
    TerminalEnded,
    TerminalEvent,
    TerminalInput,
    TerminalKill,
    TerminalOutput,
    TerminalRequest,
    TerminalResize,
    TerminalSize,
    limits,
)
from sandlot.sdk.client import Client, in_portal, iterate
from sandlot.sdk.content import to_bytes


class AsyncPty:
    """One terminal. It goes on whether or not anyone holds this; `sandbox.pty.get` finds it."""

    def __init__(self, client: Client, sandbox_id: str, id: str) -> None:
        self.client = client
        self.sandbox_id = sandbox_id
        self.id = id
        self._client_id = f"c-{secrets.token_hex(8)}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sandbox_id!r}, {self.id!r})"

    @in_portal
    async def info(self) -> Terminal:
        """All that can be told of it, also when it has ended."""
        return await (await self.client.host()).get_terminal(self.sandbox_id, self.id)

    @in_portal
    async def read(self, *, offset: int = 0) -> TerminalOutput:
        """What is kept of its output now, from a byte on, without waiting for more. The next read goes on at `offset`
        plus the length of its data; one that comes too late begins where the window does."""
        host = await self.client.host()
        end = (await host.get_terminal(self.sandbox_id, self.id)).end
        found: list[TerminalOutput] = []
        if offset < end:
            async with host.attach_terminal(TerminalAttach(self.sandbox_id, self.id, offset)) as stream:
                async for event in stream:
                    if isinstance(event, TerminalOutput):
                        found = _joined(found, event)
                        if event.offset + len(event.data) >= end:
                            break
                    elif isinstance(event, TerminalEnded):
                        break
        data = b"".join(event.data for event in found)
        return TerminalOutput(found[0].offset if found else max(offset, end), data)

    async def attach(self, *, offset: int | None = 0, input: str = InputMode.WATCH) -> AsyncGenerator[TerminalEvent]:
        """What it prints and what happens to it, until it ends; leave the loop to end the reading. From a byte on, or
        with None what comes from now on. `input`: `watch`; `hold`, then this handle alone may write as long as it
        reads; or `take`, which takes that from another one. Raises Conflict when another one holds it."""
        request = TerminalAttach(self.sandbox_id, self.id, offset, _mode(input), self._client_id)
        opened = await self.client.run(self._opened(request))
        return iterate(self.client, _events(*opened))

    async def _opened(self, request: TerminalAttach) -> tuple[AsyncExitStack, TerminalStream]:
        # Entered at once: it holds the input before the first event is asked for.
        stack = AsyncExitStack()
        return stack, await stack.enter_async_context((await self.client.host()).attach_terminal(request))

    async def output(self, *, offset: int | None = 0) -> AsyncGenerator[bytes]:
        """What it prints, until it ends. Bytes are missing where this reads more slowly than the window moves."""
        opened = await self.client.run(self._opened(TerminalAttach(self.sandbox_id, self.id, offset)))
        return iterate(self.client, _output(*opened))

    @in_portal
    async def write(self, data: str | bytes) -> None:
        """As if it were typed: a line ends with a carriage return. Waits while the program does not read. Raises
        Conflict while another one holds the input."""
        given, host = to_bytes(data), await self.client.host()
        for start in range(0, len(given), limits.TERMINAL_INPUT_BYTES_MAX):
            piece = given[start : start + limits.TERMINAL_INPUT_BYTES_MAX]
            await host.write_terminal(TerminalInput(self.sandbox_id, self.id, piece, self._client_id))

    @in_portal
    async def resize(self, rows: int, columns: int) -> None:
        """Raises as writing does."""
        size = TerminalSize(rows, columns)
        await (await self.client.host()).resize_terminal(
            TerminalResize(self.sandbox_id, self.id, size, self._client_id)
        )

    @in_portal
    async def wait(self) -> CallResult:
        """How it ended, once it has. Raises Unavailable when it was lost."""
        async with (await self.client.host()).attach_terminal(TerminalAttach(self.sandbox_id, self.id, None)) as stream:
            result: CallResult | None = None
            async for event in stream:
                if isinstance(event, TerminalEnded):
                    result = event.result
        assert result is not None, "a stream ends with its end"
        return result

    @in_portal
    async def kill(self, signal: int | None = None) -> None:
        """End it and all that it started, or send it a signal. One that has ended is fine."""
        await (await self.client.host()).kill_terminal(TerminalKill(self.sandbox_id, self.id, signal))


class AsyncTerminals:
    """`sandbox.pty`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    @in_portal
    async def open(
        self,
        cmd: str | Sequence[str] = (),
        *,
        rows: int = 24,
        columns: int = 80,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        window: int = limits.TERMINAL_WINDOW_BYTES,
        id: str | None = None,
    ) -> AsyncPty:
        """Open a terminal: with a login shell, a program with its arguments, or text for the shell. It goes on until it
        ends, or for `timeout` seconds. The newest `window` bytes of its output can be read again. An `id` that is
        given twice opens it once. Raises CapabilityNotSupported, SessionPaused, LimitReached, InvalidArgument."""
        request = TerminalRequest(
            self._sandbox_id,
            ("sh", "-c", cmd) if isinstance(cmd, str) else tuple(cmd),
            cwd,
            envs or {},
            user,
            TerminalSize(rows, columns),
            timeout or None,
            window,
            id,
        )
        opened = await (await self.client.host()).open_terminal(request)
        return AsyncPty(self.client, self._sandbox_id, opened.terminal_id)

    @in_portal
    async def get(self, id: str) -> AsyncPty:
        """One that somebody opened before, also when it has ended. Raises CallNotFound."""
        found = await (await self.client.host()).get_terminal(self._sandbox_id, id)
        return AsyncPty(self.client, self._sandbox_id, found.terminal_id)

    @in_portal
    async def list(self) -> builtins.list[Terminal]:
        """Those that live, oldest first."""
        return [*await (await self.client.host()).terminals(self._sandbox_id)]


async def _events(stack: AsyncExitStack, stream: TerminalStream) -> AsyncGenerator[TerminalEvent]:
    async with stack:
        async for event in stream:
            yield event


async def _output(stack: AsyncExitStack, stream: TerminalStream) -> AsyncGenerator[bytes]:
    async with stack:
        async for event in stream:
            if isinstance(event, TerminalOutput):
                yield event.data


def _joined(found: list[TerminalOutput], event: TerminalOutput) -> list[TerminalOutput]:
    """One piece more; behind a hole it begins anew."""
    if found and found[-1].offset + len(found[-1].data) != event.offset:
        return [event]
    return [*found, event]


def _mode(text: str) -> InputMode:
    try:
        return InputMode(text)
    except ValueError:
        raise InvalidArgument(f"input must be one of {', '.join(InputMode)}, not {text!r}") from None
