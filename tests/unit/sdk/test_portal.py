"""The ways into the portal: from threads, from loops, from functions that are called back. Without an engine."""

import asyncio
import contextvars
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any

import pytest

from sandlot import InvalidState
from sandlot.sdk.caller import call_back, call_blocking
from sandlot.sdk.portal import Portal, portal

WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who", default="nobody")
SOON_S = 5.0


# A process of its own: an exception that comes while the interpreter cleans up is printed, and would fail the run.
INTERRUPTED = """
import itertools, signal, time
from sandlot.sdk.portal import portal

class Interrupted(BaseException): pass

def interrupt(*_):
    if is_armed:
        raise Interrupted

async def give(value):
    return value

signal.signal(signal.SIGALRM, interrupt)
is_armed, hits, rounds = False, 0, itertools.cycle(range(400))
while hits < 300:
    number = next(rounds)
    work = give(number)
    signal.setitimer(signal.ITIMER_REAL, 0.00001 + number / 2_000_000)
    try:
        is_armed = True
        assert portal().run(work) == number
        is_armed = False
    except Interrupted:
        hits += 1
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        work.close()
assert portal().run(give(1)) == 1
time.sleep(0.05)
assert not portal().calls
print("nothing left")
"""


class Interrupted(BaseException):
    """As KeyboardInterrupt, but a test runner does not take it for its own."""


@pytest.fixture
def fresh() -> Generator[Portal]:
    """One that can be closed."""
    made = Portal()
    yield made
    made.close()


async def give(value: object) -> object:
    return value


async def sleep_long(told: list[str]) -> None:
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        told.append("ended")


def test_a_result_and_an_error_come_back() -> None:
    async def fail() -> None:
        raise KeyError("mine")

    assert portal().run(give(42)) == 42
    with pytest.raises(KeyError, match="mine"):
        portal().run(fail())


async def test_it_works_inside_a_running_loop() -> None:
    assert portal().run(give("sync")) == "sync"
    assert await portal().run_async(give("async")) == "async"


def test_sixteen_threads_at_once_start_one_portal(fresh: Portal) -> None:
    """The first use from all of them at the same moment: one loop, one thread, every answer to whoever asked."""
    together = threading.Barrier(16)
    found: dict[int, set[tuple[int, int]]] = {}

    async def look(number: int) -> tuple[int, int]:
        await asyncio.sleep(0.001)
        return number, id(asyncio.get_running_loop())

    def ask(number: int) -> None:
        together.wait()
        found[number] = {fresh.run(look(number)) for _ in range(20)}

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
    assert {number for number, answers in found.items() if len(answers) == 1} == set(range(16))
    assert len({loop for answers in found.values() for _number, loop in answers}) == 1


def test_a_function_is_called_in_the_thread_that_waits() -> None:
    where: list[object] = []

    def note(text: str) -> str:
        # And may itself use the portal.
        where.append((threading.get_ident(), WHO.get(), portal().run(give(text))))
        return text.upper()

    WHO.set("thread")
    assert portal().run(call_back(note, "a")) == "A"
    assert portal().run(call_blocking(note, "b")) == "B"
    assert where == [(threading.get_ident(), "thread", "a"), (threading.get_ident(), "thread", "b")]


async def test_a_function_is_called_on_the_loop_that_waits() -> None:
    loop = asyncio.get_running_loop()
    where: list[object] = []

    def note(text: str) -> str:
        where.append((asyncio.get_running_loop() is loop, WHO.get(), text))
        return text.upper()

    async def note_later(text: str) -> str:
        await asyncio.sleep(0)
        return note(text)

    WHO.set("task")
    assert await portal().run_async(call_back(note, "a")) == "A"
    assert await portal().run_async(call_back(note_later, "b")) == "B"
    assert where == [(True, "task", "a"), (True, "task", "b")]


async def test_what_may_block_does_not_block_the_loop_that_waits() -> None:
    assert await portal().run_async(call_blocking(threading.get_ident)) != threading.get_ident()


def test_a_coroutine_function_of_a_thread_is_awaited() -> None:
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    assert portal().run(call_back(later, "a")) == "A"


RAISED = [
    ValueError("x"),
    StopIteration("x"),
    StopAsyncIteration("x"),
    GeneratorExit("x"),
    Interrupted("x"),
    SystemExit(3),
]


@pytest.mark.parametrize("error", [*RAISED, asyncio.CancelledError()], ids=lambda error: type(error).__name__)
def test_what_a_function_raises_comes_out_of_the_call(error: BaseException) -> None:
    told: list[str] = []

    def fail() -> None:
        raise error

    async def work() -> None:
        try:
            await call_back(fail)
        finally:
            await asyncio.sleep(0)
            told.append("ended")

    with pytest.raises(type(error)) as caught:
        portal().run(work())
    assert caught.value is error
    assert told == ["ended"], "the work had not ended when the error came out"
    assert portal().run(give(1)) == 1


# A coroutine cannot raise StopIteration, whoever calls it.
@pytest.mark.parametrize(
    "error",
    [error for error in RAISED if not isinstance(error, StopIteration | SystemExit)],
    ids=lambda error: type(error).__name__,
)
async def test_what_a_function_raises_comes_out_of_the_awaiting_task(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        await portal().run_async(call_back(fail))
    assert caught.value is error
    assert await portal().run_async(give(1)) == 1


def test_a_function_that_exits_does_not_end_the_portal() -> None:
    """SystemExit ends a loop that it passes through; it must pass through the user's alone."""

    def leave() -> None:
        raise SystemExit(3)

    with closing(asyncio.new_event_loop()) as loop:
        with pytest.raises(SystemExit):
            loop.run_until_complete(portal().run_async(call_back(leave)))
        loop.run_until_complete(asyncio.sleep(0.05))
    assert "sandlot" in {thread.name for thread in threading.enumerate()}
    assert portal().run(give(1)) == 1


def test_a_signal_breaks_the_work_off() -> None:
    told: list[str] = []

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        began = time.monotonic()
        with pytest.raises(Interrupted):
            portal().run(sleep_long(told))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert told == ["ended"]
    assert time.monotonic() - began < SOON_S


def test_signals_at_any_moment_leave_nothing_behind() -> None:
    """A signal may come before the work has begun, and after it has ended: neither may hang, or leave it running."""
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (0, "nothing left\n"), ran.stderr


async def test_cancelling_cancels_the_work_and_waits_for_its_end() -> None:
    told: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await portal().run_async(sleep_long(told))
    assert told == ["ended"]


async def test_cancelling_at_any_moment_leaves_nothing_behind() -> None:
    for number in range(200):
        task = asyncio.create_task(portal().run_async(give(number)))
        for _ in range(1 + number % 7):
            await asyncio.sleep(0)
        time.sleep(number % 5 / 10_000)  # noqa: ASYNC251 - the answer comes, unseen, while nobody looks
        task.cancel()
        await asyncio.wait([task])
    assert not [task for task in portal().calls if not task.done()]


async def test_cancelling_reaches_a_function_that_is_awaited() -> None:
    told: list[str] = []
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await portal().run_async(call_back(sleep_long, told))
    for _ in range(500):  # it ends on this loop, a moment later
        await asyncio.sleep(0.01)
        if told:
            break
    assert told == ["ended"]


def test_loops_come_and_go() -> None:
    for number in range(5):
        assert asyncio.run(portal().run_async(give(number))) == number


def test_the_portal_keeps_nothing_of_a_caller() -> None:
    """What a caller has in his context would live as long as the engine that his call starts."""

    class Heavy:
        pass

    kept: contextvars.ContextVar[Heavy] = contextvars.ContextVar("kept")
    tasks: list[asyncio.Task[Any]] = []

    async def start() -> None:
        tasks.append(asyncio.get_running_loop().create_task(asyncio.sleep(60)))

    def use() -> weakref.ref[Heavy]:
        heavy = Heavy()
        kept.set(heavy)
        portal().run(start())
        return weakref.ref(heavy)

    left = contextvars.copy_context().run(use)
    gc.collect()
    assert left() is None

    async def end() -> None:
        tasks[0].cancel()

    portal().run(end())


def test_inside_itself_it_refuses_to_block() -> None:
    async def nested() -> None:
        portal().run(give(1))

    with pytest.raises(InvalidState, match="inside its own event loop"):
        portal().run(nested())


def test_a_finalizer_may_run_anywhere() -> None:
    """Also in the portal, where nobody can wait: the garbage collector chooses the thread."""
    told: list[str] = []

    async def note(where: str) -> None:
        told.append(where)

    async def collect() -> None:
        portal().dispose(note("portal"))
        await asyncio.sleep(0.01)

    portal().dispose(note("thread"))
    portal().run(collect())
    assert told == ["thread", "portal"]


def test_a_closed_one_refuses_and_never_hangs(fresh: Portal) -> None:
    told: list[str] = []
    caught: list[BaseException] = []

    def use(daemon_ends: Callable[[], object]) -> None:
        try:
            daemon_ends()
        except BaseException as error:  # noqa: BLE001 - whatever it is, is looked at
            caught.append(error)

    busy = threading.Thread(target=use, args=(lambda: fresh.run(sleep_long(told)),), daemon=True)
    busy.start()
    while not fresh.calls:
        time.sleep(0.001)
    began = time.monotonic()
    fresh.close()
    fresh.close()
    busy.join(SOON_S)
    late = threading.Thread(target=use, args=(lambda: fresh.run(give(1)),), daemon=True)
    late.start()
    late.join(SOON_S)
    # Daemons end with the program, without a word; whoever else is still there is told.
    assert [type(error) for error in caught] == [SystemExit, SystemExit]
    with pytest.raises(InvalidState, match="ending"):
        fresh.run(give(1))
    fresh.dispose(give(1))
    assert told == ["ended"]
    assert time.monotonic() - began < SOON_S


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_and_gets_its_own() -> None:
    portal().run(give(1))
    mine = portal()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine.run(give(1))
        except InvalidState as error:
            code = 0 if str(mine.pid) in error.message and portal().run(give(7)) == 7 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert mine.run(give(1)) == 1
