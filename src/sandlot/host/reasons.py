"""Which limit a call met. The kernel counts per session, so for a call it is concluded: docs/operating/limits.md."""

from collections.abc import Callable

from sandlot.contracts.runtime import Hits
from sandlot.model import LimitHit, Resources, SandlotError

_KILLED = 137


class LimitWatch:
    """Looks at the kernel's counters of one session, when it is worth the time."""

    def __init__(
        self, read: Callable[[], Hits], resources: Resources, is_full: Callable[[], bool] | None = None
    ) -> None:
        self._read = read
        self._is_full = is_full if resources.disk_bytes is not None else None
        self._counts = resources.memory_bytes is not None or resources.pids is not None
        self._looks_first = resources.memory_bytes is not None
        self._seen: Hits | None = Hits()

    def forget(self) -> None:
        """An earlier engine knew what was counted."""
        self._seen = None

    def begin(self) -> Hits:
        """What was counted before a call. Without a memory limit that is what was seen last: looking costs time."""
        if self._counts and (self._seen is None or self._looks_first):
            self._look()
        return self._seen or Hits()

    def end(self, since: Hits, exit_code: int, *, alone: bool) -> LimitHit | None:
        """`alone`: no other call of the session runs."""
        if self._counts:
            now = self._look()
            if now.oom > since.oom and (exit_code == _KILLED or (exit_code and alone)):
                return LimitHit.OOM
            if now.pids > since.pids and exit_code:
                return LimitHit.PIDS
        return LimitHit.DISK if exit_code and self._is_full and self._is_full() else None

    def is_out_of_memory(self) -> bool:
        """Whether processes were ended for that since someone last looked."""
        before = (self._seen or Hits()).oom
        return self._counts and self._look().oom > before

    def _look(self) -> Hits:
        try:
            self._seen = self._read()
        except SandlotError:
            self._seen = self._seen or Hits()  # the guest is gone, or was never counted
        return self._seen
