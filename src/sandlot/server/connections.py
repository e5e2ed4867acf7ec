"""One connection: what uvicorn's has, and the bounds that it lacks.

uvicorn waits for ever for the rest of a head or a body, and takes a head of any size. Here every wait for a client has
an end, and what a client can make us keep is bounded. A request under way is not bounded: the application does that."""

import asyncio
import json
import logging
import sys

from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sandlot.model import limits
from sandlot.server.crowd import Crowd
from sandlot.server.joining import HOLD, Joining
from sandlot.server.tunnels import ClientTunnel

_log = logging.getLogger("sandlot.server")
# What uvicorn says is told by whoever is behind it, or is a request that was cut off on purpose.
_quiet = logging.getLogger("sandlot.server.uvicorn")
_quiet.setLevel(logging.CRITICAL + 1)
_MUCH_BYTES = 16 * limits.KIB  # of a body, while others come
_LOOKS = 4  # at a body that does not go on, within the time that it has


class TooLarge(Exception):
    """Of a head."""


class Ambiguous(Exception):
    """Two servers could read it differently."""


class Connection(HttpToolsProtocol):
    """`is_trusted`: its peer is known to be the same user; it may be silent until it has something to say."""

    def __init__(self, config: Config, crowd: Crowd, *, is_trusted: bool = False) -> None:
        super().__init__(config, crowd.state, {})
        self._crowd = crowd
        self.logger = _quiet
        self._is_trusted = is_trusted
        self.access_log = False
        self.timeout_keep_alive = crowd.bounds.keep_alive_s
        self._head_bytes = 0  # of a head that is coming
        self._framing_bytes = 0  # of a message, beside its body
        self._body_bytes = 0
        self._body_bytes_seen = 0  # when it was asked whether it goes on
        self._has_begun = False  # a head has
        self._is_in_message = False
        self._last_data_at = 0.0
        self._data = b""  # that is being read
        self._tunnel: ClientTunnel | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._resting_since = 0.0  # 0: it does not
        self._body_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # ---- life --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn has it
        super().connection_made(transport)
        self._joining = Joining(transport)
        if self._is_trusted:
            self._crowd.let_rest(self)
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._crowd.leave(self)
        for timer in (self._head_timer, self._rest_timer, self._body_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._head_timer = self._rest_timer = self._body_timer = self._write_timer = None
        if self._tunnel is not None:
            self._tunnel.lose()
        super().connection_lost(exc)

    @property
    def is_busy(self) -> bool:
        """Whether a request of it is under way."""
        return self.cycle is not None and not self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison] - None before the first

    def goes_on(self) -> bool:
        """A head is short, and has no excuse; of a body much came, or it is not we who wait."""
        came, self._body_bytes_seen = self._body_bytes - self._body_bytes_seen, self._body_bytes
        return self._is_in_message and (came >= _MUCH_BYTES or self.flow.read_paused)

    def drop(self) -> None:
        """At once, whatever is under way: what is still said goes nowhere."""
        if self.is_busy:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.abort()

    # ---- what comes --------------------------------------------------------------------------------------------

    def eof_received(self) -> bool | None:  # pyright: ignore[reportIncompatibleMethodOverride] - as asyncio has it
        """True: it goes on, one way."""
        if self._tunnel is None or not self._tunnel.is_accepted or self.scheme == "https":
            return None
        self._tunnel.end()
        return True

    def data_received(self, data: bytes) -> None:
        if self._tunnel is not None:
            self._tunnel.feed(data)
            return
        self._last_data_at = self.loop.time()
        self._resting_since = 0.0
        if self._is_in_message:
            self._framing_bytes += len(data)
        else:
            self._head_bytes += len(data)
        self._data = data
        super().data_received(data)
        self._data = b""
        if self.transport.is_closing():
            return
        if self._is_in_message:
            # Chunks of one byte have five of framing; trailers and extensions without end have no such excuse.
            if self._framing_bytes > self._body_bytes * 16 + limits.HEADER_BYTES_MAX:
                self.refuse(431, "resource_exhausted", "too much beside the body")
            elif self._body_timer is None:
                self._look_at_body()
        elif self._head_bytes > limits.HEADER_BYTES_MAX:
            self.refuse(431, "resource_exhausted", f"the head is larger than {limits.HEADER_BYTES_MAX} bytes")
        elif self._head_timer is None and (self._has_begun or not self.is_busy):
            if self._head_bytes or self._has_begun:  # something came that is no whole head
                self._await_head()
            else:  # the rest of what was answered before
                self._rest()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True
        if len(self.pipeline) >= limits.PIPELINED_MAX:
            raise TooLarge(f"more than {limits.PIPELINED_MAX} requests before the first was answered")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_in_message:
            return  # a trailer: what comes behind the body says nothing of the request
        if len(self.headers) >= limits.HEADERS_MAX:
            raise TooLarge(f"more than {limits.HEADERS_MAX} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > limits.HEADER_BYTES_MAX:
            raise TooLarge(f"the head is larger than {limits.HEADER_BYTES_MAX} bytes")
        self._check_one_reading()
        self.scope["sandlot.target"] = self.url  # pyright: ignore[reportGeneralTypeIssues] - a scope may have more
        self.scope[HOLD] = self._joining.hold  # pyright: ignore[reportGeneralTypeIssues] - the same
        super().on_headers_complete()
        self.cycle.transport = self._joining  # pyright: ignore[reportAttributeAccessIssue] - it has what is asked of it
        self._head_bytes = self._framing_bytes = self._body_bytes = self._body_bytes_seen = 0
        self._is_in_message, self._has_begun = True, False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        self._crowd.leave(self)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete and self._body_bytes > limits.DISCARDED_BYTES_MAX:
            self.drop()  # it was answered, and does not stop
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_message = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None
        self._crowd.leave(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, which makes a timer for the time after each of them."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif not self._is_in_message and not self._has_begun:
            self._rest()

    def _check_one_reading(self) -> None:
        """What the parser lets pass, and another server before us could take for something else."""
        count = dict.fromkeys((b"host", b"content-length", b"transfer-encoding", b"upgrade"), 0)
        for name, value in self.headers:
            if name in count:
                count[name] += 1
                if name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                    raise Ambiguous("another encoding than chunks")
        if max(count.values()) > 1:
            raise Ambiguous("a header that says how to read the request stands there twice")
        has_body = count[b"transfer-encoding"] or any(
            name == b"content-length" and value.strip(b"0 ") for name, value in self.headers
        )
        parser = self.parser
        assert parser is not None, "it is reading"
        version = parser.get_http_version()
        if version not in ("1.0", "1.1"):
            raise Ambiguous("a line that ends before it says which HTTP it is")
        if count[b"transfer-encoding"] and version != "1.1":
            raise Ambiguous("chunks in a version that has none")
        if parser.should_upgrade():
            if has_body:
                raise Ambiguous("a body behind which another protocol would begin")
            self.scope["sandlot.tunnel"] = ClientTunnel(self.loop, self.transport, self.flow, self._leave_http)  # pyright: ignore[reportGeneralTypeIssues]

    def _leave_http(self) -> None:
        self.cycle.response_started = True

    def _unsupported_upgrade_warning(self) -> None:
        """Called while the parser says where HTTP ends. Whoever answers may go on from there; else the connection ends
        with the answer, because what comes then cannot be read."""
        stopped = sys.exception()
        offset = stopped.args[0] if stopped is not None and stopped.args else len(self._data)
        self.cycle.keep_alive = False
        self._tunnel = self.scope.get("sandlot.tunnel")  # pyright: ignore[reportAttributeAccessIssue]
        if self._tunnel is not None and offset < len(self._data):
            self._tunnel.feed(self._data[offset:])

    # ---- waiting for the client --------------------------------------------------------------------------------

    def _await_head(self) -> None:
        self._crowd.await_(self)
        self._head_timer = self.loop.call_later(self._crowd.bounds.header_timeout_s, self._end_of_patience)

    def _end_of_patience(self) -> None:
        self._head_timer = None
        if self.flow.read_paused:  # it is we who do not read
            self._await_head()
            return
        self._crowd.late += 1
        if self._head_bytes or self._has_begun:
            self.refuse(408, "deadline_exceeded", "the head of the request did not come in time", counted=False)
        else:
            self.transport.close()

    def _rest(self) -> None:
        """Until the next request, or for as long as that may take."""
        self._resting_since = self.loop.time()
        self._crowd.let_rest(self)
        if self._rest_timer is None:
            self._rest_timer = self.loop.call_later(self.timeout_keep_alive, self._end_of_rest)

    def _end_of_rest(self) -> None:
        self._rest_timer = None
        left = self._resting_since + self.timeout_keep_alive - self.loop.time()
        if not self._resting_since:
            return
        if left > 0:  # there were requests meanwhile: one timer for all of them
            self._rest_timer = self.loop.call_later(left, self._end_of_rest)
        else:
            self.timeout_keep_alive_handler()

    def _look_at_body(self) -> None:
        now = self.loop.time()
        if self.flow.read_paused:
            self._last_data_at = now  # it is the application that does not read
        if now - self._last_data_at >= limits.BODY_PAUSE_S:
            self._crowd.late += 1
            self.refuse(408, "deadline_exceeded", "the body of the request did not go on", counted=False)
            return
        if self not in self._crowd.awaited:
            self._crowd.await_(self)
        self._body_timer = self.loop.call_later(limits.BODY_PAUSE_S / _LOOKS, self._look_at_body)

    # ---- what goes ---------------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        super().shutdown()
        if self._tunnel is not None and self._tunnel.is_accepted:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(limits.WRITE_IDLE_S, self._end_of_reading)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        super().resume_writing()

    def _end_of_reading(self) -> None:
        self._crowd.late += 1
        self.drop()

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP, or has too much of something."""
        self.refuse(400, "invalid_argument", msg)

    def refuse(self, status: int, code: str, message: str, *, counted: bool = True) -> None:
        """Say why and close. An answer that is on its way is cut off: two of them would be read as one."""
        self._crowd.broken += counted
        if self.transport.is_closing():
            return
        if self.is_busy:
            started, self.cycle.disconnected = self.cycle.response_started, True
            self.cycle.message_event.set()
            if started:
                self.drop()
                return
        _log.debug("refused a connection: %s", message)
        self.transport.write(answer(status, code, message))
        self.transport.close()


def answer(status: int, code: str, message: str) -> bytes:
    """A whole response, after which the connection ends."""
    body = json.dumps({"code": code, "message": message}).encode()
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body


__all__ = ["Ambiguous", "Connection", "FlowControl", "TooLarge", "answer"]
