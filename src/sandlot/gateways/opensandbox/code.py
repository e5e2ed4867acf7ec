"""ExecD's code contexts: programs of the session that remember, and what a run of code prints, shows and comes to."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

from sandlot.contracts import CodeStream, Host
from sandlot.gateways.opensandbox.commands import PING_S, STREAM, closing, directory
from sandlot.gateways.opensandbox.events import frame
from sandlot.gateways.opensandbox.schema import Reader, Refused
from sandlot.gateways.web import Answer, Request
from sandlot.model import (
    CodeContext,
    CodeError,
    CodeEvent,
    CodeOutput,
    CodeRequest,
    CodeResult,
    CodeStarted,
    CodeStatus,
    CodeValue,
    ContextRequest,
    NotFound,
    SessionNotFound,
    check_language,
)

_SHELL: Final = "bash"  # where nobody says a language
_WHY: Final[Mapping[CodeStatus, str]] = {
    CodeStatus.INTERRUPTED: "it was interrupted",
    CodeStatus.TIMEOUT: "its time was up",
    CodeStatus.LOST: "its context has ended with it",
}


class Code:
    def __init__(self, host: Host, user: str) -> None:
        self._host = host
        self._user = user

    async def create(self, request: Request) -> Answer:
        body = Reader(await request.document())
        session_id = request.values["id"]
        cwd = body.text("cwd")
        found = await directory(self._host, session_id, cwd, self._user) if cwd else None
        asked = ContextRequest(session_id, body.text("language") or _SHELL, cwd=found, user=self._user)
        return Answer.json(_told(await self._host.create_context(asked)))

    async def _of(self, request: Request) -> list[CodeContext]:
        """Those of the language that is asked for, or all."""
        found = await self._host.contexts(request.values["id"])
        if not (language := request.one("language")):
            return list(found)
        return [one for one in found if one.language == check_language(language)]

    async def list_contexts(self, request: Request) -> Answer:
        return Answer.json([_told(one) for one in await self._of(request)])

    async def delete_language(self, request: Request) -> Answer:
        if not request.one("language"):
            raise Refused("MISSING_QUERY", "of which language? give one")
        for one in await self._of(request):
            await self._host.delete_context(request.values["id"], one.context_id)
        return Answer()

    async def _find(self, request: Request, context_id: str) -> CodeContext:
        for one in await self._host.contexts(request.values["id"]):
            if one.context_id == context_id:
                return one
        raise _unknown(context_id)

    async def get(self, request: Request) -> Answer:
        return Answer.json(_told(await self._find(request, request.values["context"])))

    async def delete(self, request: Request) -> Answer:
        found = await self._find(request, request.values["context"])
        await self._host.delete_context(found.session_id, found.context_id)
        return Answer()

    async def interrupt(self, request: Request) -> Answer:
        """By the id of the context, which is what `init` tells."""
        if not request.one("id"):
            raise Refused("MISSING_QUERY", "which context? give its id")
        found = await self._find(request, request.one("id"))
        await self._host.interrupt_context(found.session_id, found.context_id)
        return Answer()

    async def run(self, request: Request) -> Answer:
        body = Reader(await request.document())
        code = body.text("code")
        if not code.strip():
            raise Refused("INVALID_REQUEST_BODY", "the code is empty")
        context = body.inner("context") or Reader({}, "context")
        context_id = context.text("id") or None
        language = None if context_id else context.text("language") or _SHELL
        asked = CodeRequest(request.values["id"], code, language, context_id, timeout_s=None)
        stack = AsyncExitStack()
        try:
            stream = await stack.enter_async_context(self._host.run_code(asked))
        except SessionNotFound:
            raise
        except NotFound as error:
            raise _unknown(context_id or "") from error
        return Answer(200, closing(stack, _tell(stream)), STREAM)


def _unknown(context_id: str) -> Refused:
    return Refused("CONTEXT_NOT_FOUND", f"there is no context {context_id[:80]}", status=404)


def _told(context: CodeContext) -> dict[str, str]:
    return {"id": context.context_id, "language": context.language}


async def _tell(stream: CodeStream) -> AsyncGenerator[bytes]:
    """With a sign of life where nothing is said."""
    source = aiter(stream)
    waiting = asyncio.ensure_future(_next(source))
    try:
        while True:
            done, _ = await asyncio.wait([waiting], timeout=PING_S)
            if not done:
                yield frame("ping", text="pong")
                continue
            event = waiting.result()
            if event is None:
                return
            waiting = asyncio.ensure_future(_next(source))
            yield _frames(event)
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _next(source: AsyncIterator[CodeEvent]) -> CodeEvent | None:
    return await anext(source, None)


def _frames(event: CodeEvent) -> bytes:
    if isinstance(event, CodeStarted):
        begun = frame("init", text=event.context_id) + frame("ping", text="pong")
        return begun + frame("execution_count", execution_count=event.count)
    if isinstance(event, CodeOutput):
        return frame(str(event.stream), text=event.text)
    if isinstance(event, CodeValue):
        return frame("result", results=_shown(event))
    if isinstance(event, CodeError):
        return _error(event.name, event.value, event.traceback.splitlines())
    return _end(event)


def _shown(value: CodeValue) -> dict[str, Any]:
    return {"text" if kind == "text/plain" else kind: data for kind, data in value.data.items()}


def _error(name: str, value: str, traceback: list[str]) -> bytes:
    return frame("error", error={"ename": name, "evalue": value, "traceback": traceback})


def _end(result: CodeResult) -> bytes:
    """An error that the code raised was told already; what came from outside is told here."""
    told = b""
    if result.truncated:
        told += frame("stderr", text="[something that it printed or showed was too large, and is not here]\n")
    if why := _WHY.get(result.status):
        told += _error(str(result.status), result.reason or why, [])
    return told + frame("execution_complete", execution_time=round(result.duration_s * 1000))
