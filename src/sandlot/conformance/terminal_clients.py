"""What every host promises of the clients of a terminal: they come and go, and do not harm one another."""

import asyncio

from sandlot.conformance.checks import Check, Stage, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.terminal_stage import (
    Reader,
    attach,
    entered,
    get,
    give_file,
    kill,
    numbers,
    open_terminal,
    output,
    type_keys,
)
from sandlot.model import (
    Capability,
    Conflict,
    InputMode,
    Terminal,
    TerminalResize,
    TerminalSize,
    TerminalTaken,
    limits,
)

_POLL_S = 0.02
_A_WHILE_S = 0.3
_ASLEEP = ("sleep", "600")
_SMALL = limits.TERMINAL_WINDOW_BYTES_MIN


async def it_outlives_its_clients(stage: Stage) -> None:
    """Leaving ends nothing. Who comes again reads all from the beginning, from a byte on, or what is new."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal) as stream:
        await type_keys(stage, terminal, b"one\r")
        await Reader(stream).until(b"one\r\none\r\n")
    await type_keys(stage, terminal, b"two\r")
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        await reader.until(b"two\r\ntwo\r\n")
    equal((reader.first, bytes(reader.data)), (0, b"one\r\none\r\ntwo\r\ntwo\r\n"))
    async with attach(stage, terminal, 5) as stream:
        reader = Reader(stream)
        await reader.until(b"two\r\ntwo\r\n")
    equal((reader.first, bytes(reader.data)), (5, b"one\r\ntwo\r\ntwo\r\n"))
    async with attach(stage, terminal, None) as stream:
        reader = Reader(stream)
        await type_keys(stage, terminal, b"new\r")
        await reader.until(b"new\r\nnew\r\n")
    equal((reader.first, bytes(reader.data)), (20, b"new\r\nnew\r\n"))


async def many_read_the_same(stage: Stage) -> None:
    """Every reader hears every byte, and is counted while it is there."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal) as one, attach(stage, terminal) as two, attach(stage, terminal) as three:
        equal((await get(stage, terminal)).readers, 3)
        expect(len({one.client_id, two.client_id, three.client_id}) == 3, "two clients have one name")
        readers = [Reader(stream) for stream in (one, two, three)]
        await type_keys(stage, terminal, b"all\r")
        await asyncio.gather(*(reader.until(b"all\r\nall\r\n") for reader in readers))
        await kill(stage, terminal)
        results = await asyncio.gather(*(reader.to_end() for reader in readers))
    equal([bytes(reader.data) for reader in readers], [b"all\r\nall\r\n"] * 3)
    equal(len(set(results)), 1)


async def only_the_newest_is_kept(stage: Stage) -> None:
    """It prints more than its window has room for: the newest of it can be read, and offsets tell what is missing."""
    content = numbers(40_000)
    await give_file(stage, "a", content)
    terminal = await open_terminal(stage, "cat", "a", window_bytes=_SMALL)
    reader, _result = await output(stage, terminal)
    expect(bytes(reader.data) in content or reader.missed > 0, "what was told is not what was printed")
    told = await get(stage, terminal)
    equal((told.window_bytes, told.kept_from, told.end), (_SMALL, len(content) - _SMALL, len(content)))
    again, _result = await output(stage, terminal)
    equal((again.first, again.missed), (told.kept_from, 0))
    equal(bytes(again.data) == content[told.kept_from :], True)


async def who_reads_slowly_misses_and_harms_nobody(stage: Stage) -> None:
    """A client that does not read holds up neither the program nor the others, and sees by the offsets what it
    missed."""
    content = numbers(100_000)
    await give_file(stage, "a", content)
    terminal = await open_terminal(stage, "sh", window_bytes=_SMALL)
    async with attach(stage, terminal) as slow, attach(stage, terminal) as quick:
        sleeper, reader = Reader(slow), Reader(quick)
        await type_keys(stage, terminal, b'echo be""gins\r')
        await sleeper.until(b"begins\r\n")
        await type_keys(stage, terminal, b"exec cat a\r")
        equal((await reader.to_end()).exit_code, 0)
        expect(reader.data.endswith(content[-1000:]), "the quick one did not hear the end")
        equal((await sleeper.to_end()).exit_code, 0)
        expect(sleeper.missed > 0, "the slow one missed nothing")
        equal(bytes(sleeper.data[-_SMALL:]) == content[-_SMALL:], True)


async def a_write_waits_while_nobody_reads(stage: Stage) -> None:
    """Keys that the program does not take wait with whoever types them, and nobody else; its end ends the waiting."""
    terminal = await open_terminal(stage, *_ASLEEP)
    typing = asyncio.ensure_future(_flood(stage, terminal))
    await asyncio.sleep(_A_WHILE_S)
    expect(not typing.done(), "a megabyte of keys was taken by a program that reads none")
    equal((await stage.sh("echo others go on")).text, "others go on")
    await kill(stage, terminal)
    await typing


async def _flood(stage: Stage, terminal: Terminal) -> None:
    for _ in range(4):
        await type_keys(stage, terminal, b"0123456789abcde\r" * 16384)


async def the_input_can_be_held(stage: Stage) -> None:
    """While one client holds it, no other writes, changes the size, or holds it; reading is free. It goes with its
    client."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal, input=InputMode.HOLD, client_id="first") as held:
        equal((held.client_id, (await get(stage, terminal)).holder), ("first", "first"))
        for other in ("", "second"):
            await refused(type_keys(stage, terminal, b"stolen\r", other), Conflict)
        size = TerminalResize(stage.session.session_id, terminal.terminal_id, TerminalSize(9, 9), "second")
        await refused(stage.host.resize_terminal(size), Conflict)
        wanted = attach(stage, terminal, input=InputMode.HOLD, client_id="second")
        await refused(entered(wanted), Conflict)
        async with attach(stage, terminal, client_id="second") as watching:
            await type_keys(stage, terminal, b"mine\r", "first")
            await Reader(watching).until(b"mine\r\nmine\r\n")
    while (await get(stage, terminal)).holder:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    await type_keys(stage, terminal, b"anyone\r")
    async with attach(stage, terminal) as stream:
        equal(await Reader(stream).until(b"anyone\r\nanyone\r\n"), b"mine\r\nmine\r\nanyone\r\nanyone\r\n")


async def the_input_can_be_taken_over(stage: Stage) -> None:
    """Who held it is told by whom it was taken, reads on, and writes no more."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal, input=InputMode.HOLD, client_id="first") as old:
        reader = Reader(old)
        async with attach(stage, terminal, input=InputMode.TAKE, client_id="second"):
            equal((await reader.other(TerminalTaken)).by, "second")
            await refused(type_keys(stage, terminal, b"late\r", "first"), Conflict)
            await type_keys(stage, terminal, b"new\r", "second")
            equal(await reader.until(b"new\r\nnew\r\n"), b"new\r\nnew\r\n")
        equal([one for one in reader.others if isinstance(one, TerminalTaken)], [TerminalTaken("second")])


async def a_client_that_comes_again_has_its_input(stage: Stage) -> None:
    """One whose connection was cut holds the input again, although the old connection was not missed yet."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal, input=InputMode.HOLD, client_id="mine"):
        async with attach(stage, terminal, input=InputMode.HOLD, client_id="mine") as again:
            await type_keys(stage, terminal, b"still me\r", "mine")
            await Reader(again).until(b"still me\r\nstill me\r\n")
        equal((await get(stage, terminal)).holder, "mine")


CLIENT_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(run, (Capability.TERMINALS,))
    for run in (
        it_outlives_its_clients,
        many_read_the_same,
        only_the_newest_is_kept,
        who_reads_slowly_misses_and_harms_nobody,
        a_write_waits_while_nobody_reads,
        the_input_can_be_held,
        the_input_can_be_taken_over,
        a_client_that_comes_again_has_its_input,
    )
)
