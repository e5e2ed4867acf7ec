"""What a command says, as ExecD sends it: bare JSON objects with a blank line behind each."""

import base64
import json
import time
from typing import Any, Final

from sandlot.model import CallResult, LimitHit, Stream

LINE_BYTES_MAX: Final = 64 << 10
_LENGTHS: Final = (2, 2, 3, 4)  # of characters in UTF-8, by bits of their first byte


def frame(kind: str, **fields: Any) -> bytes:
    """Without a timestamp their client drops it."""
    told = {"type": kind, "timestamp": time.time_ns() // 1_000_000, **fields}
    return json.dumps(told, allow_nan=False).encode() + b"\n\n"


class Lines:
    """The bytes of one stream as their lines. A line has no end in `text`; of blank lines the first is two ends, and
    each further one is one: so their client puts together what was printed. `data` is what was printed, for others, and
    `bytes` the same in base64 where it is no text.
    """

    def __init__(self, stream: Stream) -> None:
        self._kind = str(stream)
        self._rest = b""
        self._blank = False

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        told = b"".join(self._line(line, b"\n") for line in lines)
        if len(self._rest) > LINE_BYTES_MAX:
            told += self._cut()
        return told

    def _cut(self) -> bytes:
        """What has no end yet, but for a character that is not whole."""
        rest, whole = self._rest, len(self._rest)
        for back in range(1, 4):
            if rest[-back] & 0xC0 == 0xC0:  # a character begins here, and has more bytes than there are
                whole -= back if back < _LENGTHS[rest[-back] >> 4 & 3] else 0
                break
        self._rest = rest[whole:]
        return self._line(rest[:whole], b"")

    def close(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._line(rest, b"") if rest else b""

    def _line(self, line: bytes, end: bytes) -> bytes:
        text = line.decode(errors="replace")
        exact: dict[str, str] = {}
        if text.encode() != line:
            exact = {"bytes": base64.b64encode(line + end).decode()}
        shown = (text.removesuffix("\r") if end else text) or ("\n" if self._blank else "\n\n")
        self._blank = not line.removesuffix(b"\r")
        return frame(self._kind, text=shown, data=text + end.decode(), **exact)


def end(result: CallResult) -> bytes:
    """A command that ended by itself with 0 is complete; any other has an error, and never both."""
    duration = {"durationMs": round(result.duration_s * 1000), "exitCode": result.exit_code}
    if result.exit_code == 0:
        return frame("execution_complete", execution_time=round(result.duration_s * 1000), **duration)
    code = "-1" if result.limit is LimitHit.TIMEOUT or result.signal is not None else str(result.exit_code)
    traceback = [why(result)]
    problem = {"ename": "CommandExecError", "evalue": code, "traceback": traceback}
    return frame("error", error=problem, **duration)


def why(result: CallResult) -> str:
    if result.reason:
        return result.reason
    if result.limit is not None:
        return f"ended by the limit: {result.limit}"
    if result.signal is not None:
        return f"signal: {result.signal}"
    return f"exit status {result.exit_code}"
