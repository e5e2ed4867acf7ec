"""Verbs as a client asks them: values in, values out."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from sandlot.model import new_call_id
from sandlot.rpc.convert import to_message
from sandlot.rpc.link import Link, follow
from sandlot.rpc.messages import PROCEDURES, AnyMessage
from sandlot.rpc.verbs import pack_arguments, unpack_answer

# What makes a repeated request the same request. Where a caller gives none it gets one here, so that it can be sent
# again when the connection ends before the answer.
IDS: Mapping[str, str] = {
    "CreateSession": "request_id",
    "CreateSnapshot": "request_id",
    "TurnComplete": "request_id",
    "ForkSession": "request_id",
    "LaunchProcess": "process_id",
    "OpenTerminal": "terminal_id",
    "CreateContext": "context_id",
}


class Asking:
    def __init__(self, link: Link) -> None:
        self.link = link

    async def value(self, name: str, request: Any) -> Any:
        """A verb that takes one value of the model."""
        field = IDS.get(name)
        if field is not None and getattr(request, field) is None:
            request = replace(request, **{field: new_call_id()})
        return unpack_answer(await self.link.ask(name, to_message(request)))

    async def named(self, name: str, /, **arguments: Any) -> Any:
        """A verb that takes arguments."""
        return unpack_answer(await self.link.ask(name, pack_arguments(PROCEDURES[name].request, arguments)))

    @asynccontextmanager
    async def stream(
        self, name: str, message: AnyMessage, *, repeatable: bool = True
    ) -> AsyncGenerator[tuple[AnyMessage, AsyncIterator[AnyMessage]]]:
        """Its first message, and those behind it. It is not opened again when it is cut: raises Unavailable then."""
        incoming, first = await self.link.begin(name, message, repeatable=repeatable)
        try:
            yield first, incoming.rest(self.link)
        finally:
            incoming.close()

    @asynccontextmanager
    async def resumed(self, name: str, request: Any, position: str) -> AsyncGenerator["Resumed"]:
        """One that goes on behind what is known, as `position` of the request says."""
        incoming, _ = await self.link.begin(name, to_message(request))
        stream = Resumed(request, position)
        try:
            stream.messages = follow(self.link, name, incoming, stream.again)
            yield stream
        finally:
            incoming.close()


class Resumed:
    """A stream that knows how far it was read."""

    messages: AsyncIterator[AnyMessage]

    def __init__(self, request: Any, position: str) -> None:
        self._request = request
        self._position = position

    def reached(self, position: Any) -> None:
        self._request = replace(self._request, **{self._position: position})

    def again(self) -> AnyMessage:
        return to_message(self._request)
