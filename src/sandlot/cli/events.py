"""Tell what has happened to sessions, and go on telling with -f. Works while another engine has the data directory."""

import argparse
import asyncio
import json
import os
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sandlot.cli import values
from sandlot.cli.context import Context
from sandlot.cli.screen import printable
from sandlot.model import Event, EventFilter, EventKind

USAGE = "events [-f] [options]"
_LOOK_S = 0.1
_PIECE_BYTES = 256 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="wait for more, until you interrupt it")
    parser.add_argument("--after", metavar="N", help="only those behind the event with this offset")
    parser.add_argument("--session", metavar="ID", help="only those of this session")


async def run(context: Context) -> int:
    args, screen = context.args, context.screen
    after = None if args.after is None else values.count("--after", args.after)
    request = EventFilter(after, args.session, args.follow)
    async for event in _told(context, request):
        # One document a line, so that a reader need not wait for an end that does not come.
        screen.line(json.dumps(_document(event)) if screen.as_json else _text(event))
    return 0


async def _told(context: Context, request: EventFilter) -> AsyncGenerator[Event]:
    """Of a server by itself; of a data directory by the copy that is kept in it, which needs no engine."""
    if context.remote is None:
        async for event in _wanted(context.settings.data / "events.jsonl", request):
            yield event
        return
    async with context.host() as host, host.events(request) as stream:
        async for event in stream:
            yield event


async def _wanted(path: Path, request: EventFilter) -> AsyncGenerator[Event]:
    last, is_first = request.after, True
    copy = Copy(path)
    try:
        while True:
            for event in copy.read():
                if last is not None and event.offset <= last:
                    continue
                if is_first and last is not None and event.offset > last + 1 and event.kind is not EventKind.GAP:
                    yield Event(event.offset - 1, 0.0, "", EventKind.GAP, "older events are not kept any more")
                last, is_first = event.offset, False
                if request.session_id in (None, event.session_id) or event.kind is EventKind.GAP:
                    yield event
            if not request.follow:
                return
            await asyncio.sleep(_LOOK_S)
    finally:
        copy.close()


class Copy:
    """The copy of the journal's events that an engine keeps for others: two files, the older one full. It may be cut,
    or become the older one, while it is read; then what was read before is given again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def read(self) -> Iterator[Event]:
        """What came since the last time."""
        if self._fd < 0:
            yield from self._begin()
        yield from self._go_on()
        if self._fd >= 0 and self._was_replaced():
            yield from self._go_on()  # what was written between the last look and the change
            self.close()
            yield from self._begin()
            yield from self._go_on()

    def _begin(self) -> Iterator[Event]:
        with suppress(FileNotFoundError):
            older = self._path.with_name(self._path.name + ".1").read_bytes()
            yield from filter(None, map(_event, older.splitlines()))
        with suppress(FileNotFoundError):
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)

    def _go_on(self) -> Iterator[Event]:
        while self._fd >= 0 and (piece := os.read(self._fd, _PIECE_BYTES)):
            whole, newline, torn = piece.rpartition(b"\n")
            # A line without an end is read again: it is being written, or will be cut off.
            os.lseek(self._fd, -len(torn), os.SEEK_CUR)
            if not newline:
                return
            yield from filter(None, map(_event, whole.split(b"\n")))

    def _was_replaced(self) -> bool:
        here = os.fstat(self._fd)
        if here.st_size < os.lseek(self._fd, 0, os.SEEK_CUR):
            os.lseek(self._fd, 0, os.SEEK_SET)
        try:
            return self._path.stat().st_ino != here.st_ino
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _event(line: bytes) -> Event | None:
    try:
        fields: dict[str, Any] = json.loads(line)
        fields["kind"] = EventKind(fields["kind"])
        return Event(**fields)
    except (ValueError, TypeError, KeyError):
        return None


def _document(event: Event) -> dict[str, object]:
    return {
        "offset": event.offset,
        "at": event.at,
        "session_id": event.session_id,
        "kind": event.kind,
        "detail": event.detail,
    }


def _text(event: Event) -> str:
    moment = datetime.fromtimestamp(event.at, UTC).strftime("%Y-%m-%d %H:%M:%S")
    words = (str(event.offset), moment, event.session_id or "-", event.kind, event.detail)
    return "  ".join(printable(word) for word in words).rstrip()
