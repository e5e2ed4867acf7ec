"""What every host promises of calls and of tools: how one is told, found again, ended, and run once."""

import asyncio
import secrets

from sandlot.conformance.checks import Broken, Check, Stage, collect, equal, expect, read_until
from sandlot.conformance.file_stage import refused
from sandlot.contracts import CallStream
from sandlot.model import (
    CallEvent,
    CallNotFound,
    CallOutput,
    CallResult,
    CallStarted,
    CallState,
    Capability,
    InvalidArgument,
    LimitHit,
    Resources,
    Stream,
    ToolRequest,
    ToolResult,
    Unavailable,
)

_POLL_S = 0.02


async def _events(stream: CallStream) -> list[CallEvent]:
    return [event async for event in stream]


async def _tool(stage: Stage, tool: str, call_id: str | None = None, /, **arguments: object) -> ToolResult:
    async with stage.host.execute_tool(ToolRequest(stage.session.session_id, tool, arguments, call_id)) as stream:
        return await stream.result()


# ---- one call ------------------------------------------------------------------------------------------------------


async def a_call_is_told_from_beginning_to_end(stage: Stage) -> None:
    """First that it started, then its output, last its result, which is the one that is waited for; all of one id."""
    async with stage.host.call(stage.request("sh", "-c", "echo out; echo err >&2; exit 3")) as stream:
        first, *output, last = await _events(stream)
        equal(await stream.result(), last)
    if not isinstance(first, CallStarted) or not isinstance(last, CallResult):
        raise Broken(f"it began with {first} and ended with {last}")
    equal({first.call_id, last.call_id, stream.call_id}, {stream.call_id})
    told = {one.stream: one.data for one in output if isinstance(one, CallOutput)}
    equal((len(output), told), (2, {Stream.STDOUT: b"out\n", Stream.STDERR: b"err\n"}))
    equal((last.exit_code, last.signal, last.limit, last.truncated), (3, None, None, False))
    equal((last.stdout_bytes, last.stderr_bytes), (4, 4))


async def what_cannot_be_run_is_a_result(stage: Stage) -> None:
    """A program that is not there is no error: 127, and a reason."""
    ran = await stage.run("no-such-program")
    equal(ran.result.exit_code, 127)
    expect(bool(ran.result.reason), "no reason is told")


async def bytes_go_in_and_come_out(stage: Stage) -> None:
    """Input arrives as it was written, ends when it is closed, and output is the same bytes."""
    content = bytes(range(256)) * 500
    async with stage.host.call(stage.request("cat", stdin=True)) as stream:
        reading = asyncio.ensure_future(collect(stream))
        for start in range(0, len(content), 50_000):
            await stream.write_stdin(content[start : start + 50_000])
        await stream.close_stdin()
        equal((await reading).stdout == content, True)


async def variables_and_directories_are_those_of_the_call(stage: Stage) -> None:
    """What a call brings is there for it alone; a directory that is none is refused, and nothing is run."""
    await stage.sh("mkdir -p below")
    ran = await stage.sh("echo $ONE > mark; echo $ONE", envs={"ONE": "of the call"}, cwd="below")
    equal(ran.text, "of the call")
    equal((await stage.sh("echo [$ONE]; cat below/mark")).text, "[]\nof the call")
    await refused(stage.sh("echo > trace", cwd="missing"), InvalidArgument)
    equal((await stage.sh("test -e trace")).result.exit_code, 1)


async def a_time_limit_is_a_result(stage: Stage) -> None:
    """A call whose time is over ends with 124 and says why; the session goes on."""
    result = (await stage.run("sleep", "600", timeout_s=0.3)).result
    equal((result.exit_code, result.limit), (124, LimitHit.TIMEOUT))
    equal((await stage.sh("echo on")).text, "on")


async def output_beyond_its_limit_is_counted(stage: Stage) -> None:
    """What is more than the limit of a call is dropped, counted and told."""
    ran = await stage.run("echo", "0123456789" * 100, output_bytes_max=10)
    equal((ran.stdout, ran.result.truncated, ran.result.stdout_bytes), (b"0123456789", True, 1001))


async def limits_of_a_call_stay_below_those_of_its_session(stage: Stage) -> None:
    """A call that asks for more than its session has is refused, and nothing is run."""
    other = await stage.another(resources=Resources(memory_bytes=256 << 20))
    await refused(other.sh("echo > trace", resources=Resources(memory_bytes=512 << 20)), InvalidArgument)
    equal((await other.sh("test -e trace")).result.exit_code, 1)


async def leaving_a_call_ends_it(stage: Stage) -> None:
    """Whoever leaves ends the command; one that was detached runs on, and can be told to end by another reader."""
    left, kept = f"c-{secrets.token_hex(6)}", f"c-{secrets.token_hex(6)}"
    for name in (left, kept):
        call = stage.request("sh", "-c", "echo ready; sleep 600", call_id=name, detach=name == kept)
        async with stage.host.call(call) as stream:
            await read_until(stream, b"ready\n")
    states = {record.call_id: record.state for record in await stage.host.calls(stage.session.session_id)}
    equal((states[left], states[kept]), (CallState.ENDED, CallState.RUNNING))
    async with stage.host.attach(stage.session.session_id, kept) as stream:
        await stream.signal(9)
        equal((await stream.result()).signal, 9)


async def many_calls_at_once_are_kept_apart(stage: Stage) -> None:
    """Each has its own output and its own end."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(stage.sh(f"echo {number}; exit {number}")) for number in range(20)]
    equal([(task.result().text, task.result().result.exit_code) for task in tasks], [(str(n), n) for n in range(20)])


# ---- found again ---------------------------------------------------------------------------------------------------


async def a_call_id_runs_once(stage: Stage) -> None:
    """A call that is asked for again with its id is the first one: nothing is run again, at once or later."""
    name = f"c-{secrets.token_hex(6)}"
    ran = await asyncio.gather(*(stage.sh("echo ran | tee -a trace", call_id=name) for _ in range(3)))
    ran.append(await stage.sh("echo something else", call_id=name))
    equal([(one.stdout, one.result.call_id) for one in ran], [(b"ran\n", name)] * 4)
    equal((await stage.sh("cat trace")).text, "ran")


async def a_call_is_read_again_from_its_beginning(stage: Stage) -> None:
    """Whoever attaches reads all of it, while it runs and after it, as often as wanted; leaving ends nothing."""
    name, session_id = f"c-{secrets.token_hex(6)}", stage.session.session_id
    call = stage.request("sh", "-c", "echo one; read -r line; echo $line", stdin=True, detach=True, call_id=name)
    async with stage.host.call(call) as stream:
        await read_until(stream, b"one\n")
    async with stage.host.attach(session_id, name) as stream:
        await read_until(stream, b"one\n")
    async with stage.host.attach(session_id, name) as stream:
        await stream.write_stdin(b"two\n")
        equal((await collect(stream)).stdout, b"one\ntwo\n")
    for _ in range(2):
        async with stage.host.attach(session_id, name) as stream:
            equal((await collect(stream)).stdout, b"one\ntwo\n")
    await refused(_attached(stage, "c-nobody-made-this"), CallNotFound)


async def _attached(stage: Stage, call_id: str) -> None:
    async with stage.host.attach(stage.session.session_id, call_id):
        pass


async def calls_are_remembered(stage: Stage) -> None:
    """A session tells its calls, oldest first, with what was run, its state and its result."""
    for code in range(3):
        await stage.sh(f"exit {code}")
    records = await stage.host.calls(stage.session.session_id)
    equal([record.argv for record in records], [("sh", "-c", f"exit {code}") for code in range(3)])
    equal([record.state for record in records], [CallState.ENDED] * 3)
    equal([record.result.exit_code for record in records if record.result], [0, 1, 2])
    expect(records[0].started <= records[1].started <= records[2].started, "they are not in their order")


# ---- tools ---------------------------------------------------------------------------------------------------------


async def tools_say_what_they_take(stage: Stage) -> None:
    """The catalogue has names that are given once, a description and a schema of each; one that is none is refused."""
    catalogue = await stage.host.tools()
    names = [tool.name for tool in catalogue]
    equal(len(set(names)), len(names))
    expect({"read_file", "write_file", "bash"} <= set(names), f"a tool is missing: {sorted(names)}")
    equal([tool.name for tool in catalogue if not tool.description or tool.parameters["type"] != "object"], [])
    await refused(_tool(stage, "no_such_tool"), InvalidArgument)


async def a_tool_works_in_the_session(stage: Stage) -> None:
    """Tools and commands have the same files; what a tool cannot do is a result that is marked."""
    result = await _tool(stage, "write_file", path="a", content="one\n")
    equal((result.is_error, result.tool), (False, "write_file"))
    equal((await stage.sh("cat a")).text, "one")
    expect("one" in (await _tool(stage, "read_file", path="a")).text, "what was written is not read")
    for wrong in ({"path": "missing"}, {}, {"path": 7}):
        expect((await _tool(stage, "read_file", **wrong)).is_error, f"read_file of {wrong} is no error")
    result = await _tool(stage, "bash", cmd="echo out; exit 3")
    expect("out" in result.text, result.text)
    equal((result.exit_code, result.is_error), (3, False))


async def a_tool_with_an_id_works_once(stage: Stage) -> None:
    """A call of a tool that is repeated with its id gives what the first gave."""
    name = f"c-{secrets.token_hex(6)}"
    told = [(await _tool(stage, "bash", name, cmd="echo ran >> trace; echo done")).text for _ in range(2)]
    equal(told[0], told[1])
    equal((await stage.sh("cat trace")).text, "ran")


async def a_tool_can_be_cancelled(stage: Stage) -> None:
    """Its result tells no success; one that has ended is not cancelled, and one that is not there is not found."""
    name, session_id = f"c-{secrets.token_hex(6)}", stage.session.session_id
    running = asyncio.ensure_future(_tool(stage, "bash", name, cmd="echo > begun; sleep 600"))
    while (await stage.sh("test -e begun")).result.exit_code != 0:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    equal(await stage.host.cancel_tool(session_id, name), True)
    result = await running
    expect(result.is_error or result.exit_code not in (None, 0), f"a tool that was cancelled is told as done: {result}")
    equal(await stage.host.cancel_tool(session_id, name), False)
    await refused(stage.host.cancel_tool(session_id, "c-nobody-made-this"), CallNotFound)


async def a_tool_that_is_cancelled_leaves_nothing_running(stage: Stage) -> None:
    """Not what ignores TERM below a program that listens to it, and not what has another session."""
    name, session_id = f"c-{secrets.token_hex(6)}", stage.session.session_id
    deaf = "sh -c 'trap \"\" TERM; echo $$ >> begun; exec sleep 600'"
    running = asyncio.ensure_future(_tool(stage, "bash", name, cmd=f"{deaf} & setsid {deaf} & sleep 600"))
    while len(begun := (await stage.sh("cat begun 2>&-")).text.split()) < 2:
        expect(not running.done(), "the tool ended by itself")
        await asyncio.sleep(_POLL_S)
    equal(await stage.host.cancel_tool(session_id, name), True)
    await running
    for word in begun:
        await stage.wait_gone(int(word))


async def a_call_in_flight_hears_of_the_end(stage: Stage) -> None:
    """Many readers of one call all hear that its session is destroyed."""
    other = await stage.another()
    call = other.request("sleep", "600", call_id="c-watched", detach=True)

    async def watch() -> None:
        async with stage.host.call(call) as stream:
            await stream.result()

    readers = [asyncio.ensure_future(watch()) for _ in range(3)]
    while not await stage.host.calls(other.session.session_id):  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    await stage.host.destroy(other.session.session_id)
    ends = await asyncio.gather(*readers, return_exceptions=True)
    expect(any(isinstance(end, Unavailable) for end in ends), f"they heard {ends}")
    equal([end for end in ends if not isinstance(end, Exception)], [])


CALL_CHECKS: tuple[Check[Stage], ...] = (
    Check(a_call_is_told_from_beginning_to_end),
    Check(what_cannot_be_run_is_a_result),
    Check(bytes_go_in_and_come_out),
    Check(variables_and_directories_are_those_of_the_call),
    Check(a_time_limit_is_a_result),
    Check(output_beyond_its_limit_is_counted),
    Check(limits_of_a_call_stay_below_those_of_its_session, (Capability.LIMIT_MEMORY, Capability.LIMIT_CALLS)),
    Check(leaving_a_call_ends_it),
    Check(many_calls_at_once_are_kept_apart),
    Check(a_call_id_runs_once),
    Check(a_call_is_read_again_from_its_beginning),
    Check(calls_are_remembered),
    Check(tools_say_what_they_take),
    Check(a_tool_works_in_the_session),
    Check(a_tool_with_an_id_works_once),
    Check(a_tool_can_be_cancelled),
    Check(a_tool_that_is_cancelled_leaves_nothing_running),
    Check(a_call_in_flight_hears_of_the_end),
)
