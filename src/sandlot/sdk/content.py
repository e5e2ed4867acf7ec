"""What users give as content: of a file, or of a standard input."""

from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Iterator
from typing import Protocol, cast, runtime_checkable

from sandlot.model import InvalidArgument
from sandlot.sdk.caller import call_back, call_blocking

_PIECE_BYTES = 1 << 20
_END = object()


@runtime_checkable
class Readable(Protocol):
    """A file object, opened in text or binary mode."""

    def read(self, size: int, /) -> str | bytes: ...


Content = str | bytes | bytearray | memoryview | Readable | Iterable[bytes] | AsyncIterable[bytes]


async def pieces_of(data: Content) -> AsyncGenerator[bytes]:
    """Asked for where the user is. Raises InvalidArgument for what has no bytes."""
    if isinstance(data, str | bytes | bytearray | memoryview):
        yield to_bytes(data)
    elif isinstance(data, AsyncIterable):
        pieces = aiter(data)
        while (piece := await call_back(anext, pieces, _END)) is not _END:
            yield to_bytes(piece)
    elif isinstance(data, Readable):
        while piece := await call_blocking(data.read, _PIECE_BYTES):
            yield to_bytes(piece)
    elif isinstance(data, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - not everyone checks types
        source = cast("Iterator[object]", iter(data))
        while (piece := await call_blocking(next, source, _END)) is not _END:
            yield to_bytes(piece)
    else:
        raise _refusal(data)


def to_bytes(piece: object) -> bytes:
    """Raises InvalidArgument for what has no bytes."""
    if isinstance(piece, bytes):
        return piece
    if isinstance(piece, str):
        try:
            return piece.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"text cannot be encoded: {error.reason}", next_step="give bytes") from None
    if isinstance(piece, bytearray | memoryview):
        return bytes(cast("bytearray", piece))
    raise _refusal(piece)


def _refusal(what: object) -> InvalidArgument:
    return InvalidArgument(
        f"content comes as text or bytes, not as {type(what).__name__}",
        next_step="give text or bytes; a file also takes an open file, or pieces of those",
    )
