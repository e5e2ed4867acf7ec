"""File operations that are cancelled: nothing stays open, nothing stays behind, and no descriptor is used after it was
closed."""

import asyncio
import os
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from sandlot.model import (
    CallRequest,
    FileList,
    FileRead,
    FileRemove,
    FileWrite,
    InvalidState,
    SandlotError,
)
from tests.security.descriptors import Decoys, descriptors, settled
from tests.security.door import Door, list_all, litter, pieces, read_all
from tests.security.stage import Stage

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

MIB = 1 << 20
CANCELS = 500


@pytest.fixture
def door(stage: Stage) -> Iterator[Door]:
    session = stage.create()
    yield Door(stage, session)
    with suppress(SandlotError):
        stage.wait(stage.host.destroy(session))


# ---- cancelling ------------------------------------------------------------------------------------------------


async def slow(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), MIB // 8):
        yield content[start : start + MIB // 8]


async def cancel_often(
    begin: Callable[[int], Coroutine[object, object, object]], check: Callable[[object], None], longest_s: float
) -> int:
    """Begin, cancel after a moment, often; how many were really in the middle of it."""
    dice = random.Random(7)  # the same moments every time
    cancelled = 0
    for number in range(CANCELS):
        task = asyncio.ensure_future(begin(number))
        await asyncio.sleep(dice.random() * longest_s)
        task.cancel()
        (answer,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(answer, asyncio.CancelledError):
            cancelled += 1
        elif isinstance(answer, BaseException):
            raise answer
        else:
            check(answer)
    return cancelled


def cancel_reads(door: Door, old: bytes) -> int:
    door.write("x", *(old[at : at + MIB] for at in range(0, len(old), MIB)))

    def check(answer: object) -> None:
        assert answer == old

    request = FileRead(door.session, "x")
    return door.stage.wait(cancel_often(lambda _number: read_all(door.host, request), check, 0.006))


def cancel_writes(door: Door, old: bytes) -> int:
    door.write("x", old)
    new = bytes(reversed(old))
    request = FileWrite(door.session, "x")
    count = door.stage.wait(
        cancel_often(lambda _number: door.host.write_file(request, slow(new)), lambda _answer: None, 0.012)
    )
    assert door.read("x") in (old, new)
    count += door.stage.wait(
        cancel_often(lambda _number: door.host.write_file(request, pieces(new)), lambda _answer: None, 0.003)
    )
    assert door.read("x") in (old, new)
    return count


def cancel_lists(door: Door, old: bytes) -> int:
    del old
    door.shell("mkdir wide; cd wide; seq 6000 | xargs touch; mkdir $(seq 7000 7900)")

    def check(answer: object) -> None:
        assert isinstance(answer, list)
        assert len(answer) == 6901  # pyright: ignore[reportUnknownArgumentType]

    request = FileList(door.session, "wide", depth=3)
    return door.stage.wait(cancel_often(lambda _number: list_all(door.host, request), check, 0.03))


def cancel_removes(door: Door, old: bytes) -> int:
    del old
    script = f"import os\nfor n in range({CANCELS * 3}): os.makedirs(f'tree/{{n // 3}}/{{n % 3}}/x')"
    door.stage.run(CallRequest(door.session, ("python3", "-c", script)))

    def begin(number: int) -> Coroutine[object, object, object]:
        return door.host.remove_file(FileRemove(door.session, f"tree/{number}", recursive=True))

    count = door.stage.wait(cancel_often(begin, lambda _answer: None, 0.002))
    door.remove("tree", recursive=True)
    return count


CANCELLED = {"read": cancel_reads, "write": cancel_writes, "list": cancel_lists, "remove": cancel_removes}


@pytest.mark.parametrize("verb", CANCELLED)
def test_what_is_cancelled_leaves_nothing(stage: Stage, door: Door, tmp_path: Path, verb: str) -> None:
    witness = Door(stage, stage.create())
    witness.write("witness", b"witness" * 200_000)
    old = os.urandom(3 * MIB)
    door.read("/etc/passwd")
    before = descriptors()
    stop = threading.Event()
    seen: list[bool] = []

    def look_on() -> None:
        while not stop.is_set():
            seen.append(witness.read("witness") == b"witness" * 200_000)

    looking = threading.Thread(target=look_on)
    with Decoys(tmp_path):
        looking.start()
        try:
            cancelled = CANCELLED[verb](door, old)
        finally:
            stop.set()
            looking.join()
    assert cancelled > CANCELS / 10
    assert all(seen)
    assert len(seen) > 10
    assert settled(before) == before
    assert litter(door) == ""
    stage.wait(stage.host.destroy(witness.session))


def test_a_stream_that_was_left_gives_nothing_more(stage: Stage, door: Door, tmp_path: Path) -> None:
    """Its descriptor is closed; the number may be anyone's by now."""
    door.write("x", bytes(3 * MIB))
    door.shell("mkdir d; cd d; mkdir $(seq 1500)")
    decoy = tmp_path / "decoy"
    decoy.write_bytes(b"decoy" * MIB)

    async def scene() -> None:
        async with door.host.read_file(FileRead(door.session, "x")) as stream:
            reading = aiter(stream)
            assert await anext(reading)
        async with door.host.list_files(FileList(door.session, "d", depth=2)) as batches:
            assert await anext(batches)
        handles = [os.open(decoy, os.O_RDONLY) for _ in range(20)]
        try:
            with pytest.raises(InvalidState):
                await anext(reading)
            with pytest.raises(InvalidState):
                await anext(batches)
            again = aiter(stream)
            assert await anext(again) == bytes(MIB)  # it was in memory
            with pytest.raises(InvalidState):
                await anext(again)
        finally:
            for handle in handles:
                os.close(handle)

    before = descriptors()
    stage.wait(scene())
    assert settled(before) == before


def test_a_stream_can_be_read_twice_and_by_two(stage: Stage, door: Door) -> None:
    content = os.urandom(3 * MIB)
    door.write("x", content)

    async def scene() -> None:
        async with door.host.read_file(FileRead(door.session, "x")) as stream:

            async def whole() -> bytes:
                return b"".join([piece async for piece in stream])

            assert await whole() == content
            assert await asyncio.gather(whole(), whole()) == [content, content]

    before = descriptors()
    stage.wait(scene())
    assert settled(before) == before
