"""What every host promises of managed processes: launched, told, read, fed, killed, started again."""

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.file_stage import refused
from sandlot.conformance.process_runs import RUN_CHECKS
from sandlot.conformance.process_stage import FOREVER, ended, hear, launch, printed, read, sh, status, until_ready
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    Capability,
    Conflict,
    DeadlineExceeded,
    ForkRequest,
    InvalidArgument,
    InvalidState,
    PauseRequest,
    ProcessLogs,
    ProcessNotFound,
    ProcessState,
    Restart,
    RollbackRequest,
    SessionNotFound,
    SessionPaused,
    SnapshotRequest,
    StartFailed,
    Stream,
    Unavailable,
    limits,
)

_DEADLINE_S = 60.0


# ---- life ----------------------------------------------------------------------------------------------------------


async def a_process_outlives_its_caller(stage: Stage) -> None:
    """It runs when it was launched, is told and listed, and is none of the session's calls."""
    process = await launch(stage, *FOREVER, name="server")
    equal((process.state, process.exit_code, process.ended), (ProcessState.RUNNING, None, None))
    equal((process.name, process.argv, process.restarts), ("server", FOREVER, 0))
    expect(bool(process.pid), "it has no number")
    expect(abs(process.started - time.time()) < 3600, f"it began at {process.started}")
    equal(await status(stage, process.process_id), process)
    equal(await status(stage, "server"), process)
    equal(list(await stage.host.list_processes(stage.session.session_id)), [process])
    equal(list(await stage.host.calls(stage.session.session_id)), [])


async def its_end_is_told(stage: Stage) -> None:
    """With its code and its time, to whoever waits, and to whoever asks later."""
    process = await sh(stage, "read x; exit 3", stdin=True)
    waiting = asyncio.ensure_future(ended(stage, process.process_id))
    await asyncio.sleep(0)
    await stage.host.close_process_stdin(stage.session.session_id, process.process_id)
    told = await waiting
    equal((told.state, told.exit_code, told.signal), (ProcessState.EXITED, 3, None))
    expect(told.ended is not None and told.ended >= told.started, f"it began at {told.started}, ended at {told.ended}")
    equal(await ended(stage, process.process_id), told)
    equal(await status(stage, process.process_id), told)


async def what_cannot_be_started_is_told(stage: Stage) -> None:
    """As an error, with 127; and it is listed as ended."""
    failed = await refused(launch(stage, "no-such-program", name="none"), StartFailed)
    expect("no-such-program" in failed.message, failed.message)
    told = await status(stage, "none")
    equal((told.state, told.exit_code), (ProcessState.EXITED, 127))
    expect(bool(told.reason), "no reason is told")


async def what_is_no_program_is_told(stage: Stage) -> None:
    """A file that cannot be executed is 126; a directory that is not there is an error too."""
    await stage.sh("echo text > file")
    await refused(launch(stage, "./file", name="file"), StartFailed)
    equal((await status(stage, "file")).exit_code, 126)
    await refused(launch(stage, "true", name="lost", cwd="no/such/directory"), StartFailed)
    equal((await status(stage, "lost")).state, ProcessState.EXITED)


async def variables_and_directories_are_its_own(stage: Stage) -> None:
    """What it brings is there for it."""
    await stage.sh("mkdir -p below")
    process = await sh(stage, "echo $ONE > mark", envs={"ONE": "of the process"}, cwd="below")
    equal((await ended(stage, process.process_id)).exit_code, 0)
    equal((await stage.sh("cat below/mark")).text, "of the process")


async def a_user_is_its_own(stage: Stage) -> None:
    """A process runs as the user that it names."""
    process = await sh(stage, "id -u", user="0")
    await ended(stage, process.process_id)
    equal(printed(await read(stage, process.process_id)), b"0\n")


async def a_name_is_of_one_process(stage: Stage) -> None:
    """It is free when its process has ended; then it means the newest."""
    first = await launch(stage, *FOREVER, name="one")
    await refused(launch(stage, *FOREVER, name="one"), Conflict)
    await stage.host.kill_process(stage.session.session_id, "one")
    second = await launch(stage, *FOREVER, name="one")
    expect(second.process_id != first.process_id, "two processes have one id")
    equal((await status(stage, "one")).process_id, second.process_id)
    equal((await status(stage, first.process_id)).state, ProcessState.EXITED)


async def an_id_is_launched_once(stage: Stage) -> None:
    """Asked for again it is told, also at the same time and after its end; another program of that id is refused."""
    name = f"p-{secrets.token_hex(6)}"
    argv = ("sh", "-c", "echo ran >> runs; read x")
    both = await asyncio.gather(*(launch(stage, *argv, process_id=name, stdin=True) for _ in range(2)))
    equal({each.process_id for each in both}, {name})
    await refused(launch(stage, "true", process_id=name), Conflict)
    await stage.host.close_process_stdin(stage.session.session_id, name)
    await ended(stage, name)
    equal((await launch(stage, *argv, process_id=name, stdin=True)).state, ProcessState.EXITED)
    equal((await stage.sh("cat runs")).text, "ran")
    equal(len(await stage.host.list_processes(stage.session.session_id)), 1)


async def many_are_kept_apart(stage: Stage) -> None:
    """Each has its own output and its own end, and they are listed in their order."""
    names = [f"n{number}" for number in range(12)]
    for number, name in enumerate(names):
        await sh(stage, f"echo {number}; read x; echo $x; exit {number}", name=name, stdin=True)
    for name in reversed(names):
        await stage.host.write_process_stdin(stage.session.session_id, name, f"{name}\n".encode())
    for number, name in enumerate(names):
        equal((await ended(stage, name)).exit_code, number)
        equal(printed(await read(stage, name)), f"{number}\n{name}\n".encode())
    equal([each.name for each in await stage.host.list_processes(stage.session.session_id)], names)


async def what_is_not_there_is_not_found(stage: Stage) -> None:
    """By no verb; and what makes no sense is refused."""
    host, name = stage.host, stage.session.session_id
    for attempt in (
        host.process_status(name, "nobody"),
        host.kill_process(name, "nobody"),
        host.wait_process(name, "nobody"),
        host.write_process_stdin(name, "nobody", b"x"),
        host.close_process_stdin(name, "nobody"),
        read(stage, "nobody"),
    ):
        await refused(attempt, ProcessNotFound)
    await refused(host.process_status("s-nobody", "nobody"), SessionNotFound)
    process = await launch(stage, *FOREVER)
    await refused(host.kill_process(name, process.process_id, 4000), InvalidArgument)
    equal((await status(stage, process.process_id)).state, ProcessState.RUNNING)


# ---- what it prints ------------------------------------------------------------------------------------------------


async def output_is_read_from_anywhere(stage: Stage) -> None:
    """Both streams, apart, from any offset of each, from its end, or not at all."""
    process = await sh(stage, "printf 0123456789; printf abcdefghij >&2", name="p")
    told = await ended(stage, process.process_id)
    equal((told.stdout_bytes, told.stderr_bytes), (10, 10))
    for options, out, err in (
        ({}, b"0123456789", b"abcdefghij"),
        ({"stdout_from": 4, "stderr_from": 9}, b"456789", b"j"),
        ({"stdout_from": -3, "stderr_from": None}, b"789", b""),
        ({"stdout_from": None}, b"", b"abcdefghij"),
        ({"stdout_from": 10, "stderr_from": -100}, b"", b"abcdefghij"),
        ({"stdout_from": 50, "stderr_from": 50, "follow": True}, b"", b""),
    ):
        pieces = await read(stage, "p", **options)
        equal((printed(pieces), printed(pieces, Stream.STDERR)), (out, err))
        equal([piece.lost for piece in pieces], [0] * len(pieces))
    pieces = await read(stage, "p", stdout_from=4, stderr_from=None)
    equal(pieces[0].offset, 4)


async def output_is_heard_as_it_comes(stage: Stage) -> None:
    """Whoever follows hears all of it once, whenever he came, until the process has ended for good."""
    process = await sh(stage, "echo first; read x; echo second; read x; echo third >&2", stdin=True)
    name, session_id = process.process_id, stage.session.session_id
    early = asyncio.ensure_future(read(stage, name, follow=True))
    await hear(stage, name, b"first\n")
    await stage.host.write_process_stdin(session_id, name, b"\n")
    await hear(stage, name, b"second\n")
    late = asyncio.ensure_future(read(stage, name, follow=True, stdout_from=6))
    await stage.host.write_process_stdin(session_id, name, b"\n")
    pieces = await early
    equal((printed(pieces), printed(pieces, Stream.STDERR)), (b"first\nsecond\n", b"third\n"))
    pieces = await late
    equal((printed(pieces), printed(pieces, Stream.STDERR)), (b"second\n", b"third\n"))


async def the_newest_output_is_kept(stage: Stage) -> None:
    """Not more than was asked for, and most of that; how much is missing is told to the byte."""
    lines = 40_000
    process = await sh(stage, f"seq {lines}", log_bytes_max=limits.PROCESS_LOG_BYTES_MIN)
    told = await ended(stage, process.process_id)
    whole = "".join(f"{number}\n" for number in range(1, lines + 1)).encode()
    equal(told.stdout_bytes, len(whole))
    pieces = await read(stage, process.process_id)
    kept = printed(pieces)
    expect(len(kept) <= limits.PROCESS_LOG_BYTES_MIN, f"{len(kept)} bytes are kept")
    expect(len(kept) >= limits.PROCESS_LOG_BYTES_MIN // 2, f"only {len(kept)} bytes are kept")
    expect(whole.endswith(kept), "what is kept is not the end")
    equal([piece.lost for piece in pieces], [len(whole) - len(kept)] + [0] * (len(pieces) - 1))
    equal(pieces[0].offset, len(whole) - len(kept))


async def a_reader_that_never_reads_harms_nobody(stage: Stage) -> None:
    """The process prints on and ends, and others read it."""
    process = await sh(stage, "read x; seq 200000; echo end", stdin=True, log_bytes_max=limits.PROCESS_LOG_BYTES_MIN)
    request = ProcessLogs(stage.session.session_id, process.process_id, follow=True)
    async with stage.host.process_logs(request) as _unread:
        await stage.host.close_process_stdin(stage.session.session_id, process.process_id)
        equal((await ended(stage, process.process_id)).exit_code, 0)
        expect(printed(await read(stage, process.process_id)).endswith(b"200000\nend\n"), "the end is missing")


# ---- what it is given ----------------------------------------------------------------------------------------------


async def input_arrives_and_ends(stage: Stage) -> None:
    """As it was written, whole, until it is closed."""
    content = bytes(range(256)) * 1000
    process = await launch(stage, "cat", stdin=True)
    for start in range(0, len(content), 60_000):
        piece = content[start : start + 60_000]
        await stage.host.write_process_stdin(stage.session.session_id, process.process_id, piece)
    await stage.host.close_process_stdin(stage.session.session_id, process.process_id)
    equal((await ended(stage, process.process_id)).exit_code, 0)
    equal(printed(await read(stage, process.process_id)) == content, True)


async def without_input_there_is_none(stage: Stage) -> None:
    """It is empty for the program, and whoever writes is refused; also when the program has ended."""
    quiet = await launch(stage, "cat")
    equal((await ended(stage, quiet.process_id)).exit_code, 0)
    process = await launch(stage, *FOREVER)
    session_id = stage.session.session_id
    await refused(stage.host.write_process_stdin(session_id, process.process_id, b"x"), InvalidState)
    await refused(stage.host.close_process_stdin(session_id, process.process_id), InvalidState)
    over = await launch(stage, "true", stdin=True)
    await ended(stage, over.process_id)
    await refused(stage.host.write_process_stdin(session_id, over.process_id, b"x"), InvalidState)


# ---- its end -------------------------------------------------------------------------------------------------------


async def a_kill_is_an_end(stage: Stage) -> None:
    """It has ended when that returns; one that has ended is told as it is."""
    process = await launch(stage, *FOREVER)
    told = await stage.host.kill_process(stage.session.session_id, process.process_id)
    equal((told.state, told.exit_code, told.signal), (ProcessState.EXITED, 128 + 15, 15))
    equal(await stage.host.kill_process(stage.session.session_id, process.process_id), told)
    equal(await stage.host.kill_process(stage.session.session_id, process.process_id, signal.SIGKILL), told)
    other = await launch(stage, *FOREVER)
    await stage.host.kill_process(stage.session.session_id, other.process_id, signal.SIGKILL)
    told = await ended(stage, other.process_id)
    equal((told.exit_code, told.signal), (137, 9))


async def a_kill_reaches_all_that_descends(stage: Stage) -> None:
    """Also what has left its group and its session."""
    process = await sh(stage, "sleep 600 & echo $!; setsid sleep 600 & echo $!; echo all; wait")
    heard = await hear(stage, process.process_id, b"all\n")
    await stage.host.kill_process(stage.session.session_id, process.process_id)
    for word in heard.split()[:2]:
        await stage.wait_gone(int(word))


async def a_kill_reaches_who_has_left(stage: Stage) -> None:
    """Also a daemon: its parents have ended, and it has a group and a session of its own."""
    process = await sh(stage, "(setsid sh -c 'echo $$; echo all; exec sleep 600' &); sleep 600")
    heard = await hear(stage, process.process_id, b"all\n")
    told = await stage.host.kill_process(stage.session.session_id, process.process_id)
    equal((told.exit_code, told.signal), (143, 15))
    await stage.wait_gone(int(heard.split()[0]))


async def who_does_not_listen_below_is_killed(stage: Stage) -> None:
    """What ignores TERM ends a moment later, below a program that ends by it, and in a session of its own."""
    deaf = "sh -c \"trap '' TERM; echo \\$\\$; exec sleep 600\""
    process = await sh(stage, f"{deaf} & setsid {deaf} & (setsid {deaf} &); wait")
    while len(heard := printed(await read(stage, process.process_id)).split()) < 3:
        equal((await status(stage, process.process_id)).state, ProcessState.RUNNING)
        await asyncio.sleep(0.05)
    told = await stage.host.kill_process(stage.session.session_id, process.process_id)
    equal((told.state, told.exit_code, told.signal), (ProcessState.EXITED, 143, 15))
    for word in heard:
        await stage.wait_gone(int(word))


async def who_does_not_listen_is_killed(stage: Stage) -> None:
    """A program that ignores TERM ends a moment later."""
    process = await sh(stage, "trap '' TERM; echo deaf; while true; do sleep 0.1; done")
    await hear(stage, process.process_id, b"deaf\n")
    told = await stage.host.kill_process(stage.session.session_id, process.process_id)
    equal((told.state, told.exit_code, told.signal), (ProcessState.EXITED, 137, 9))


async def a_signal_is_sent_alone(stage: Stage) -> None:
    """A program that takes it goes on."""
    process = await sh(stage, "trap 'echo heard' USR1; echo ready; while true; do sleep 0.1; done")
    await hear(stage, process.process_id, b"ready\n")
    await stage.host.kill_process(stage.session.session_id, process.process_id, signal.SIGUSR1)
    await hear(stage, process.process_id, b"heard\n")
    equal((await status(stage, process.process_id)).state, ProcessState.RUNNING)


async def a_wait_has_an_end(stage: Stage) -> None:
    """After its time it is an error, and the process goes on."""
    process = await launch(stage, *FOREVER)
    wait = stage.host.wait_process(stage.session.session_id, process.process_id, timeout_s=0.2)
    await refused(wait, DeadlineExceeded)
    equal((await status(stage, process.process_id)).state, ProcessState.RUNNING)


# ---- its session ---------------------------------------------------------------------------------------------------


async def it_stands_still_with_its_session(stage: Stage) -> None:
    """While that is paused nothing is launched or killed, and what was printed can be read; then it goes on."""
    session_id = stage.session.session_id
    process = await sh(stage, "echo before; read x; echo after", stdin=True)
    await hear(stage, process.process_id, b"before\n")
    await stage.host.pause(PauseRequest(session_id))
    await refused(launch(stage, "true"), SessionPaused)
    await refused(stage.host.kill_process(session_id, process.process_id), SessionPaused)
    equal(printed(await read(stage, process.process_id)), b"before\n")
    await stage.host.resume(session_id)
    await stage.host.write_process_stdin(session_id, process.process_id, b"\n")
    equal((await ended(stage, process.process_id)).exit_code, 0)
    equal(printed(await read(stage, process.process_id)), b"before\nafter\n")


async def a_rollback_ends_it(stage: Stage) -> None:
    """It is told as ended; what is to be started again is, on the files that are there then."""
    session_id = stage.session.session_id
    await stage.sh("echo old > mark")
    await stage.host.create_snapshot(SnapshotRequest(session_id, "before"))
    await stage.sh("echo new > mark")
    plain = await launch(stage, *FOREVER)
    kept = await sh(stage, "cat mark; sleep 600", restart=Restart.ON_FAILURE, restarts_max=0)
    await hear(stage, kept.process_id, b"new\n")
    await stage.host.rollback(RollbackRequest(session_id, "before"))
    equal((await ended(stage, plain.process_id)).state, ProcessState.EXITED)
    equal(await hear(stage, kept.process_id, b"old\n"), b"new\nold\n")
    equal((await until_ready(stage, kept.process_id)).state, ProcessState.RUNNING)


async def a_fork_has_none(stage: Stage) -> None:
    """Processes are of the session that launched them."""
    session_id = stage.session.session_id
    await launch(stage, *FOREVER, name="server")
    await stage.host.create_snapshot(SnapshotRequest(session_id, "point"))
    (made,) = await stage.host.fork(ForkRequest(session_id, "point"))
    child = stage.on(made)
    equal(list(await stage.host.list_processes(made.session_id)), [])
    equal((await launch(child, *FOREVER, name="server")).state, ProcessState.RUNNING)
    equal(len(await stage.host.list_processes(session_id)), 1)


async def it_ends_with_its_session(stage: Stage) -> None:
    """Whoever waits for it, or follows it, is told so."""
    other = await stage.another()
    process = await launch(other, *FOREVER)
    waiting = asyncio.ensure_future(ended(other, process.process_id))
    reading = asyncio.ensure_future(read(other, process.process_id, follow=True))
    await asyncio.sleep(0.05)
    await stage.host.destroy(other.session.session_id)
    await refused(waiting, Unavailable, SessionNotFound)
    await refused(reading, Unavailable, SessionNotFound)
    await refused(stage.host.list_processes(other.session.session_id), SessionNotFound)


PROCESS_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(check.run, check.needs, check.unless, _DEADLINE_S)
    for check in (
        Check(a_process_outlives_its_caller),
        Check(its_end_is_told),
        Check(what_cannot_be_started_is_told),
        Check(what_is_no_program_is_told),
        Check(variables_and_directories_are_its_own),
        Check(a_user_is_its_own, (Capability.USERS,)),
        Check(a_name_is_of_one_process),
        Check(an_id_is_launched_once),
        Check(many_are_kept_apart),
        Check(what_is_not_there_is_not_found),
        Check(output_is_read_from_anywhere),
        Check(output_is_heard_as_it_comes),
        Check(the_newest_output_is_kept),
        Check(a_reader_that_never_reads_harms_nobody),
        Check(input_arrives_and_ends),
        Check(without_input_there_is_none),
        Check(a_kill_is_an_end),
        Check(a_kill_reaches_all_that_descends),
        Check(a_kill_reaches_who_has_left),
        Check(who_does_not_listen_below_is_killed),
        Check(who_does_not_listen_is_killed),
        Check(a_signal_is_sent_alone),
        Check(a_wait_has_an_end),
        *RUN_CHECKS,
        Check(it_stands_still_with_its_session, (Capability.PAUSE,)),
        Check(a_rollback_ends_it, (Capability.SNAPSHOTS,)),
        Check(a_fork_has_none, (Capability.SNAPSHOTS,)),
        Check(it_ends_with_its_session),
    )
)


async def conform_processes(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = PROCESS_CHECKS,
    deviations: Mapping[str, str] = {},
) -> AsyncIterator[Outcome]:
    """Each check on a session of its own; nothing is left of it. `have`: what such sessions can do; None: what the host
    says of those that are made with defaults."""
    told = await host.capabilities() if have is None else have
    async for outcome in conform(host, runtime, checks, deviations, storage, told):
        yield outcome
