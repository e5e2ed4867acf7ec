"""Code of a sandbox: run in contexts that remember."""

import builtins
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

from sandlot.contracts import CodeStream
from sandlot.model import (
    PYTHON,
    CodeContext,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeValue,
    ContextRequest,
    NotFound,
    Stream,
    limits,
)
from sandlot.sdk.caller import call_back
from sandlot.sdk.client import Client, in_portal, iterate_in_portal
from sandlot.sdk.code_results import Execution, Shown
from sandlot.sdk.commands import OnOutput

OnResult = Callable[[Shown], object]
OnError = Callable[[CodeError], object]


@dataclass(frozen=True, slots=True)
class _Ears:
    """Who listens while it runs."""

    on_stdout: OnOutput | None = None
    on_stderr: OnOutput | None = None
    on_result: OnResult | None = None
    on_error: OnError | None = None

    async def follow(self, stream: CodeStream) -> Execution:
        text: dict[Stream, list[str]] = {Stream.STDOUT: [], Stream.STDERR: []}
        tell = {Stream.STDOUT: self.on_stdout, Stream.STDERR: self.on_stderr}
        shown: list[Shown] = []
        error: CodeError | None = None
        result: CodeResult | None = None
        async for event in stream:
            if isinstance(event, CodeOutput):
                text[event.stream].append(event.text)
                if (listener := tell[event.stream]) is not None:
                    await call_back(listener, event.text)
            elif isinstance(event, CodeValue):
                shown.append(Shown(event.data, event.is_main))
                if self.on_result is not None:
                    await call_back(self.on_result, shown[-1])
            elif isinstance(event, CodeError):
                error = event
                if self.on_error is not None:
                    await call_back(self.on_error, event)
            elif isinstance(event, CodeResult):
                result = event
        assert result is not None, "a stream ends with its result"
        return Execution(result, "".join(text[Stream.STDOUT]), "".join(text[Stream.STDERR]), tuple(shown), error)


class AsyncRun:
    """A run that was left going. It goes on whether or not anyone holds this; `sandbox.code.connect` finds it."""

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
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        check: bool = False,
    ) -> Execution:
        """How it ended, with all that it told from the beginning. Raises CodeFailed with `check`."""
        ears = _Ears(on_stdout, on_stderr, on_result, on_error)
        async with (await self.client.host()).attach_code(self.sandbox_id, self.id) as stream:
            done = await ears.follow(stream)
        return done.check() if check else done

    @iterate_in_portal
    async def events(self) -> AsyncGenerator[CodeEvent]:
        """What it tells, from the beginning, until it ends."""
        async with (await self.client.host()).attach_code(self.sandbox_id, self.id) as stream:
            async for event in stream:
                yield event


class AsyncContext:
    """One context. It goes on whether or not anyone holds this; `sandbox.code.context` finds it."""

    def __init__(self, client: Client, sandbox_id: str, id: str) -> None:
        self.client = client
        self.sandbox_id = sandbox_id
        self.id = id

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sandbox_id!r}, {self.id!r})"

    async def run(
        self,
        code: str,
        *,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        check: bool = False,
        output_max: int = limits.CODE_OUTPUT_BYTES,
        id: str | None = None,
    ) -> Execution:
        """As `sandbox.run_code` does, here."""
        return await AsyncCode(self.client, self.sandbox_id).run(
            code,
            context=self.id,
            envs=envs,
            timeout=timeout,
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            on_result=on_result,
            on_error=on_error,
            check=check,
            output_max=output_max,
            id=id,
        )

    @in_portal
    async def info(self) -> CodeContext:
        """How it is. Raises NotFound when it was removed."""
        found = await (await self.client.host()).contexts(self.sandbox_id)
        for context in found:
            if context.context_id == self.id:
                return context
        raise NotFound(f"sandbox {self.sandbox_id} has no context {self.id}", next_step="make one")

    @in_portal
    async def interrupt(self) -> bool:
        """As Ctrl-C does; it remembers what it knew. False when nothing runs."""
        return await (await self.client.host()).interrupt_context(self.sandbox_id, self.id)

    @in_portal
    async def restart(self) -> CodeContext:
        """It forgets everything; what runs is lost."""
        return await (await self.client.host()).restart_context(self.sandbox_id, self.id)

    @in_portal
    async def remove(self) -> None:
        """What runs in it is lost."""
        await (await self.client.host()).delete_context(self.sandbox_id, self.id)


class AsyncCode:
    """`sandbox.code`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self.client = client
        self._sandbox_id = sandbox_id

    async def run(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        on_result: OnResult | None = None,
        on_error: OnError | None = None,
        check: bool = False,
        output_max: int = limits.CODE_OUTPUT_BYTES,
        id: str | None = None,
    ) -> Execution:
        """Run code to its end, and tell what it printed and showed.

        It remembers: variables stay for the next run in the same context. Without a `context`, which is the id of one,
        each `language` has a default one: `python`, `bash`, `javascript`. `envs` are for this run alone. `timeout` is
        in seconds and interrupts it; 0 or None lets it run. The functions hear while it runs, in the thread or on the
        loop of whoever called; what they raise interrupts it and comes out of here. `check=True` raises CodeFailed
        unless it succeeds. An `id` that is given twice runs once.

        Raises CapabilityNotSupported where the sandbox has no program for the language, InvalidState when the context
        is lost, NotFound when there is none, LimitReached.
        """
        request = self._request(code, language, context, envs, timeout, output_max, id, detach=False)
        ears = _Ears(on_stdout, on_stderr, on_result, on_error)
        done = await self.client.run(self._run(request, ears))
        return done.check() if check else done

    def _request(
        self,
        code: str,
        language: str | None,
        context: str | None,
        envs: Mapping[str, str] | None,
        timeout: float | None,
        output_max: int,
        id: str | None,
        *,
        detach: bool,
    ) -> CodeRequest:
        return CodeRequest(
            self._sandbox_id,
            code,
            language=language,
            context_id=context,
            envs=envs or {},
            timeout_s=timeout or None,
            output_bytes_max=output_max,
            detach=detach,
            execution_id=id,
        )

    async def _run(self, request: CodeRequest, ears: _Ears) -> Execution:
        async with (await self.client.host()).run_code(request) as stream:
            return await ears.follow(stream)

    @in_portal
    async def start(
        self,
        code: str,
        *,
        language: str | None = None,
        context: str | None = None,
        envs: Mapping[str, str] | None = None,
        timeout: float | None = limits.CALL_TIMEOUT_S,
        output_max: int = limits.CODE_OUTPUT_BYTES,
        id: str | None = None,
    ) -> AsyncRun:
        """Begin it and leave it going; it waits for its turn. Raises as `run` does."""
        request = self._request(code, language, context, envs, timeout, output_max, id, detach=True)
        async with (await self.client.host()).run_code(request) as stream:
            return AsyncRun(self.client, self._sandbox_id, stream.execution_id)

    @in_portal
    async def connect(self, id: str) -> AsyncRun:
        """A run that someone else began, or that has ended. Raises NotFound when it is kept no longer."""
        async with (await self.client.host()).attach_code(self._sandbox_id, id):
            return AsyncRun(self.client, self._sandbox_id, id)

    @in_portal
    async def create_context(
        self,
        language: str = PYTHON,
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        id: str | None = None,
    ) -> AsyncContext:
        """Make one, with a directory and variables of its own. Raises CapabilityNotSupported where the sandbox has no
        program for the language, InvalidArgument, LimitReached."""
        request = ContextRequest(self._sandbox_id, language, cwd, envs or {}, user, id)
        made = await (await self.client.host()).create_context(request)
        return AsyncContext(self.client, self._sandbox_id, made.context_id)

    async def context(self, id: str) -> AsyncContext:
        """The handle on one that there is; whether there is, is found out when it is used."""
        return AsyncContext(self.client, self._sandbox_id, id)

    @in_portal
    async def contexts(self) -> builtins.list[CodeContext]:
        """Oldest first, also those that are lost."""
        return list(await (await self.client.host()).contexts(self._sandbox_id))
