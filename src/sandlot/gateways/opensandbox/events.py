"""What a command says, as ExecD sends it: bare JSON objects with a blank line behind each."""

import codecs
import json
import time
from typing import Any, Final

from sandlot.model import CallResult, LimitHit, Stream

LINE_CHARS_MAX: Final = 64 << 10


def frame(kind: str, **fields: Any) -> bytes:
    """Without a timestamp their client drops it."""
    told = {"type": kind, "timestamp": time.time_ns() // 1_000_000, **fields}
    return json.dumps(told, allow_nan=False).encode() + b"\n\n"


class Lines:
    """The bytes of one stream as their lines. A line has no end in `text`; of blank lines the first is two ends, and
    each further one is one: so their client puts together what was printed. `data` is what was printed, for others.
    """

    def __init__(self, stream: Stream) -> None:
        self._kind = str(stream)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._blank = False

    def feed(self, data: bytes) -> bytes:
        text = self._rest + self._decoder.decode(data)
        lines = text.split("\n")
        self._rest = lines.pop()
        told = b"".join(self._line(line, "\n") for line in lines)
        if len(self._rest) > LINE_CHARS_MAX:
            told += self.flush()
        return told

    def flush(self) -> bytes:
        """What has no end yet."""
        rest, self._rest = self._rest, ""
        return self._line(rest, "") if rest else b""

    def close(self) -> bytes:
        self._rest += self._decoder.decode(b"", final=True)
        return self.flush()

    def _line(self, line: str, end: str) -> bytes:
        line = line.removesuffix("\r") if end else line
        text = line or ("\n" if self._blank else "\n\n")
        self._blank = not line
        return frame(self._kind, text=text, data=line + end)


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
