"""Signals that ask the program to stop: by default they cancel what it does, and what it holds is given back."""

import asyncio
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """Made inside the main task. What the shell ignores for us, such as INT for a job in the background, stays so."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "an interruption needs a task to interrupt"
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._handler: Callable[[int], None] = self.stop
        self.number = 0  # of the signal that ended the program, 0 for none
        for number in _STOPPING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._arrived, int(number))

    def _arrived(self, number: int) -> None:
        self._handler(number)

    def stop(self, number: int) -> None:
        """End the program: the main task is cancelled."""
        self.number = number
        self._task.cancel()

    @contextmanager
    def handled_by(self, handler: Callable[[int], None]) -> Generator[None]:
        before, self._handler = self._handler, handler
        try:
            yield
        finally:
            self._handler = before

    @contextmanager
    def held_off(self) -> Generator[None]:
        """For what must be finished once it is begun, and does not take long."""
        with self.handled_by(lambda _number: None):
            yield
