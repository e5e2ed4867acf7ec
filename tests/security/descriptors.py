"""What this process has open, and files that are there to be met by mistake."""

import os
import re
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path


def descriptors() -> Counter[str]:
    """What this process has open, without the numbers in its names. A session that is gone is swept behind us."""
    found: Counter[str] = Counter()
    for entry in os.scandir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            target = str(Path(entry.path).readlink())
            found[re.sub(r"\d+", "", target)] += "/trash" not in target
    return +found


def settled(before: Counter[str]) -> Counter[str]:
    """What is left is closed by threads, soon after."""
    for _ in range(250):
        if (now := descriptors()) == before:
            return now
        time.sleep(0.02)
    return descriptors()


class Decoys:
    """Opens and closes files of the host all the time: whoever uses a number after closing it meets one of them."""

    def __init__(self, folder: Path) -> None:
        self.content = os.urandom(64) * 32768
        self._file = folder / "decoy"
        self._file.write_bytes(self.content)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._churn)

    def __enter__(self) -> "Decoys":
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._file.read_bytes() == self.content

    def _churn(self) -> None:
        while not self._stop.is_set():
            handles = [os.open(self._file, os.O_RDWR) for _ in range(4)]
            for handle in handles:
                os.lseek(handle, 0, os.SEEK_SET)
                os.close(handle)
