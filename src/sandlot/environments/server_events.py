"""Server-sent events, as the HTML standard has them, out of pieces that are cut anywhere."""

from collections.abc import AsyncIterable, AsyncIterator
from dataclasses import dataclass

from sandlot.model import LimitReached, limits

EVENT_BYTES_MAX = 4 * limits.MIB


@dataclass(frozen=True, slots=True)
class ServerEvent:
    data: str
    kind: str = "message"
    event_id: str = ""  # the last that was told


async def parse_events(pieces: AsyncIterable[bytes], bytes_max: int = EVENT_BYTES_MAX) -> AsyncIterator[ServerEvent]:
    """An event is whole when an empty line follows; what is left at the end is none. Raises LimitReached for one that
    does not end."""
    data: list[str] = []
    kind, event_id, size = "", "", 0
    async for line in _lines(pieces, bytes_max):
        if not line:
            if data:
                yield ServerEvent("\n".join(data), kind or "message", event_id)
            data, kind, size = [], "", 0
            continue
        size += len(line)
        if size > bytes_max:
            raise _too_long(bytes_max)
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                data.append(value)
            case "event":
                kind = value
            case "id" if "\0" not in value:
                event_id = value
            case _:  # a comment, or what is not known
                pass


async def _lines(pieces: AsyncIterable[bytes], bytes_max: int) -> AsyncIterator[str]:
    """They end with a newline, a return, or both; the two may come in two pieces."""
    rest, at_begin, after_return = bytearray(), True, False
    async for piece in pieces:
        if after_return and piece.startswith(b"\n"):
            piece = piece[1:]
        if piece:
            after_return = False
        rest += piece
        if at_begin and len(rest) >= 3:
            at_begin = False
            if rest.startswith(b"\xef\xbb\xbf"):
                del rest[:3]
        begin = 0
        while (end := _end_of_line(rest, begin)) >= 0:
            yield rest[begin:end].decode(errors="replace")
            begin = end + 1
            if rest[end] == 0x0D:
                if begin == len(rest):
                    after_return = True
                elif rest[begin] == 0x0A:
                    begin += 1
        del rest[:begin]
        if len(rest) > bytes_max:
            raise _too_long(bytes_max)


def _end_of_line(text: bytearray, begin: int) -> int:
    ends = [at for at in (text.find(b"\n", begin), text.find(b"\r", begin)) if at >= 0]
    return min(ends, default=-1)


def _too_long(bytes_max: int) -> LimitReached:
    return LimitReached(f"an event has more than {bytes_max} bytes", next_step="ask for less", limit="event_bytes")
