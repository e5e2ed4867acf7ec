"""A server is asked from the thread of whoever calls: no loop has to be woken, and no thread to be told of the end.

Only for what does nothing but ask and wait. It is written for a loop, and taken to its end without one; everything else
goes through the portal."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from sandlot import tracing
from sandlot.model import SandlotError
from sandlot.sdk.caller import LANE

_T = TypeVar("_T")


class Lane:
    """`host` waits in the thread that asks it, and for nothing else."""

    def __init__(self, host: Any) -> None:
        self._host = host

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        before = LANE.set(self._host)
        place = tracing.PLACE.set(tracing.here())
        try:
            work.send(None)
        except StopIteration as done:
            return done.value
        finally:
            tracing.PLACE.reset(place)
            LANE.reset(before)
        work.close()
        raise SandlotError("something waited for a loop where there is none", next_step="report it")

    def close(self) -> None:
        self.run(self._host.aclose())
