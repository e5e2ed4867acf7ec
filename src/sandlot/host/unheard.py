"""Processes of a guest that nobody here asks about."""

from sandlot.contracts.runtime import Guest, KnownProcess, ProcessEnd
from sandlot.host.guest_streams import CONNECTION
from sandlot.model import Stream


class Unheard:
    """Hears of a process whose call is over, or was another session's: it may go on, and what it says is dropped."""

    def __init__(self, guest: Guest, known: KnownProcess) -> None:
        self._process = guest.adopt(known, self)
        for stream in Stream:
            self._process.discard(stream)
        if known.tag == CONNECTION and not known.is_over:
            self.kill()  # nobody has the other end any more

    def kill(self) -> None:
        self._process.signal(9, tree=True)

    def on_started(self, pid: int) -> None:
        del pid

    def on_output(self, stream: object, offset: int, data: bytes) -> None:
        del stream, offset, data

    def on_stdin_taken(self, offset: int, closed: bool) -> None:
        del offset, closed

    def on_failed(self, error: int, stage: str) -> None:
        del error, stage
        self._process.release()

    def on_exit(self, ended: ProcessEnd) -> None:
        del ended
        self._process.release()

    def on_lost(self, reason: str) -> None:
        del reason
