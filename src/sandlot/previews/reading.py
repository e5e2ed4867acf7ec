"""What a program answers, byte by byte: a head, and a body that ends where the head says. All of it is hostile."""

import re
from collections.abc import AsyncGenerator
from typing import Final

from sandlot.contracts import PortStream
from sandlot.model import Unavailable, limits

_CHUNK: Final = re.compile(rb"([0-9a-fA-F]{1,15})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_LINE_BYTES_MAX: Final = 4096  # of a chunk's first line
_CRLF: Final = b"\r\n"


class Answering:
    """One connection to a program, read in order."""

    def __init__(self, stream: PortStream) -> None:
        self.stream = stream
        self._held = b""
        self.has_said = False  # a byte came, of the answer that is read

    @property
    def is_clean(self) -> bool:
        """Nothing came that was not asked for."""
        return not self._held

    async def _more(self) -> bool:
        data = await self.stream.read(limits.PIECE_BYTES)
        if not data:
            return False
        self.has_said = True
        self._held = self._held + data if self._held else data
        return True

    async def head(self) -> bytes:
        """Without the empty line at its end. Raises Unavailable."""
        at = 0
        while (end := self._held.find(b"\r\n\r\n", at)) < 0:
            if len(self._held) > limits.HEADER_BYTES_MAX:
                raise Unavailable(f"the head of its answer is larger than {limits.HEADER_BYTES_MAX} bytes")
            at = max(0, len(self._held) - 3)
            if not await self._more():
                raise Unavailable("it closed the connection before it had answered")
        if end > limits.HEADER_BYTES_MAX:
            raise Unavailable(f"the head of its answer is larger than {limits.HEADER_BYTES_MAX} bytes")
        head, self._held = self._held[:end], self._held[end + 4 :]
        return head

    async def piece(self, size_max: int | None = None) -> bytes:
        """What is there, at most so much; nothing at the end."""
        if not self._held and not await self._more():
            return b""
        if size_max is None or len(self._held) <= size_max:
            found, self._held = self._held, b""
        else:
            found, self._held = self._held[:size_max], self._held[size_max:]
        return found

    async def _line(self) -> bytes:
        while (end := self._held.find(_CRLF)) < 0 and len(self._held) <= _LINE_BYTES_MAX:
            if not await self._more():
                raise Unavailable("its answer was cut off")
        if not 0 <= end <= _LINE_BYTES_MAX:
            raise Unavailable("a line of its answer is too long")
        line, self._held = self._held[:end], self._held[end + 2 :]
        return line

    async def sized(self, size: int) -> AsyncGenerator[bytes]:
        """Raises Unavailable when less comes."""
        while size:
            piece = await self.piece(size)
            if not piece:
                raise Unavailable("its answer was cut off")
            size -= len(piece)
            yield piece

    async def chunked(self) -> AsyncGenerator[bytes]:
        """Trailers are dropped. Raises Unavailable for what is not chunks."""
        while True:
            match = _CHUNK.fullmatch(await self._line())
            if match is None:
                raise Unavailable("its answer is not in chunks, as it says")
            size = int(match[1], 16)
            if not size:
                break
            async for piece in self.sized(size):
                yield piece
            if await self._line():
                raise Unavailable("a chunk of its answer is longer than it says")
        left = limits.HEADER_BYTES_MAX
        while line := await self._line():
            left -= len(line)
            if left < 0:
                raise Unavailable("too much comes behind its answer")

    async def rest(self) -> AsyncGenerator[bytes]:
        """Until it closes the connection."""
        while piece := await self.piece():
            yield piece
