"""Timers that most requests never need: one for all of them that wait for the same time."""

import asyncio
from collections.abc import Callable

Action = Callable[[], None]


class Rounds:
    """What is added is done after at least one period, and at most two, unless it is taken back before."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._new: dict[Action, None] = {}
        self._old: dict[Action, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, action: Action) -> None:
        self._new[action] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._period_s, self._turn)

    def discard(self, action: Action) -> None:
        if self._new.pop(action, self) is self:
            self._old.pop(action, None)

    def _turn(self) -> None:
        due, self._old, self._new = self._old, self._new, {}
        self._timer = asyncio.get_running_loop().call_later(self._period_s, self._turn) if self._old else None
        for action in due:
            action()
