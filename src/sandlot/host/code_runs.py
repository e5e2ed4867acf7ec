"""One run of code in a context: what was asked, how far it is, how it ended."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from sandlot.host.code_events import ERROR, STREAMS, VALUE
from sandlot.host.code_frames import TEXT, Piece, fields_of, json_object
from sandlot.host.code_story import BEGUN, DROPPED, HEAD, RESULT, SENT, Record, Story
from sandlot.model import CodeRequest, CodeStatus, Stream, Unavailable, limits

Heard = tuple[int, int]
UNHEARD = (0, 0)  # of what is written beside what is heard, and may come before it
_ENDED, _ENDED_TOO = "X", "Z"  # on the first stream, and on the second
_MESSAGE_BYTES_MAX = {VALUE: limits.CODE_VALUE_BYTES_MAX + limits.MIB, ERROR: 4 * limits.CODE_TEXT_BYTES_MAX}
_TOLD = {"ok": CodeStatus.OK, "error": CodeStatus.ERROR, "interrupted": CodeStatus.INTERRUPTED}
_FLAG_OF = {stream: flag for flag, stream in STREAMS.items()}


class Execution:
    """Known by its id in its session, and by its number in its context."""

    def __init__(self, number: int, execution_id: str, request: CodeRequest, path: Path) -> None:
        self.number = number
        self.execution_id = execution_id
        self.request = request
        self.story = Story(path)
        self.count = 0  # which run of its context it is, from when it is one
        self.sent_from = 0  # of the input of its context
        self.began = 0.0
        self.paused_s_before = 0.0
        self.is_sent = False
        self.is_begun = False
        self.is_over = False
        self.is_kept = False  # an engine that comes later would know of it
        self.keeping = asyncio.Lock()
        self.wants_stop = False
        self.timed_out = False
        self.timer: asyncio.TimerHandle | None = None
        self.busy = ExitStack()  # while it runs its session is not idle
        self._printed = 0
        self._message_bytes = 0
        self._is_dropping = False
        self._truncated = False
        self._status: CodeStatus | None = None
        self._is_ended_too = False

    def keep_request(self) -> None:
        asked = asdict(replace(self.request, envs=dict(self.request.envs)))
        self.story.append_fields(
            HEAD, {"number": self.number, "execution_id": self.execution_id, "request": asked}, UNHEARD
        )

    def send(self, count: int, sent_from: int) -> None:
        self.count, self.sent_from, self.began, self.is_sent = count, sent_from, time.time(), True
        self.story.append_fields(SENT, {"count": count, "from": sent_from, "began": self.began}, UNHEARD)

    def begin(self, heard: Heard) -> None:
        if not self.is_begun:
            self.is_begun = True
            self.story.append(BEGUN, b"", heard)

    async def keep(self) -> None:
        """Before it runs, or behind its end: else its context writes it with what it hears. Raises Unavailable."""
        async with self.keeping:
            batch = self.story.take_unwritten()
            try:
                await asyncio.to_thread(self.story.write, batch)
            except OSError as error:
                raise Unavailable(f"a run of code cannot be kept: {error.strerror}") from error
            self.story.wrote(batch)
            self.is_kept = True

    # ---- what its context tells ----------------------------------------------------------------------------------

    def printed(self, stream: Stream, data: bytes, heard: Heard) -> None:
        room = self.request.output_bytes_max - self._printed
        room = min(room, limits.CODE_WINDOW_BYTES - self.story.end)
        self._truncated = self._truncated or len(data) > room
        if room > 0:
            self._printed += min(room, len(data))
            self.story.append(TEXT, data[:room], heard, _FLAG_OF[stream])

    def showed(self, piece: Piece, heard: Heard) -> None:
        if piece.flag in ".<":
            self._message_bytes, self._is_dropping = 0, False
        self._message_bytes += len(piece.data)
        is_much = self._message_bytes > _MESSAGE_BYTES_MAX[piece.kind]
        if self._is_dropping:
            return
        if is_much or self.story.end + len(piece.data) > limits.CODE_WINDOW_BYTES:
            self._is_dropping = self._truncated = True
            self.story.append(DROPPED, b"", heard)
            return
        if piece.flag in ".>" and piece.kind == VALUE and b'"dropped": true' in piece.data:
            self._truncated = True
        self.story.append(piece.kind, piece.data, heard, piece.flag)

    def ended(self, piece: Piece, heard: Heard) -> None:
        """On one of the two streams. All that was printed on that one has been heard before."""
        if piece.kind == _ENDED_TOO:
            if piece.data != str(self.number).encode():
                return
        elif fields_of(piece.data).get("n") != self.number:
            return
        self.story.append(piece.kind, piece.data, heard)
        self._note_end(piece.kind, piece.data)

    def _note_end(self, kind: str, data: bytes) -> None:
        if kind == _ENDED_TOO:
            self._is_ended_too = True
        else:
            told = fields_of(data).get("status")
            self._status = _TOLD.get(told if isinstance(told, str) else "", CodeStatus.ERROR)

    @property
    def has_told(self) -> bool:
        return self._status is not None

    @property
    def has_ended(self) -> bool:
        return self._status is not None and self._is_ended_too

    @property
    def status(self) -> CodeStatus:
        if self.timed_out:
            return CodeStatus.TIMEOUT
        if self.wants_stop and self._status is CodeStatus.ERROR:
            return CodeStatus.INTERRUPTED
        return self._status or CodeStatus.LOST

    # ---- its end -------------------------------------------------------------------------------------------------

    def finish(self, status: CodeStatus, heard: Heard, paused_s: float, reason: str = "") -> None:
        if self.is_over:
            return
        self.is_over = True
        self.stop_timer()
        self.busy.close()
        lived_s = time.time() - self.began - (paused_s - self.paused_s_before) if self.is_sent else 0.0
        result = {
            "count": self.count,
            "status": str(status),
            "duration_s": max(0.0, lived_s),
            "truncated": self._truncated,
            "reason": reason[:1000],
        }
        self.story.append_fields(RESULT, result, heard)

    def later(self, seconds: float, then: Callable[["Execution"], None]) -> None:
        """The one thing that is waited for."""
        self.stop_timer()
        self.timer = asyncio.get_running_loop().call_later(max(0.0, seconds), then, self)

    def stop_timer(self) -> None:
        if self.timer:
            self.timer.cancel()
            self.timer = None

    # ---- found again -----------------------------------------------------------------------------------------------

    @classmethod
    def found(cls, path: Path) -> tuple["Execution", Heard]:
        """Blocking. With how much had been heard. Raises OSError, ValueError for a file that is none."""
        story = Story(path)
        records = story.restore()
        if not records or records[0].kind != HEAD:
            raise ValueError(f"{path.name} has no head")
        head = json_object(records[0].data)
        asked: dict[str, Any] = head["request"]
        run = cls(int(head["number"]), str(head["execution_id"]), CodeRequest(**asked), path)
        run.story, run.is_kept = story, True
        for record in records[1:]:
            run._take_up(record)
        heard = max(record.heard[0] for record in records), max(record.heard[1] for record in records)
        return run, heard

    def _take_up(self, record: Record) -> None:
        if record.kind == SENT:
            told = json.loads(record.data)
            self.count, self.sent_from, self.began = int(told["count"]), int(told["from"]), float(told["began"])
            self.is_sent = True
        elif record.kind == RESULT:
            self.is_over = True
            self.count = int(json.loads(record.data)["count"])
        elif record.kind == BEGUN:
            self.is_begun = True
        elif record.kind == TEXT:
            self._printed += len(record.data)
        elif record.kind in (_ENDED, _ENDED_TOO):
            self._note_end(record.kind, record.data)
