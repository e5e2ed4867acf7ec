"""The threads of the portal's loop."""

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import pytest

from sandlot.sdk.pool import LastingPool

AFTER_THE_MAIN_THREAD = """
import atexit, concurrent.futures, threading, time
from sandlot.sdk.pool import LastingPool
pool = LastingPool()
standard = concurrent.futures.ThreadPoolExecutor()

def use(where):
    print(where, pool.submit(pow, 2, 3).result(5))
    try:
        standard.submit(pow, 2, 3)
    except RuntimeError:
        print(where, "the standard one refuses")

def wait():
    threading.main_thread().join()
    use("thread")

threading.Thread(target=wait).start()
atexit.register(use, "atexit")
"""


def test_results_and_errors() -> None:
    pool = LastingPool()
    assert pool.submit(pow, 2, exp=3).result(5) == 8
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result(5)
    pool.shutdown()


def test_threads_are_used_again() -> None:
    pool = LastingPool()
    seen: set[int] = set()
    for _ in range(20):
        seen.add(pool.submit(threading.get_ident).result(5))
        time.sleep(0.002)  # it tells that it is idle after it has told the result
    assert len(seen) < 15
    pool.shutdown()


def test_no_more_threads_than_allowed_and_none_is_forgotten() -> None:
    pool = LastingPool()
    gate = threading.Event()
    before = threading.active_count()
    jobs: list[Future[bool]] = [pool.submit(gate.wait, 10) for _ in range(100)]
    assert threading.active_count() - before <= 32
    gate.set()
    assert all(job.result(5) for job in jobs)
    pool.shutdown()
    assert threading.active_count() == before


def test_a_job_that_was_cancelled_is_not_done() -> None:
    pool = LastingPool()
    gate, done = threading.Event(), threading.Event()
    blocked = [pool.submit(gate.wait, 10) for _ in range(32)]
    late = pool.submit(done.set)
    assert late.cancel()
    gate.set()
    assert all(job.result(5) for job in blocked)
    pool.shutdown()
    assert not done.is_set()


def test_a_loop_takes_it() -> None:
    async def use() -> int:
        asyncio.get_running_loop().set_default_executor(LastingPool())
        return await asyncio.to_thread(pow, 2, 3)

    assert asyncio.run(use()) == 8


def test_it_works_when_the_main_thread_has_ended() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", AFTER_THE_MAIN_THREAD], capture_output=True, text=True, timeout=20, check=True
    )
    assert ran.stdout.splitlines() == [
        "thread 8",
        "thread the standard one refuses",
        "atexit 8",
        "atexit the standard one refuses",
    ]
    assert ran.stderr == ""
