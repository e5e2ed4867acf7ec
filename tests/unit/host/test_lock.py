"""One engine per data directory, and a dead one holds nothing."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot.host.lock import DataDirectoryLock
from sandlot.model import DataDirectoryHeld

HOLDER = """
import sys
from pathlib import Path
from sandlot.host.lock import DataDirectoryLock
DataDirectoryLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(data: Path, *words: str) -> Generator[subprocess.Popen[str], None, None]:
    """Another process that holds the directory, until its input ends."""
    command = [sys.executable, "-c", HOLDER, str(data), *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "held\n"
        try:
            yield child
        finally:
            child.kill()


def test_the_second_is_told_who_the_first_is(tmp_path: Path) -> None:
    with holder(tmp_path, "--marked-word") as child, pytest.raises(DataDirectoryHeld) as refused:
        DataDirectoryLock(tmp_path).acquire()
    assert refused.value.context == {"pid": child.pid}
    for word in (str(child.pid), "--marked-word", str(tmp_path)):
        assert word in refused.value.message
    assert refused.value.retryable
    assert refused.value.next_step


def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    with holder(tmp_path) as child:
        child.send_signal(signal.SIGKILL)
        child.wait()
        lock = DataDirectoryLock(tmp_path)
        lock.acquire()
    with pytest.raises(DataDirectoryHeld) as refused:
        DataDirectoryLock(tmp_path).acquire()
    assert refused.value.context == {"pid": os.getpid()}, "the words of the dead one are gone"
    lock.release()


def test_a_released_lock_can_be_taken_again(tmp_path: Path) -> None:
    first, second = DataDirectoryLock(tmp_path), DataDirectoryLock(tmp_path)
    first.acquire()
    first.release()
    first.release()
    second.acquire()
    first.release()
    with pytest.raises(DataDirectoryHeld):
        first.acquire()
    second.release()


def test_a_refused_one_does_not_disturb_the_holder(tmp_path: Path) -> None:
    with holder(tmp_path) as child:
        for _ in range(3):
            with pytest.raises(DataDirectoryHeld) as refused:
                DataDirectoryLock(tmp_path).acquire()
            assert refused.value.context == {"pid": child.pid}


@pytest.mark.parametrize("words", ["", "{", "[]", "null", '{"pid": "x"}', '{"pid": null, "command": 5}', "\udcff"])
def test_words_that_say_nothing_are_no_obstacle(tmp_path: Path, words: str) -> None:
    lock = DataDirectoryLock(tmp_path)
    lock.acquire()
    (tmp_path / "engine.lock").write_bytes(os.fsencode(words))
    with pytest.raises(DataDirectoryHeld) as refused:
        DataDirectoryLock(tmp_path).acquire()
    assert refused.value.context == {"pid": 0}
    lock.release()


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    lock.acquire()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False) as child:
        lock.release()
        lock.acquire()
        lock.release()
        child.kill()


def test_the_file_is_for_the_engine_alone(tmp_path: Path) -> None:
    lock = DataDirectoryLock(tmp_path)
    lock.acquire()
    assert stat.S_IMODE((tmp_path / "engine.lock").stat().st_mode) == 0o600
    lock.release()
