"""The head of an answer and its body in one write: two would wake whoever waits twice, the first time for nothing."""

import asyncio

from sandlot.model import limits

_JOINED_BYTES_MAX = 64 * limits.KIB  # more is not copied
FOLLOWS = "sandlot.follows"
"""In the message that begins an answer: its body comes at once."""
HOLD = "sandlot.hold"
"""In the scope of a request: what is called then."""


class Joining:
    """What uvicorn asks of a transport."""

    __slots__ = ("_head", "_holds", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._holds = False
        self._head = b""

    def hold(self) -> None:
        """What is written next waits for what is written then."""
        self._holds = True

    def write(self, data: bytes) -> None:
        if self._holds:
            self._holds, self._head = False, data
        elif self._head and len(data) <= _JOINED_BYTES_MAX:
            head, self._head = self._head, b""
            self._transport.write(head + data)
        else:
            self._let_go()
            self._transport.write(data)

    def close(self) -> None:
        self._let_go()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def _let_go(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
