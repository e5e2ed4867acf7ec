"""What every host promises of code in contexts: it remembers, it tells what it did in order, and it can be stopped."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from sandlot.conformance.checks import Check, Outcome, Stage, conform, equal, expect
from sandlot.conformance.code_stage import FOREVER, Told, attached, context, good, hear, request, run, status_of
from sandlot.conformance.file_stage import refused
from sandlot.contracts import Host
from sandlot.model import (
    AUTO,
    BASH,
    JAVASCRIPT,
    PYTHON,
    Capability,
    CapabilityNotSupported,
    CodeOutput,
    CodeResult,
    CodeStarted,
    CodeStatus,
    ContextRequest,
    ContextState,
    InvalidArgument,
    InvalidState,
    NotFound,
    PauseRequest,
    RollbackRequest,
    SessionNotFound,
    SnapshotRequest,
    Stream,
    new_call_id,
)

_DEADLINE_S = 90.0
# ---- what is told --------------------------------------------------------------------------------------------------


async def what_it_does_is_told_in_order(stage: Stage) -> None:
    """First that it began, then what it printed and showed as it came, last its result."""
    told = await good(stage, "print('one')\ndisplay(2)\nprint('three')\n4")
    expect(isinstance(told.events[0], CodeStarted), f"the first of its events is {told.events[0]!r}")
    expect(isinstance(told.events[-1], CodeResult), f"the last of its events is {told.events[-1]!r}")
    equal(told.text(), "one\nthree\n")
    equal([(one.data["text/plain"], one.is_main) for one in told.values], [("2", False), ("4", True)])
    shapes = ["text" if isinstance(one, CodeOutput) else "value" for one in told.events[1:-1]]
    equal([kind for at, kind in enumerate(shapes) if at == 0 or shapes[at - 1] != kind], ["text", "value"] * 2)


async def the_streams_are_apart(stage: Stage) -> None:
    """What is printed for people and what is printed as errors."""
    told = await good(stage, "import sys\nprint('out')\nprint('err', file=sys.stderr)")
    equal((told.text(), told.text(Stream.STDERR)), ("out\n", "err\n"))


async def it_is_told_as_it_happens(stage: Stage) -> None:
    """Not when it is over."""
    async with stage.host.run_code(request(stage, FOREVER)) as stream:
        await hear(aiter(stream), "up")


async def nothing_is_no_value(stage: Stage) -> None:
    """A statement and a None show nothing."""
    equal((await good(stage, "x = 1")).values, [])
    equal((await good(stage, "None")).values, [])
    equal([type(one) for one in (await good(stage, "")).events], [CodeStarted, CodeResult])


async def an_error_is_a_result(stage: Stage) -> None:
    """With its name, its text and where it came from; and the context goes on."""
    told = await run(stage, "x = 5\n1 / 0")
    equal(told.result.status, CodeStatus.ERROR)
    equal((told.error.name, told.error.value), ("ZeroDivisionError", "division by zero"))
    expect("ZeroDivisionError: division by zero" in told.error.traceback, told.error.traceback)
    expect("sandlot" not in told.error.traceback, told.error.traceback)
    equal((await good(stage, "x")).main, "5")


async def what_is_no_code_is_an_error(stage: Stage) -> None:
    """Of the code, not of the host."""
    told = await run(stage, "x x")
    equal((told.result.status, told.error.name), (CodeStatus.ERROR, "SyntaxError"))


async def forms_are_told(stage: Stage) -> None:
    """What can be shown in several ways is told in all of them."""
    code = "class Shown:\n    def _repr_html_(self):\n        return '<b>bold</b>'\nShown()"
    (value,) = (await good(stage, code)).values
    equal(value.data["text/html"], "<b>bold</b>")
    expect("text/plain" in value.data, value)


async def what_has_a_media_type_is_told_as_it_is(stage: Stage) -> None:
    """Given by it, whatever it is."""
    data = {"image/png": "aGVsbG8=", "text/markdown": "# one", "application/json": '{"a": 1}'}
    (value,) = (await good(stage, f"display({data!r}, raw=True)")).values
    equal({key: value.data[key] for key in data}, data)


async def output_has_a_bound(stage: Stage) -> None:
    """What is beyond it is not told, and that is; the run goes on."""
    told = await good(stage, "print('x' * 100000)\n'end'", output_bytes_max=1000)
    equal((len(told.text()), told.result.truncated, told.main), (1000, True, "'end'"))
    expect(not (await good(stage, "print('short')")).result.truncated, "a short output is said to be cut")


# ---- contexts ------------------------------------------------------------------------------------------------------


async def a_context_remembers(stage: Stage) -> None:
    """What one run did is there for the next; and runs are counted."""
    first = await good(stage, "kept = 41")
    second = await good(stage, "kept + 1")
    equal((second.main, first.result.count, second.result.count), ("42", 1, 2))
    equal(first.result.context_id, second.result.context_id)


async def contexts_are_apart(stage: Stage) -> None:
    """What one remembers no other knows."""
    one, other = await context(stage), await context(stage)
    await good(stage, "mine = 1", context_id=one.context_id)
    told = await run(stage, "mine", context_id=other.context_id)
    equal(told.error.name, "NameError")
    equal((await run(stage, "mine")).error.name, "NameError")


async def a_context_has_a_directory_and_variables(stage: Stage) -> None:
    """Those that it was made with."""
    await stage.sh("mkdir -p below")
    made = await context(stage, cwd="below", envs={"ONE": "of the context"})
    expect(made.cwd.endswith("/below"), made)
    told = await good(stage, "import os\n(os.getcwd()[-6:], os.environ['ONE'])", context_id=made.context_id)
    equal(told.main, repr(("/below", "of the context")))


async def variables_of_a_run_are_taken_away(stage: Stage) -> None:
    """They are there for it, and not for the next."""
    code = "import os\nos.environ.get('ONE')"
    equal((await good(stage, code, envs={"ONE": "of the run"})).main, "'of the run'")
    equal((await good(stage, code)).main, None)


async def contexts_are_listed(stage: Stage) -> None:
    """Oldest first, with what they do, until they are deleted."""
    equal(list(await stage.host.contexts(stage.session.session_id)), [])
    one, other = await context(stage), await context(stage)
    found = await stage.host.contexts(stage.session.session_id)
    equal([each.context_id for each in found], [one.context_id, other.context_id])
    equal({(each.state, each.language) for each in found}, {(ContextState.IDLE, PYTHON)})
    async with stage.host.run_code(request(stage, FOREVER, context_id=one.context_id)) as stream:
        await hear(aiter(stream), "up")
        equal((await status_of(stage, one.context_id)).state, ContextState.BUSY)
    await stage.host.delete_context(stage.session.session_id, one.context_id)
    found = await stage.host.contexts(stage.session.session_id)
    equal([each.context_id for each in found], [other.context_id])


async def a_context_is_made_once(stage: Stage) -> None:
    """Asked for again with its id it is the one that is there."""
    made = await context(stage, context_id="one")
    await good(stage, "kept = 1", context_id="one")
    again = await context(stage, context_id="one")
    equal((made.context_id, again.context_id, again.execution_count), ("one", "one", 1))
    equal((await good(stage, "kept", context_id="one")).main, "1")


async def what_is_not_there_is_not_found(stage: Stage) -> None:
    """A context, a run, a session."""
    host, session_id = stage.host, stage.session.session_id
    await refused(host.interrupt_context(session_id, "none"), NotFound)
    await refused(host.restart_context(session_id, "none"), NotFound)
    await refused(host.delete_context(session_id, "none"), NotFound)
    await refused(run(stage, "1", context_id="none"), NotFound)
    await refused(attached(stage, "none"), NotFound)
    await refused(host.contexts("s-none"), SessionNotFound)
    await refused(host.create_context(ContextRequest("s-none")), SessionNotFound)


async def what_is_wrong_is_refused(stage: Stage) -> None:
    """Before anything is begun."""
    await refused(context(stage, cwd="no/such/directory"), InvalidArgument)
    equal(list(await stage.host.contexts(stage.session.session_id)), [])


# ---- stopped -------------------------------------------------------------------------------------------------------


async def an_interrupt_ends_a_run(stage: Stage) -> None:
    """The run, not the context; where nothing runs, that is told."""
    made = await context(stage)
    await good(stage, "kept = 7", context_id=made.context_id)
    equal(await stage.host.interrupt_context(stage.session.session_id, made.context_id), False)
    async with stage.host.run_code(request(stage, FOREVER, context_id=made.context_id)) as stream:
        events = aiter(stream)
        await hear(events, "up")
        equal(await stage.host.interrupt_context(stage.session.session_id, made.context_id), True)
        equal((await stream.result()).status, CodeStatus.INTERRUPTED)
    equal((await good(stage, "kept", context_id=made.context_id)).main, "7")


async def a_run_has_a_time(stage: Stage) -> None:
    """Then it is interrupted, and says so; the context goes on."""
    await good(stage, "kept = 7")
    told = await run(stage, FOREVER, timeout_s=0.5)
    equal(told.result.status, CodeStatus.TIMEOUT)
    expect(0.4 <= told.result.duration_s < 30, f"it took {told.result.duration_s} s")
    equal((await good(stage, "kept")).main, "7")


async def runs_take_turns(stage: Stage) -> None:
    """Each waits for the one before, and an interrupt is for one alone."""
    made = await context(stage)
    async with stage.host.run_code(request(stage, FOREVER, context_id=made.context_id)) as stream:
        await hear(aiter(stream), "up")
        waiting = [
            asyncio.create_task(good(stage, f"seen = {number}\nseen", context_id=made.context_id))
            for number in range(5)
        ]
        await asyncio.sleep(0.2)
        expect(not any(task.done() for task in waiting), "a run did not wait")
        await stage.host.interrupt_context(stage.session.session_id, made.context_id)
        equal((await stream.result()).status, CodeStatus.INTERRUPTED)
    found = [await task for task in waiting]
    equal(sorted(told.main or "" for told in found), ["0", "1", "2", "3", "4"])
    equal(sorted(told.result.count for told in found), [2, 3, 4, 5, 6])


async def who_leaves_ends_it(stage: Stage) -> None:
    """Leaving the stream interrupts a run, and one that waits is not begun."""
    made = await context(stage)
    first, second = new_call_id(), new_call_id()
    code = request(stage, FOREVER, context_id=made.context_id, execution_id=first)
    async with stage.host.run_code(code) as stream:
        await hear(aiter(stream), "up")
        late = request(stage, "late = 1", context_id=made.context_id, execution_id=second)
        async with stage.host.run_code(late):
            pass
        equal([type(one) for one in (await attached(stage, second)).events], [CodeResult])
    equal((await attached(stage, first)).result.status, CodeStatus.INTERRUPTED)
    equal((await run(stage, "late", context_id=made.context_id)).error.name, "NameError")


async def what_is_detached_goes_on(stage: Stage) -> None:
    """Whoever began it may leave, and it can be read from its beginning by anyone."""
    name = new_call_id()
    code = "import time\nprint('up')\ntime.sleep(0.5)\n'done'"
    async with stage.host.run_code(request(stage, code, detach=True, execution_id=name)):
        pass
    told = await attached(stage, name)
    equal((told.result.status, told.text(), told.main), (CodeStatus.OK, "up\n", "'done'"))
    equal((await attached(stage, name)).events, told.events)


async def a_run_is_done_once(stage: Stage) -> None:
    """Asked for again with its id it is read again."""
    await good(stage, "count = 0")
    name = new_call_id()
    first = await good(stage, "count = count + 1\ncount", execution_id=name)
    again = await good(stage, "count = count + 1\ncount", execution_id=name)
    equal(again.events, first.events)
    equal((await good(stage, "count")).main, "1")


# ---- lost ----------------------------------------------------------------------------------------------------------


async def a_context_that_ends_is_lost(stage: Stage) -> None:
    """It says why, as does the run that it was lost with; it can be restarted, and has forgotten everything."""
    made = await context(stage)
    await good(stage, "kept = 1", context_id=made.context_id)
    told = await run(stage, "import os\nos._exit(3)", context_id=made.context_id)
    equal(told.result.status, CodeStatus.LOST)
    expect("3" in told.result.reason, told.result.reason)
    lost = await status_of(stage, made.context_id)
    equal((lost.state, lost.reason), (ContextState.LOST, told.result.reason))
    await refused(run(stage, "1", context_id=made.context_id), InvalidState)
    again = await stage.host.restart_context(stage.session.session_id, made.context_id)
    equal((again.state, again.execution_count, again.context_id), (ContextState.IDLE, 0, made.context_id))
    equal((await run(stage, "kept", context_id=made.context_id)).error.name, "NameError")


async def the_default_context_comes_back(stage: Stage) -> None:
    """It is made anew when it was lost."""
    equal((await run(stage, "import os\nos._exit(0)")).result.status, CodeStatus.LOST)
    equal((await good(stage, "1 + 1")).main, "2")


async def a_restart_forgets(stage: Stage) -> None:
    """Everything, and what runs is lost."""
    made = await context(stage)
    await good(stage, "kept = 1", context_id=made.context_id)
    async with stage.host.run_code(request(stage, FOREVER, context_id=made.context_id)) as stream:
        await hear(aiter(stream), "up")
        await stage.host.restart_context(stage.session.session_id, made.context_id)
        equal((await stream.result()).status, CodeStatus.LOST)
    equal((await run(stage, "kept", context_id=made.context_id)).error.name, "NameError")


async def who_does_not_hear_an_interrupt_is_ended(stage: Stage) -> None:
    """A run that goes on is lost with its context, and the session goes on."""
    deaf = "while True:\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        print('no')"
    told = await run(stage, f"import time\nfor _ in [1]:\n    {deaf.replace(chr(10), chr(10) + '    ')}", timeout_s=0.5)
    equal(told.result.status, CodeStatus.TIMEOUT)
    equal((await good(stage, "1")).main, "1")


async def a_rollback_ends_contexts(stage: Stage) -> None:
    """What they remember belongs to files that are no more; they say so."""
    made = await context(stage)
    await good(stage, "kept = 1", context_id=made.context_id)
    point = await stage.host.create_snapshot(SnapshotRequest(stage.session.session_id, "before"))
    await stage.host.rollback(RollbackRequest(stage.session.session_id, point.name))
    lost = await status_of(stage, made.context_id)
    equal(lost.state, ContextState.LOST)
    expect("rolled back" in lost.reason, lost.reason)
    equal((await good(stage, "2")).main, "2")


async def it_stands_still_with_its_session(stage: Stage) -> None:
    """Its time too; and what it remembers is there when the session goes on."""
    made = await context(stage)
    code = "import time\nprint('up')\ntime.sleep(1.0)\n'done'"
    async with stage.host.run_code(request(stage, code, context_id=made.context_id, timeout_s=20)) as stream:
        events = aiter(stream)
        await hear(events, "up")
        await stage.host.pause(PauseRequest(stage.session.session_id))
        await asyncio.sleep(0.3)
        await stage.host.resume(stage.session.session_id)
        equal((await stream.result()).status, CodeStatus.OK)
    equal((await good(stage, "1", context_id=made.context_id)).main, "1")


async def it_ends_with_its_session(stage: Stage) -> None:
    """And who reads a run hears of it."""
    other = await stage.another()
    async with stage.host.run_code(request(other, FOREVER)) as stream:
        events = aiter(stream)
        await hear(events, "up")
        await stage.host.destroy(other.session.session_id)
        equal(Told([event async for event in events]).result.status, CodeStatus.LOST)
    await refused(stage.host.contexts(other.session.session_id), SessionNotFound)


# ---- what it can do ------------------------------------------------------------------------------------------------


async def what_its_children_print_is_told(stage: Stage) -> None:
    """Programs that code starts print where it prints."""
    code = "import subprocess\nsubprocess.run('echo out; echo err >&2', shell=True).returncode"
    told = await good(stage, code)
    equal((told.text(), told.text(Stream.STDERR), told.main), ("out\n", "err\n", "0"))


async def code_may_wait(stage: Stage) -> None:
    """At the outermost level, for what is asynchronous."""
    told = await good(
        stage, "import asyncio\nasync def two():\n    await asyncio.sleep(0.01)\n    return 2\nawait two()"
    )
    equal(told.main, "2")


async def files_are_those_of_the_session(stage: Stage) -> None:
    """Of calls, too."""
    await good(stage, "open('made', 'w').write('by code')")
    equal((await stage.sh("cat made")).text, "by code")


async def bash_has_contexts(stage: Stage) -> None:
    """Variables and directories stay; what fails is an error with its exit code."""
    told = await good(stage, "mkdir -p below; cd below; kept=1; echo hi", language=BASH)
    equal(told.text(), "hi\n")
    equal((await good(stage, 'echo "$kept in ${PWD##*/}"', language=BASH)).text(), "1 in below\n")
    failed = await run(stage, "echo before; (exit 3)", language=BASH)
    equal((failed.result.status, failed.error.value, failed.text()), (CodeStatus.ERROR, "3", "before\n"))
    stopped = await run(stage, "while :; do :; done", language=BASH, timeout_s=0.5)
    equal(stopped.result.status, CodeStatus.TIMEOUT)
    equal((await good(stage, "echo $kept", language=BASH)).text(), "1\n")


async def javascript_has_contexts_or_says_not(stage: Stage) -> None:
    """Where the session has a program for it."""
    try:
        told = await good(stage, "const kept = 20; console.log('hi'); kept + 1", language=JAVASCRIPT)
    except CapabilityNotSupported as error:
        expect(bool(error.next_step), "no next step is told")
        return
    equal((told.text(), told.main), ("hi\n", "21"))
    equal((await good(stage, "await Promise.resolve(kept + 2)", language=JAVASCRIPT)).main, "22")
    failed = await run(stage, "throw new TypeError('wrong')", language=JAVASCRIPT)
    equal((failed.error.name, failed.error.value), ("TypeError", "wrong"))
    stopped = await run(stage, "while (true) {}", language=JAVASCRIPT, timeout_s=0.5)
    equal(stopped.result.status, CodeStatus.TIMEOUT)
    equal((await good(stage, "kept", language=JAVASCRIPT)).main, "20")


CODE_CHECKS: tuple[Check[Stage], ...] = tuple(
    Check(check.run, check.needs, check.unless, _DEADLINE_S)
    for check in (
        Check(what_it_does_is_told_in_order),
        Check(the_streams_are_apart),
        Check(it_is_told_as_it_happens),
        Check(nothing_is_no_value),
        Check(an_error_is_a_result),
        Check(what_is_no_code_is_an_error),
        Check(forms_are_told),
        Check(what_has_a_media_type_is_told_as_it_is),
        Check(output_has_a_bound),
        Check(a_context_remembers),
        Check(contexts_are_apart),
        Check(a_context_has_a_directory_and_variables),
        Check(variables_of_a_run_are_taken_away),
        Check(contexts_are_listed),
        Check(a_context_is_made_once),
        Check(what_is_not_there_is_not_found),
        Check(what_is_wrong_is_refused),
        Check(an_interrupt_ends_a_run),
        Check(a_run_has_a_time),
        Check(runs_take_turns),
        Check(who_leaves_ends_it),
        Check(what_is_detached_goes_on),
        Check(a_run_is_done_once),
        Check(a_context_that_ends_is_lost),
        Check(the_default_context_comes_back),
        Check(a_restart_forgets),
        Check(who_does_not_hear_an_interrupt_is_ended),
        Check(a_rollback_ends_contexts, (Capability.SNAPSHOTS,)),
        Check(it_stands_still_with_its_session, (Capability.PAUSE,)),
        Check(it_ends_with_its_session),
        Check(what_its_children_print_is_told),
        Check(code_may_wait),
        Check(files_are_those_of_the_session),
        Check(bash_has_contexts),
        Check(javascript_has_contexts_or_says_not),
    )
)


async def conform_code(
    host: Host,
    runtime: str = AUTO,
    storage: str = AUTO,
    have: frozenset[Capability] | None = None,
    checks: Sequence[Check[Stage]] = CODE_CHECKS,
    deviations: Mapping[str, str] = {},
) -> AsyncIterator[Outcome]:
    """Each check on a session of its own; nothing is left of it. `have`: what such sessions can do; None: what the host
    says of those that are made with defaults."""
    told = await host.capabilities() if have is None else have
    async for outcome in conform(host, runtime, checks, deviations, storage, told):
        yield outcome
