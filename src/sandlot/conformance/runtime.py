"""What every runtime does with a command. It talks to a `Host`, so the same suite runs at every depth."""

import asyncio
import hashlib
import signal
from collections.abc import Mapping

from sandlot.conformance.checks import Broken, Check, Stage, collect, equal, expect, read_until
from sandlot.conformance.standstill import STANDSTILL_CHECKS
from sandlot.model import (
    CallNotFound,
    CallState,
    InvalidArgument,
    InvalidState,
    LimitHit,
    Resources,
    TerminalSize,
    limits,
)

MIB = 1 << 20


# ---- starting ------------------------------------------------------------------------------------------------------


async def a_program_runs(stage: Stage) -> None:
    """A program is found by its name, runs, and its output and end are told."""
    ran = await stage.run("echo", "here")
    equal((ran.stdout, ran.stderr, ran.result.exit_code, ran.result.signal), (b"here\n", b"", 0, None))


async def arguments_arrive_as_they_are(stage: Stage) -> None:
    """Arguments are not split, expanded or decoded on their way: spaces, quotes, newlines, empty ones, any bytes."""
    words = ["", " ", "a b", "$HOME", "*", "'\"`", "one\ntwo", "-n", "\udcff\udc80", "é€"]
    ran = await stage.run("printf", "%s\\0", *words)
    equal(ran.stdout.split(b"\0")[:-1], [word.encode(errors="surrogateescape") for word in words])


async def what_cannot_be_run_is_a_result(stage: Stage) -> None:
    """A program that is not there ends with 127, one that cannot be executed with 126; a reason is told."""
    await stage.sh("echo text > plain; chmod 644 plain")
    for program, code in (("no-such-program", 127), ("./no-such-program", 127), ("./plain", 126)):
        ran = await stage.run(program)
        equal((program, ran.result.exit_code), (program, code))
        expect(bool(ran.result.reason), f"{program}: no reason is told")


async def exit_codes_are_told(stage: Stage) -> None:
    """A command that fails is a result: each code arrives as it was."""
    for code in (0, 1, 42, 125, 255):
        equal((await stage.sh(f"exit {code}")).result.exit_code, code)


async def a_death_by_signal_is_told(stage: Stage) -> None:
    """A command that a signal ended has that signal, and 128 more as its exit code."""
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1):
        result = (await stage.sh(f"kill -{int(number)} $$")).result
        equal((result.signal, result.exit_code), (number, 128 + number))


async def only_three_descriptors_are_open(stage: Stage) -> None:
    """A program starts with its three standard streams, and with nothing else of whoever started it."""
    ran = await stage.run("ls", "/proc/self/fd")
    equal(ran.text.split(), ["0", "1", "2", "3"])  # 3: the directory that it lists


async def signals_are_at_their_defaults(stage: Stage) -> None:
    """No signal is ignored or blocked when a program starts."""
    ran = await stage.run("grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status")
    values = [line.split()[1] for line in ran.text.splitlines()]
    equal([int(value, 16) for value in values], [0, 0])


async def many_run_at_once(stage: Stage) -> None:
    """Fifty commands at once have each their own output and their own end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.sh(f"echo {number}; exit {number}")) for number in range(50)]
    equal([(task.result().text, task.result().result.exit_code) for task in tasks], [(str(n), n) for n in range(50)])


# ---- streams -------------------------------------------------------------------------------------------------------


async def streams_stay_apart(stage: Stage) -> None:
    """Standard output and standard error are two streams, each in the order in which it was written."""
    ran = await stage.sh("for n in 1 2 3 4 5; do echo o$n; echo e$n >&2; done")
    equal((ran.text.split(), ran.stderr.split()), ([f"o{n}" for n in range(1, 6)], [b"e%d" % n for n in range(1, 6)]))


async def bytes_arrive_as_they_are(stage: Stage) -> None:
    """Output is bytes: every value arrives, none is changed."""
    everything = bytes(range(256))
    script = "printf '" + "".join(f"\\{value:03o}" for value in everything) + "'"
    equal((await stage.sh(script)).stdout, everything)


async def large_output_is_complete(stage: Stage) -> None:
    """Output of many megabytes on both streams arrives to the last byte, and is counted."""
    size = 8 * MIB
    ran = await stage.sh(f"yes out | head -c {size} & yes err | head -c {size} >&2; wait")
    expected = [(word * (size // 4 + 1))[:size] for word in (b"out\n", b"err\n")]
    equal([_sum(ran.stdout), _sum(ran.stderr)], [_sum(text) for text in expected])
    equal((ran.result.stdout_bytes, ran.result.stderr_bytes, ran.result.truncated), (size, size, False))


async def output_stops_at_its_limit(stage: Stage) -> None:
    """Output beyond the limit of a call is cut, counted and told; the command runs on to its own end."""
    ran = await stage.sh("yes | head -c 500000; echo end > end; exit 3", output_bytes_max=1000)
    equal((len(ran.stdout), ran.result.truncated, ran.result.exit_code), (1000, True, 3))
    equal(ran.result.stdout_bytes, 500_000)
    equal((await stage.run("cat", "end")).text, "end")


async def output_comes_while_it_runs(stage: Stage) -> None:
    """What a program writes is heard while it runs, not when it has ended."""
    async with stage.host.call(stage.request("sh", "-c", "echo ready; read -r line; echo $line", stdin=True)) as stream:
        await read_until(stream, b"ready\n")
        await stream.write_stdin(b"answer\n")
        equal((await collect(stream)).stdout, b"ready\nanswer\n")


async def a_call_ends_with_its_program(stage: Stage) -> None:
    """A call ends when its program has ended, though something that it left behind still holds its output."""
    ran = await stage.sh("sleep 1000 & echo $!")
    expect(await stage.is_alive(int(ran.text)), "what was left in the background did not live on")
    equal(ran.result.exit_code, 0)


# ---- input ---------------------------------------------------------------------------------------------------------


async def input_arrives_and_ends(stage: Stage) -> None:
    """Input of any size goes in while output comes out; closing it is the end of the file."""
    data = bytes(range(256)) * 8192
    async with stage.host.call(stage.request("cat", stdin=True)) as stream:
        reading = asyncio.ensure_future(collect(stream))
        for start in range(0, len(data), 100_000):
            await stream.write_stdin(data[start : start + 100_000])
        await stream.close_stdin()
        equal(_sum((await reading).stdout), _sum(data))


async def without_input_it_is_empty(stage: Stage) -> None:
    """A command that was given no input reads the end of a file at once; giving it some later is refused."""
    equal((await stage.run("cat")).stdout, b"")
    async with stage.host.call(stage.request("cat")) as stream:
        try:
            await stream.write_stdin(b"x")
        except InvalidState:
            return
    raise Broken("input was taken by a call that has none")


async def input_that_nobody_reads_is_dropped(stage: Stage) -> None:
    """A program that closes its input or ends before it has read it ends its call all the same."""
    for script in ("exec <&-; echo closed", "echo closed"):
        async with stage.host.call(stage.request("sh", "-c", script, stdin=True)) as stream:
            await stream.write_stdin(bytes(MIB))
            equal((await collect(stream)).stdout, b"closed\n")


# ---- signals and groups --------------------------------------------------------------------------------------------


async def a_signal_reaches_the_whole_group(stage: Stage) -> None:
    """A signal goes to the process group of the command: what it started ends too."""
    script = "sleep 1000 & echo $! ready; wait"
    async with stage.host.call(stage.request("sh", "-c", script)) as stream:
        pid = int((await read_until(stream, b"ready\n")).split()[0])
        await stream.signal(signal.SIGTERM)
        equal((await stream.result()).signal, signal.SIGTERM)
    await stage.wait_gone(pid)


async def a_signal_can_be_caught(stage: Stage) -> None:
    """A program may catch a signal and end as it likes."""
    script = "trap 'echo caught; exit 7' USR1; echo ready; while :; do sleep 0.05; done"
    async with stage.host.call(stage.request("sh", "-c", script)) as stream:
        await read_until(stream, b"ready\n")
        await stream.signal(signal.SIGUSR1)
        ran = await collect(stream)
    equal((ran.result.exit_code, ran.result.signal), (7, None))
    expect(b"caught" in ran.stdout, "the signal was not caught")


async def a_number_that_is_no_signal_is_refused(stage: Stage) -> None:
    """Signals have numbers; others are refused, and a command that has ended ignores them."""
    async with stage.host.call(stage.request("true")) as stream:
        try:
            await stream.signal(4000)
        except InvalidArgument:
            await stream.result()
            await stream.signal(signal.SIGTERM)
            return
    raise Broken("4000 was taken for a signal")


async def each_call_leads_a_group_of_its_own(stage: Stage) -> None:
    """The program of a call leads a process group; no two calls share one."""
    leaders: set[str] = set()
    for _ in range(2):
        pid, group = (await stage.sh("cut -d' ' -f1,5 /proc/$$/stat")).text.split()
        equal(group, pid)
        leaders.add(group)
    expect(len(leaders) == 2, f"both calls were in group {leaders}")


# ---- terminals -----------------------------------------------------------------------------------------------------


async def a_terminal_has_its_size(stage: Stage) -> None:
    """All three streams are the terminal, of the size that was asked for; a new size is told with a signal."""
    show = "trap 'stty size; exit' WINCH; test -t 0 && test -t 1 && test -t 2 && stty size"
    script = f"{show}; while :; do sleep 0.05; done"
    async with stage.host.call(stage.request("sh", "-c", script, terminal=TerminalSize(11, 22))) as stream:
        await read_until(stream, b"11 22")
        await stream.resize(33, 44)
        expect(b"33 44" in (await collect(stream)).stdout, "the new size was not told")


async def keys_of_a_terminal_work(stage: Stage) -> None:
    """Ctrl-C interrupts what runs in a terminal, Ctrl-D ends its input."""
    async with stage.host.call(stage.request("sh", "-c", "echo ready; sleep 1000", terminal=TerminalSize())) as stream:
        await read_until(stream, b"ready")
        ended = asyncio.ensure_future(stream.result())
        while not ended.done():
            # Pressed again: a shell may lose the first one while it starts its next program.
            await stream.write_stdin(b"\x03")
            await asyncio.wait({ended}, timeout=1)
        equal(ended.result().exit_code, 130)
    async with stage.host.call(stage.request("cat", terminal=TerminalSize())) as stream:
        await stream.write_stdin(b"line\n\x04")
        equal((await stream.result()).exit_code, 0)


async def without_a_terminal_there_is_none(stage: Stage) -> None:
    """A call without a terminal has none, and cannot be resized."""
    expect((await stage.sh("test -t 0 || test -t 1 || test -t 2")).result.exit_code == 1, "a stream is a terminal")
    async with stage.host.call(stage.request("sleep", "1000")) as stream:
        try:
            await stream.resize(1, 1)
        except InvalidState:
            return
    raise Broken("something that is no terminal was resized")


# ---- where and who -------------------------------------------------------------------------------------------------


async def a_command_starts_in_the_workspace(stage: Stage) -> None:
    """The workspace is where a command starts, relative directories begin there, and what is none is refused."""
    workspace = stage.session.workspace
    await stage.run("mkdir", "-p", "below/deep")
    for asked, expected in ((None, workspace), ("below/deep", f"{workspace}/below/deep"), ("/", "/")):
        # The told path may be a link: what counts is where it leads.
        there = (await stage.run("readlink", "-f", expected)).text
        equal((await stage.run("pwd", "-P", cwd=asked)).text, there)
    await stage.sh("echo > plain")
    for wrong in ("missing", "plain"):
        try:
            await stage.sh("echo ran > trace", cwd=wrong)
        except InvalidArgument:
            continue
        raise Broken(f"a command started in {wrong!r}")
    equal((await stage.sh("test -e trace")).result.exit_code, 1)


async def users_can_be_chosen(stage: Stage) -> None:
    """A command runs as the session's user, or as the one who was asked for; one who is not there is refused."""
    own = (await stage.run("id", "-u")).text
    expect(own != "0", "the user of a session is root")
    equal((await stage.run("id", "-u", user="root")).text, "0")
    equal((await stage.sh("id -u; id -g", user="1234:2345")).text.split(), ["1234", "2345"])
    try:
        await stage.run("true", user="nobody-of-that-name")
    except InvalidArgument:
        return
    raise Broken("a user who is not there ran a command")


async def variables_are_those_that_were_given(stage: Stage) -> None:
    """A command has the variables of its session, those of its call before them, and none of the machine's."""
    other = await stage.another(envs={"ONE": "session", "TWO": "session"})
    ran = await other.run("env", "-0", envs={"TWO": "call", "THREE": "a b\nc"})
    found = dict(line.split("=", 1) for line in ran.stdout.decode().split("\0") if line)
    equal([found.get(name) for name in ("ONE", "TWO", "THREE")], ["session", "call", "a b\nc"])
    expect({"PATH", "HOME"} <= found.keys(), f"PATH or HOME is missing: {sorted(found)}")
    foreign = found.keys() - {"ONE", "TWO", "THREE", "PATH", "HOME", "LANG", "USER", "LOGNAME", "SHELL", "TERM", "PWD"}
    equal(sorted(foreign), [])


# ---- ends ----------------------------------------------------------------------------------------------------------


async def a_timeout_ends_the_whole_tree(stage: Stage) -> None:
    """When its time is over everything that descends from a command ends, also what left its group; 124 is told."""
    script = "sleep 1000 & echo $!; setsid sh -c 'echo $$; exec sleep 1000' & wait"
    for pid in await _timed_out(stage, script, 2):
        await stage.wait_gone(pid)


async def a_timeout_cannot_be_ignored(stage: Stage) -> None:
    """A program that ignores what asks it to end is killed."""
    script = "trap '' TERM INT HUP; echo $$; while :; do sleep 0.05; done"
    for pid in await _timed_out(stage, script, 1):
        await stage.wait_gone(pid)


async def _timed_out(stage: Stage, script: str, count: int) -> list[int]:
    """The numbers of processes that it told. On a busy machine it may need longer to get that far."""
    for timeout_s in (1, 5, 30):
        ran = await stage.sh(script, timeout_s=timeout_s)
        equal((ran.result.exit_code, ran.result.limit), (124, LimitHit.TIMEOUT))
        pids = [int(word) for word in ran.text.split()]
        if len(pids) == count:
            return pids
    raise Broken(f"{pids} is all that it started")


async def leaving_a_call_ends_it(stage: Stage) -> None:
    """Whoever leaves a call ends its command, with what it started; one that was detached runs on."""
    script = "sleep 1000 & echo $! ready; wait"
    async with stage.host.call(stage.request("sh", "-c", script)) as stream:
        left = int((await read_until(stream, b"ready\n")).split()[0])
    await stage.wait_gone(left)
    async with stage.host.call(stage.request("sh", "-c", script, detach=True)) as stream:
        detached = int((await read_until(stream, b"ready\n")).split()[0])
    expect(await stage.is_alive(detached), "a detached command ended with its caller")


async def orphans_are_taken_care_of(stage: Stage) -> None:
    """A process whose parent has ended lives on; when it ends nothing is left of it, not even a zombie."""
    ran = await stage.sh("(sh -c 'echo $$ > pid; exec sleep 1000' &); until test -s pid; do sleep 0.05; done; cat pid")
    pid = int(ran.text)
    expect(await stage.is_alive(pid), "an orphan did not live on")
    await stage.sh(f"kill -9 {pid}")
    await stage.wait_gone(pid)


# ---- identity ------------------------------------------------------------------------------------------------------


async def an_id_runs_once(stage: Stage) -> None:
    """A call whose id is known is not run again; whoever asks gets the output of the first from its first byte."""
    heard: list[bytes] = []
    for _ in range(3):
        heard.append((await stage.sh("echo ran >> trace; echo $$", call_id="the-one")).stdout)
    expect(len(set(heard)) == 1, f"it ran more than once: {heard}")
    equal((await stage.run("cat", "trace")).stdout, b"ran\n")


async def a_call_can_be_read_again(stage: Stage) -> None:
    """Anyone can attach to a call, while it runs and when it has ended; one that is not known is told."""
    session_id = stage.session.session_id
    script = "echo first; read -r line; echo last"
    async with stage.host.call(stage.request("sh", "-c", script, stdin=True, call_id="talk")) as stream:
        async with stage.host.attach(session_id, "talk") as other:
            await read_until(other, b"first\n")
        await stream.write_stdin(b"\n")
        await stream.result()
    async with stage.host.attach(session_id, "talk") as again:
        equal((await collect(again)).stdout, b"first\nlast\n")
    try:
        async with stage.host.attach(session_id, "unknown"):
            pass
    except CallNotFound:
        return
    raise Broken("a call that nobody made was found")


async def calls_are_remembered(stage: Stage) -> None:
    """A session tells its calls, oldest first, with what they ran and how they ended."""
    await stage.run("true", call_id="one")
    await stage.run("false", call_id="two")
    records = await stage.host.calls(stage.session.session_id)
    found = [(record.call_id, record.argv, record.state) for record in records]
    equal(found, [("one", ("true",), CallState.ENDED), ("two", ("false",), CallState.ENDED)])
    equal([record.result.exit_code for record in records if record.result], [0, 1])


# ---- limits --------------------------------------------------------------------------------------------------------


async def processes_are_limited(stage: Stage) -> None:
    """No more processes than a session may have, and it goes on working afterwards."""
    other = await stage.another(resources=Resources(pids=24))
    ran = await other.sh("n=0; for i in $(seq 64); do sleep 1000 & done; wait", timeout_s=3)
    expect(ran.result.exit_code != 0, "64 processes were started where 24 may be")
    expect(b"fork" in ran.stderr.lower() or ran.result.limit is not None, f"nothing was told: {ran.stderr[-500:]!r}")
    equal((await other.run("echo", "alive")).text, "alive")


async def memory_is_limited(stage: Stage) -> None:
    """A program that takes more memory than its session may have ends; the session lives on."""
    other = await stage.another(resources=Resources(memory_bytes=64 * MIB))
    ran = await other.sh("head -c 300000000 /dev/zero | tail -c 299999999 > /dev/null; test $? = 0")
    expect(ran.result.exit_code != 0, "300 MB were held where 64 MiB may be")
    equal((await other.run("echo", "alive")).text, "alive")


async def open_files_are_limited(stage: Stage) -> None:
    """A process opens no more files than it may."""
    other = await stage.another(resources=Resources(open_files=limits.OPEN_FILES_MIN))
    equal((await other.sh("ulimit -n; ulimit -Hn")).text.split(), [str(limits.OPEN_FILES_MIN)] * 2)


def _sum(data: bytes) -> tuple[int, str]:
    """Short to tell when two differ."""
    return len(data), hashlib.sha256(data).hexdigest()


RUNTIME_CHECKS: tuple[Check[Stage], ...] = (
    tuple(
        Check(run)
        for run in (
            a_program_runs,
            arguments_arrive_as_they_are,
            what_cannot_be_run_is_a_result,
            exit_codes_are_told,
            a_death_by_signal_is_told,
            only_three_descriptors_are_open,
            signals_are_at_their_defaults,
            many_run_at_once,
            streams_stay_apart,
            bytes_arrive_as_they_are,
            large_output_is_complete,
            output_stops_at_its_limit,
            output_comes_while_it_runs,
            a_call_ends_with_its_program,
            input_arrives_and_ends,
            without_input_it_is_empty,
            input_that_nobody_reads_is_dropped,
            a_signal_reaches_the_whole_group,
            a_signal_can_be_caught,
            a_number_that_is_no_signal_is_refused,
            each_call_leads_a_group_of_its_own,
            a_terminal_has_its_size,
            keys_of_a_terminal_work,
            without_a_terminal_there_is_none,
            a_command_starts_in_the_workspace,
            users_can_be_chosen,
            variables_are_those_that_were_given,
            a_timeout_ends_the_whole_tree,
            a_timeout_cannot_be_ignored,
            leaving_a_call_ends_it,
            orphans_are_taken_care_of,
            an_id_runs_once,
            a_call_can_be_read_again,
            calls_are_remembered,
            processes_are_limited,
            memory_is_limited,
            open_files_are_limited,
        )
    )
    + STANDSTILL_CHECKS
)

# By runtime and check: why it is so. An entry whose check passes fails the run.
RUNTIME_DEVIATIONS: Mapping[str, Mapping[str, str]] = {
    "gvisor": {
        "signals_are_at_their_defaults": "its /proc/self/status does not tell of signals",
        "keys_of_a_terminal_work": "its terminals know no end of input, so Ctrl-D hangs up; Ctrl-C works",
        "memory_is_limited": "its kernel is a process of the machine: without memory the session fails; files stay",
    },
    "none": {
        "users_can_be_chosen": "commands run as the user of the engine",
        "processes_are_limited": "nothing is contained, so nothing is limited",
        "memory_is_limited": "nothing is contained, so nothing is limited",
        "open_files_are_limited": "nothing is contained, so nothing is limited",
    },
}
