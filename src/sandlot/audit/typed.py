"""What is typed into terminals: that somebody began to, and how much it was when he had stopped. A key that is pressed
costs an addition, and its letter is nobody's business."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sandlot.model import TerminalInput, limits

_Key = tuple[str, str, str]  # who, session, terminal


class Log(Protocol):
    def record(self, fields: Mapping[str, Any]) -> int: ...


@dataclass(slots=True)
class _Typing:
    asked: int  # the number of its record
    last: float
    count: int = 0


class Typed:
    """Kept for who types, until he has not for a while."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._typing: dict[_Key, _Typing] = {}

    def began(self, who: str, request: TerminalInput) -> None:
        """In the log before anything is typed, the first time."""
        key = (who, request.session_id, request.terminal_id)
        if key not in self._typing:
            if len(self._typing) >= limits.AUDIT_TYPING_MAX:
                self._end(next(iter(self._typing)))
            detail = {"terminal_id": request.terminal_id}
            fields = {"who": who, "verb": "write_terminal", "phase": "asked", "session": request.session_id}
            self._typing[key] = _Typing(self._log.record({**fields, "detail": detail}), time.monotonic())

    def wrote(self, who: str, request: TerminalInput) -> None:
        typing = self._typing.get((who, request.session_id, request.terminal_id))
        if typing is not None:
            typing.count += len(request.data)
            typing.last = time.monotonic()

    def look(self) -> None:
        """End what has ended."""
        before = time.monotonic() - limits.AUDIT_TYPING_IDLE_S
        for key in [key for key, typing in self._typing.items() if typing.last < before]:
            self._end(key)

    def close(self) -> None:
        for key in list(self._typing):
            self._end(key)

    def _end(self, key: _Key) -> None:
        typing = self._typing.pop(key)
        fields = {"who": key[0], "verb": "write_terminal", "phase": "done", "of": typing.asked}
        self._log.record({**fields, "detail": {"sent_bytes": typing.count}})
