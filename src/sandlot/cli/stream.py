"""One command between the program's own streams and a session: bytes in, bytes out, signals, size of the terminal."""

import asyncio
import base64
import dataclasses
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from typing import Protocol

from sandlot.cli.interruption import Interruption
from sandlot.cli.screen import Screen, decoded, is_terminal, printable, writing
from sandlot.cli.terminal import raw, terminal_size
from sandlot.contracts import CallStream, Host
from sandlot.model import CallOutput, CallRequest, CallResult, LimitHit, SandlotError, Stream

_READ_BYTES = 64 * 1024
_RETRY_S = 0.005
_PIPE_BYTES = select.PIPE_BUF  # a pipe that says it has room takes this much without blocking


class Sink(Protocol):
    async def write(self, stream: Stream, data: bytes) -> None: ...


class OwnStreams:
    """Bytes go to our stdout and stderr as they come. The loop never blocks: a full pipe still leaves us Ctrl-C."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._fds = {Stream.STDOUT: sys.stdout.fileno(), Stream.STDERR: sys.stderr.fileno()}

    async def write(self, stream: Stream, data: bytes) -> None:
        fd = self._fds[stream]
        piece = len(data) if stat.S_ISREG(os.fstat(fd).st_mode) else _PIPE_BYTES
        view = memoryview(data)
        ready = select.poll()
        ready.register(fd, select.POLLOUT)
        while view:
            if not ready.poll(0):
                await _wait_writable(fd)
            with writing(stream):
                try:
                    view = view[os.write(fd, view[:piece]) :]
                except BlockingIOError:  # whoever shares it with us made it non-blocking
                    await asyncio.sleep(_RETRY_S)


async def _wait_writable(fd: int) -> None:
    loop = asyncio.get_running_loop()
    writable: asyncio.Future[None] = loop.create_future()
    loop.add_writer(fd, lambda: writable.done() or writable.set_result(None))
    try:
        await writable
    finally:
        loop.remove_writer(fd)


class Collected:
    """Bytes are kept, for one document at the end."""

    def __init__(self) -> None:
        self.streams = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}

    async def write(self, stream: Stream, data: bytes) -> None:
        self.streams[stream] += data

    def document(self) -> dict[str, object]:
        """As text; beside it the exact bytes where text cannot hold them."""
        found: dict[str, object] = {}
        for stream, data in self.streams.items():
            found[str(stream)] = data.decode(errors="replace")
            try:
                data.decode()
            except UnicodeDecodeError:
                found[f"{stream}_base64"] = base64.b64encode(data).decode()
        return found


async def follow(stream: CallStream, sink: Sink) -> CallResult:
    async for event in stream:
        if isinstance(event, CallOutput):
            await sink.write(event.stream, event.data)
        elif isinstance(event, CallResult):
            return event
    raise AssertionError("a stream ends with its result")


async def converse(host: Host, request: CallRequest, sink: Sink, interruption: Interruption) -> CallResult:
    """Run a command to its end. The first signal is passed on to it, the second ends it and the program."""
    async with host.call(request) as stream, _attendant(stream, request, interruption):
        with raw() if request.terminal else nullcontext(), _feeding(stream, request):
            return await follow(stream, sink)


def wants_stdin(*, interactive: bool, tty: bool) -> bool:
    """From a terminal only when asked: a command that waits for keys nobody meant for it looks like one that hangs."""
    return interactive or tty or (sys.stdin is not None and not is_terminal(sys.stdin))


@asynccontextmanager
async def _attendant(stream: CallStream, request: CallRequest, interruption: Interruption) -> AsyncGenerator[None]:
    """Passes on what arrives as a signal: a wish to stop, a new size of the terminal."""
    news: asyncio.Queue[int] = asyncio.Queue()
    asked = False

    def arrived(number: int) -> None:
        nonlocal asked
        if asked:
            interruption.stop(number)
        asked = True
        news.put_nowait(number)

    async def attend() -> None:
        while True:
            number = await news.get()
            with suppress(SandlotError):
                if number == signal.SIGWINCH:
                    size = terminal_size()
                    await stream.resize(size.rows, size.columns)
                else:
                    await stream.signal(number)

    loop = asyncio.get_running_loop()
    task = loop.create_task(attend(), name="attend a call")
    if request.terminal:
        loop.add_signal_handler(signal.SIGWINCH, news.put_nowait, int(signal.SIGWINCH))
    try:
        with interruption.handled_by(arrived):
            yield
    finally:
        if request.terminal:
            loop.remove_signal_handler(signal.SIGWINCH)
        task.cancel()


@contextmanager
def _feeding(stream: CallStream, request: CallRequest) -> Generator[None]:
    """Our stdin goes to the command from a thread of its own: a read of a file or a terminal cannot be awaited."""
    if not request.stdin or sys.stdin is None:
        yield
        return
    loop = asyncio.get_running_loop()
    fd = sys.stdin.fileno()
    over = threading.Event()

    def feed() -> None:
        # When the command or the loop has ended, nobody is left to tell.
        with suppress(SandlotError, RuntimeError, asyncio.CancelledError, OSError):
            while data := os.read(fd, _READ_BYTES):
                if over.is_set():
                    return
                asyncio.run_coroutine_threadsafe(stream.write_stdin(data), loop).result()
            asyncio.run_coroutine_threadsafe(stream.close_stdin(), loop).result()

    # A daemon: it may sit in a read that never returns, and must not keep the program from ending.
    threading.Thread(target=feed, name="stdin", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def report(screen: Screen, session_id: str, result: CallResult, sink: Sink) -> int:
    """Tell how a command ended, and give its exit code."""
    if isinstance(sink, Collected):
        known = dataclasses.asdict(result) | {"reason": decoded(result.reason)}
        screen.json({"session_id": session_id, **known, **sink.document()})
        return result.exit_code
    if result.reason:
        screen.note(f"the command could not be run: {printable(result.reason)}")
    if result.limit is LimitHit.TIMEOUT:
        screen.note(f"the command reached its timeout after {result.duration_s:.1f} s and was ended")
    if result.limit is LimitHit.OOM:
        screen.note("the session was out of memory: `--memory` gives more")
    if result.limit is LimitHit.PIDS:
        screen.note("the session had as many processes as it may: `--pids` gives more")
    if result.limit is LimitHit.DISK:
        screen.note("the session had used up its disk: `--disk` gives more, and deleting snapshots makes room")
    if result.truncated:
        screen.note("it printed more than --output-max; the rest was dropped")
    return result.exit_code
