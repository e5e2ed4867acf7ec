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

# pydantic's core is in Rust, and calls the validator.
BELOW_RUST = """
import asyncio, time
from pydantic import BaseModel, field_validator
from sandlot.sdk.portal import portal

class Slow(BaseModel):
    value: int

    @field_validator("value")
    @classmethod
    def think(cls, value):
        for _ in range(200):
            time.sleep(0.01)
        print("thought")
        return value

async def leave():
    left = asyncio.ensure_future(asyncio.to_thread(Slow, value=1))
    await asyncio.sleep(0.05)
    left.cancel()

portal().run(leave())
much = [{1: []} for _ in range(1_000_000)]  # so that the end of the interpreter takes a while
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


def test_a_program_ends_in_order_when_a_thread_is_still_busy() -> None:
    """The interpreter ends threads that come back to it later, and nothing in Rust may be below them then."""
    ended = subprocess.run([sys.executable, "-c", BELOW_RUST], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "thought\n", "")
