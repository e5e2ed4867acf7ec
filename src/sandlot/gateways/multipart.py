"""multipart/form-data, part by part, as it comes: nothing is kept but what has not been asked for yet."""

import re
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from typing import Final

from sandlot.model import InvalidArgument, LimitReached

HEAD_BYTES_MAX: Final = 16 << 10
_NAME: Final = re.compile(r'(?:^|;)\s*(name|filename)\s*=\s*("(?:[^"\\]|\\.)*"|[^;\s]*)', re.IGNORECASE)
_BOUNDARY: Final = re.compile(
    r"multipart/form-data\s*;.*\bboundary=(?:\"([^\"]{1,200})\"|([^\s;]{1,200}))", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    filename: str | None
    content: AsyncIterator[bytes]  # to be read before the next part is asked for; what is not read is skipped


def boundary_of(content_type: str) -> bytes:
    """Raises InvalidArgument."""
    if not (found := _BOUNDARY.match(content_type)):
        raise InvalidArgument("the body is no multipart/form-data with a boundary")
    return (found[1] or found[2]).encode("latin-1")


async def read_parts(stream: AsyncIterator[bytes], boundary: bytes) -> AsyncGenerator[Part]:
    """Raises InvalidArgument for what is no such body, or one that ends too early."""
    reader = _Reader(stream, b"\r\n--" + boundary)
    await reader.skip()  # what stands before the first part is nothing
    while await reader.goes_on():
        name, filename = read_head(await reader.head())
        content = reader.content()
        yield Part(name, filename, content)
        async for _rest in content:
            pass
    async for _behind in stream:
        pass


def read_head(head: bytes) -> tuple[str, str | None]:
    for line in head.decode("utf-8", "surrogateescape").split("\r\n"):
        key, colon, value = line.partition(":")
        if colon and key.strip().lower() == "content-disposition":
            found = {match[1].lower(): _unquoted(match[2]) for match in _NAME.finditer(value.partition(";")[2])}
            if "name" in found:
                return found["name"], found.get("filename")
    raise InvalidArgument("a part of the body has no name")


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text


class _Reader:
    def __init__(self, stream: AsyncIterator[bytes], mark: bytes) -> None:
        self._stream = stream
        self._mark = mark
        self._rest = bytearray(b"\r\n")  # the first mark may stand at the very beginning
        self._in_content = True

    async def _more(self) -> None:
        try:
            self._rest += await anext(self._stream)
        except StopAsyncIteration:
            raise InvalidArgument("the body ended in the middle of a part") from None

    async def skip(self) -> None:
        async for _ in self.content():
            pass

    async def content(self) -> AsyncGenerator[bytes]:
        """Up to the next mark, which is taken away. A second time there is nothing."""
        while self._in_content:
            at = self._rest.find(self._mark)
            sure = at if at >= 0 else max(0, len(self._rest) - len(self._mark) + 1)
            piece = bytes(self._rest[:sure])
            del self._rest[:sure]
            if at >= 0:
                del self._rest[: len(self._mark)]
                self._in_content = False
            if piece:
                yield piece
            if at < 0:
                await self._more()

    async def goes_on(self) -> bool:
        """Behind a mark: is there another part?"""
        while len(self._rest) < 2:
            await self._more()
        if self._rest.startswith(b"--"):
            return False
        while (at := self._rest.find(b"\r\n")) < 0:
            self._bound()
            await self._more()
        if self._rest[:at].strip(b" \t"):
            raise InvalidArgument("a boundary of the body has something behind it")
        del self._rest[: at + 2]
        return True

    async def head(self) -> bytes:
        while (at := self._rest.find(b"\r\n\r\n")) < 0:
            self._bound()
            await self._more()
        head = bytes(self._rest[:at])
        del self._rest[: at + 4]
        self._in_content = True
        return head

    def _bound(self) -> None:
        if len(self._rest) > HEAD_BYTES_MAX:
            raise LimitReached(f"the head of a part is longer than {HEAD_BYTES_MAX} bytes", limit="head_bytes")
