"""What every host promises of terminals: programs that go on while their clients come and go."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Broken, Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.terminal_clients import CLIENT_CHECKS
from sandlot.conformance.terminal_stage import (
    Reader,
    attach,
    entered,
    get,
    kill,
    open_terminal,
    output,
    type_keys,
)
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    CallNotFound,
    CallOutput,
    CallResult,
    CallState,
    Capability,
    CapabilityNotSupported,
    InvalidArgument,
    InvalidState,
    PauseRequest,
    SandlotError,
    SessionNotFound,
    SessionPaused,
    TerminalAttach,
    TerminalInput,
    TerminalKill,
    TerminalRequest,
    TerminalResize,
    TerminalResized,
    TerminalSize,
    Unavailable,
)

_DEADLINE_S = 60.0
_ASLEEP = ("sleep", "600")


# ---- one terminal --------------------------------------------------------------------------------------------------


async def a_program_has_a_terminal_of_the_size_that_was_asked_for(stage: Stage) -> None:
    """It runs on a terminal with so many rows and columns, and is told with its words and its size."""
    terminal = await open_terminal(stage, "sh", "-c", "stty size; sleep 600", size=TerminalSize(31, 97))
    told = (terminal.state, terminal.size, terminal.argv[:1], terminal.result)
    equal(told, (CallState.RUNNING, TerminalSize(31, 97), ("sh",), None))
    async with attach(stage, terminal) as stream:
        await Reader(stream).until(b"31 97\r\n")


async def keys_go_in_and_their_echo_comes_out(stage: Stage) -> None:
    """What is typed is echoed once, and read by the program; any text."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        await type_keys(stage, terminal, "grüße\r".encode())
        await reader.until("grüße\r\ngrüße\r\n".encode())
        await kill(stage, terminal)
        await reader.to_end()
    equal(bytes(reader.data), "grüße\r\ngrüße\r\n".encode())


async def the_end_of_input_is_a_key(stage: Stage) -> None:
    """Ctrl-D on an empty line ends what reads to the end."""
    terminal = await open_terminal(stage, "cat")
    async with attach(stage, terminal) as stream:
        await type_keys(stage, terminal, b"all\r\x04")
        reader = Reader(stream)
        equal((await reader.to_end()).exit_code, 0)
    equal(bytes(reader.data), b"all\r\nall\r\n")


async def without_a_program_it_is_a_shell(stage: Stage) -> None:
    """A login shell reads what is typed, runs it, and ends with the code that it is told."""
    terminal = await open_terminal(stage)
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        await type_keys(stage, terminal, b'echo wo""rks > a; cat a\r')
        await reader.until(b"works\r\n")
        await type_keys(stage, terminal, b"exit 7\r")
        equal((await reader.to_end()).exit_code, 7)


async def ctrl_c_ends_what_the_shell_runs(stage: Stage) -> None:
    """The key reaches the program in the foreground, and the shell goes on."""
    terminal = await open_terminal(stage, "sh")
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        await type_keys(stage, terminal, b'echo be""gins; sleep 600\r')
        await reader.until(b"begins\r\n")
        coming = asyncio.ensure_future(reader.until(b"goes on\r\n"))
        while not coming.done():
            # Pressed again: a shell may lose the first one while it starts its next program.
            await type_keys(stage, terminal, b"\x03")
            await type_keys(stage, terminal, b'echo go""es on\r')
            await asyncio.wait({coming}, timeout=1)
        await coming


async def its_size_can_be_changed(stage: Stage) -> None:
    """The program sees the new size, whoever reads is told of it, and so is who asks."""
    terminal = await open_terminal(stage, "sh")
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        size = TerminalSize(11, 222)
        await stage.host.resize_terminal(TerminalResize(stage.session.session_id, terminal.terminal_id, size))
        equal((await reader.other(TerminalResized)).size, size)
        equal((await get(stage, terminal)).size, size)
        await type_keys(stage, terminal, b"stty size\r")
        await reader.until(b"11 222\r\n")


async def a_terminal_id_is_opened_once(stage: Stage) -> None:
    """Asked for again it is the same terminal, also when it has ended, and the program has run once."""
    name = f"c-{secrets.token_hex(6)}"
    asked = ("sh", "-c", "echo once >> a; echo here; cat")
    first, second = await asyncio.gather(*(open_terminal(stage, *asked, terminal_id=name) for _ in range(2)))
    equal((first.terminal_id, second.terminal_id), (name, name))
    async with attach(stage, first) as stream:
        reader = Reader(stream)
        await reader.until(b"here\r\n")
        await kill(stage, first)
        await reader.to_end()
    third = await open_terminal(stage, *asked, terminal_id=name)
    equal((third.terminal_id, third.state), (name, CallState.ENDED))
    equal((await stage.sh("cat a")).text, "once")


async def its_end_is_told(stage: Stage) -> None:
    """Last of all, with its code; afterwards it can be asked for and read, it is in no list, and keys are dropped."""
    terminal = await open_terminal(stage, "sh", "-c", "echo bye; exit 5")
    reader, result = await output(stage, terminal)
    equal((bytes(reader.data), result.exit_code, result.call_id), (b"bye\r\n", 5, terminal.terminal_id))
    told = await get(stage, terminal)
    equal((told.state, told.size, told.result, told.end), (CallState.ENDED, None, result, 5))
    equal(await stage.host.terminals(stage.session.session_id), [])
    await type_keys(stage, terminal, b"nobody reads this\r")
    await kill(stage, terminal)
    again, same = await output(stage, terminal)
    equal((bytes(again.data), same), (b"bye\r\n", result))


async def it_is_killed_with_all_that_it_started(stage: Stage) -> None:
    """Killing it ends the program and its children, and whoever reads is told so."""
    terminal = await open_terminal(stage, "sh", "-c", "setsid sleep 600 & echo $!; wait")
    async with attach(stage, terminal) as stream:
        reader = Reader(stream)
        pid = int((await reader.until(b"\r\n")).split()[0])
        expect(await stage.is_alive(pid), "what it started does not run")
        await kill(stage, terminal)
        expect((await reader.to_end()).exit_code > 128, "a killed terminal ended by itself")
    await stage.wait_gone(pid)


async def a_signal_is_sent_alone(stage: Stage) -> None:
    """One that is asked for is what the program gets; a number that is none is refused."""
    terminal = await open_terminal(stage, *_ASLEEP)
    await refused(kill(stage, terminal, 9999), InvalidArgument)
    await kill(stage, terminal, 15)
    _reader, result = await output(stage, terminal)
    equal((result.exit_code, result.signal), (143, 15))


async def what_cannot_be_run_has_ended(stage: Stage) -> None:
    """A program that is not there is no error: the terminal has ended with 127, and says why."""
    terminal = await open_terminal(stage, "no-such-program")
    _reader, result = await output(stage, terminal)
    equal(result.exit_code, 127)
    expect(bool(result.reason), "no reason is told")
    told = await get(stage, terminal)
    equal((told.state, told.result), (CallState.ENDED, result))


async def a_user_that_is_none_is_refused(stage: Stage) -> None:
    """Nothing is opened for somebody whom the session does not know."""
    await refused(open_terminal(stage, "sh", user="nobody-knows-him"), InvalidArgument)
    equal(await stage.host.terminals(stage.session.session_id), [])


# ---- among other things --------------------------------------------------------------------------------------------


async def those_that_live_are_listed(stage: Stage) -> None:
    """Oldest first, and of one session alone."""
    other = await stage.another()
    first, second = await open_terminal(stage, "cat"), await open_terminal(stage, "cat")
    third = await open_terminal(other, "cat")
    names = [one.terminal_id for one in await stage.host.terminals(stage.session.session_id)]
    equal(names, [first.terminal_id, second.terminal_id])
    await kill(stage, first)
    names = [one.terminal_id for one in await stage.host.terminals(stage.session.session_id)]
    equal(names, [second.terminal_id])
    await refused(get(stage, third), CallNotFound)


async def a_terminal_is_a_call(stage: Stage) -> None:
    """It is among the calls, with its id, and can be read as one."""
    terminal = await open_terminal(stage, "sh", "-c", "echo out; exit 3")
    async with stage.host.attach(stage.session.session_id, terminal.terminal_id) as stream:
        *output, last = [event async for event in stream]
    expect(isinstance(last, CallResult) and last.exit_code == 3, f"as a call it ended with {last}")
    equal(b"".join(one.data for one in output if isinstance(one, CallOutput)), b"out\r\n")
    records = {one.call_id: one.state for one in await stage.host.calls(stage.session.session_id)}
    equal(records.get(terminal.terminal_id), CallState.ENDED)


async def what_is_no_terminal_is_refused(stage: Stage) -> None:
    """A call without one is not written to; what is not there is not found, by any verb."""
    host, session_id = stage.host, stage.session.session_id
    call = await stage.run("echo", "plain")
    await refused(host.write_terminal(TerminalInput(session_id, call.result.call_id, b"a")), InvalidState)
    for where, error in ((session_id, CallNotFound), ("no-such-session", SessionNotFound)):
        await refused(host.get_terminal(where, "missing"), error)
        await refused(entered(host.attach_terminal(TerminalAttach(where, "missing"))), error)
        await refused(host.write_terminal(TerminalInput(where, "missing", b"a")), error)
        await refused(host.resize_terminal(TerminalResize(where, "missing", TerminalSize())), error)
        await refused(host.kill_terminal(TerminalKill(where, "missing")), error)
    await refused(host.terminals("no-such-session"), SessionNotFound)
    await refused(host.open_terminal(TerminalRequest("no-such-session")), SessionNotFound)


async def it_stands_still_with_its_session(stage: Stage) -> None:
    """While the session is paused none is opened and nothing is printed; then it goes on."""
    terminal = await open_terminal(stage, "cat")
    await stage.host.pause(PauseRequest(stage.session.session_id))
    await refused(open_terminal(stage, "cat"), SessionPaused)
    equal([one.state for one in await stage.host.terminals(stage.session.session_id)], [CallState.RUNNING])
    await stage.host.resume(stage.session.session_id)
    await type_keys(stage, terminal, b"on\r")
    async with attach(stage, terminal) as stream:
        await Reader(stream).until(b"on\r\non\r\n")


async def it_ends_with_its_session(stage: Stage) -> None:
    """Whoever reads hears that it is gone, and nobody finds it again."""
    other = await stage.another()
    terminal = await open_terminal(other, "sh", "-c", "echo here; sleep 600")
    async with attach(other, terminal) as stream:
        reader = Reader(stream)
        await reader.until(b"here")
        ending = asyncio.ensure_future(reader.to_end())
        await asyncio.sleep(0)
        await stage.host.destroy(other.session.session_id)
        try:
            await ending
        except SandlotError as error:
            expect(isinstance(error, (Unavailable, SessionNotFound)), f"{type(error).__name__} was raised")
        else:
            raise Broken("a terminal whose session was destroyed ended by itself")
    await refused(get(other, terminal), SessionNotFound)


async def where_there_are_none_it_is_said(stage: Stage) -> None:
    """Without the capability a terminal is refused, and nothing runs."""
    await refused(open_terminal(stage, "sh"), CapabilityNotSupported)
    equal(await stage.host.terminals(stage.session.session_id), [])


_NEEDS = (Capability.TERMINALS,)
_CHECKS: tuple[Check[Stage], ...] = (
    *(
        Check(run, _NEEDS)
        for run in (
            a_program_has_a_terminal_of_the_size_that_was_asked_for,
            keys_go_in_and_their_echo_comes_out,
            the_end_of_input_is_a_key,
            without_a_program_it_is_a_shell,
            ctrl_c_ends_what_the_shell_runs,
            its_size_can_be_changed,
            a_terminal_id_is_opened_once,
            its_end_is_told,
            it_is_killed_with_all_that_it_started,
            a_signal_is_sent_alone,
            what_cannot_be_run_has_ended,
            those_that_live_are_listed,
            a_terminal_is_a_call,
            what_is_no_terminal_is_refused,
            it_ends_with_its_session,
        )
    ),
    *CLIENT_CHECKS,
    Check(a_user_that_is_none_is_refused, (*_NEEDS, Capability.USERS)),
    Check(it_stands_still_with_its_session, (*_NEEDS, Capability.PAUSE)),
    Check(where_there_are_none_it_is_said, unless=Capability.TERMINALS),
)
TERMINAL_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(check.run, check.needs, check.unless, _DEADLINE_S) for check in _CHECKS
)

# By runtime and check: why it is so. An entry whose check passes fails the run.
TERMINAL_DEVIATIONS: Mapping[str, Mapping[str, str]] = {
    "gvisor": {"the_end_of_input_is_a_key": "its terminals know no end of input, so Ctrl-D hangs up"},
}


async def conform_terminals(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = TERMINAL_CHECKS,
    deviations: Mapping[str, str] | None = None,
) -> AsyncIterator[Outcome]:
    """As `conform_host` does it. `deviations`: None, those of the runtime."""
    told = await host.capabilities() if have is None else have
    known = TERMINAL_DEVIATIONS.get(runtime, {}) if deviations is None else deviations
    known = {name: why for name, why in known.items() if name in {check.name for check in checks}}
    async for outcome in conform(host, runtime, checks, known, storage, told):
        yield outcome
