"""Calls with limits of their own, below those of their session."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

from sandlot.contracts.runtime import Group, Hits
from sandlot.host.reasons import LimitWatch
from sandlot.model import Capability, LimitHit, Resources, SandlotError
from sandlot.model.capability import need


def check_call(asked: Resources, session: Resources, have: frozenset[Capability]) -> None:
    """Raises InvalidArgument, CapabilityNotSupported."""
    asked.check_call(session)
    if asked.without("open_files").asked():
        step = "leave it out, or make a session with that limit"
        need(have, Capability.LIMIT_CALLS, "the runtime of this session on this machine", step)


class CallLimits:
    """Of one call. The group that holds them is made before it starts, and removed when it has ended."""

    def __init__(self, group: Callable[[], Group], process_id: int, asked: Resources) -> None:
        self._group = group
        self._call = f"c-{process_id}"
        self._asked = asked.without("open_files")
        self._watch = LimitWatch(self._hits, self._asked)

    def _hits(self) -> Hits:
        return self._group().hits(self._call)

    @contextmanager
    def begin(self) -> Generator[tuple[int, ...]]:
        """What the program has to enter. Leaving with an error undoes it. Raises Unavailable."""
        fds = tuple(self._group().begin_call(self._call, self._asked)) if self._asked.asked() else ()
        try:
            yield fds
        except BaseException:  # undone, then raised again
            self._end()
            raise
        finally:
            for fd in fds:
                os.close(fd)

    def met(self, exit_code: int) -> LimitHit | None:
        """Which of them the call met. It has ended."""
        met = self._watch.end(Hits(), exit_code, alone=True)
        self._end()
        return met

    def _end(self) -> None:
        try:
            self._group().end_call(self._call)
        except SandlotError:
            return  # the guest is gone, and its groups go with it
