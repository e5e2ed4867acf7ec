"""What every control promises to an orchestrator. Each check has an object and a sandbox of its own.

Programs of the checks are `sleep`, `sh -c` with one statement, and `python3`: a control in memory can understand them.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from sandlot.conformance.checks import Broken, Check, Outcome, equal, expect
from sandlot.conformance.control_stage import (
    DEADLINE_S,
    SAID,
    SERVER,
    ControlStage,
    Count,
    FreshControl,
    dial,
    run_checks,
)
from sandlot.conformance.environment_stage import refuses
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    InvalidArgument,
    LaunchProcessResponse,
    LimitReached,
    MaxSessionsReached,
    NotFound,
    ProcessNotFound,
    ProcessState,
    Resources,
    SandboxCapabilities,
    SandlotError,
    SessionNotFound,
    SessionPaused,
    StartFailed,
    TemplateNotFound,
    check_address,
    limits,
    new_session_id,
)

_POLL_S = 0.02
_LOOKS = 20  # that something which must stay so did stay
_COUNTED_MAX = 32  # a bound of sandboxes up to which it is tried out
_LIFE_S = 1.0
_NOWHERE = "no-such-sandbox"
_FOR_LONG = ("sleep", "1000")
_ARGUMENT = "a b  $HOME"
_TAKES_256_MIB = "import sys; sys.exit(len(b'x' * 268435456) != 268435456)"
_PORT = 20_000 + os.getpid() % 10_000  # without isolation it is one of the machine, where other suites may run


# ---- sandboxes ---------------------------------------------------------------------------------------------------


async def a_sandbox_tells_what_it_can_do(stage: ControlStage) -> None:
    """The answer has an id, an address that is host:port or nothing, and what the sandbox can do."""
    expect(bool(stage.id), "it has no id")
    check_address(stage.sandbox.address)
    if stage.sandbox.address:
        await dial_only(stage.sandbox.address)
    told: SandboxCapabilities = await stage.control.capabilities()
    equal(stage.able, told)


async def sandboxes_do_not_share_an_id(stage: ControlStage) -> None:
    """Two that were made are two, also when they were asked for at the same time."""
    made = await asyncio.gather(stage.create(), stage.create())
    equal(len({stage.id, *(one.sandbox_id for one in made)}), 3)


async def a_request_that_is_repeated_makes_one_sandbox(stage: ControlStage) -> None:
    """A request id that came before gives the sandbox that was made for it, also when both come at once and from two
    objects; when that sandbox is gone, another one."""
    request_id = new_session_id()
    twice = await asyncio.gather(
        stage.create(request_id=request_id), stage.create(stage.fresh(), request_id=request_id)
    )
    later = await stage.create(request_id=request_id)
    equal({one.sandbox_id for one in twice}, {later.sandbox_id})
    await stage.control.destroy_sandbox(later.sandbox_id)
    expect((await stage.create(request_id=request_id)).sandbox_id != later.sandbox_id, "it gave one that is gone")


async def two_objects_see_the_same_sandboxes(stage: ControlStage) -> None:
    """The id is all that is needed to go on with a sandbox that another object made."""
    other = stage.fresh()
    await other.destroy_sandbox(stage.id)
    await refuses(stage.control.resume_sandbox(stage.id), SessionNotFound)


async def an_unknown_template_is_refused(stage: ControlStage) -> None:
    """Nothing is made from a template that nobody knows, or where there are none."""
    wrong = stage.create(template="no-such-template")
    await stage.refuses_and_leaves_nothing(wrong, TemplateNotFound, CapabilityNotSupported)


async def a_limit_is_held_or_refused(stage: ControlStage) -> None:
    """A limit of the memory that is accepted is enforced; one that cannot be is refused, and nothing is left."""
    try:
        small = await stage.create(resources=Resources(memory_bytes=96 * limits.MIB))
    except CapabilityNotSupported:
        again = stage.create(resources=Resources(memory_bytes=96 * limits.MIB))
        await stage.refuses_and_leaves_nothing(again, CapabilityNotSupported)
        return
    if stage.able.launch_process:
        code = await stage.code_of("python3", "-c", _TAKES_256_MIB, sandbox_id=small.sandbox_id)
        expect(code not in (0, None), "256 MiB were had where 96 are allowed")
        equal(await stage.code_of("python3", "-c", _TAKES_256_MIB), 0)


async def an_unknown_sandbox_is_not_found(stage: ControlStage) -> None:
    """Every verb says so; only to destroy it does nothing. What is no id at all is refused."""
    for verb in (
        partial(stage.control.pause_sandbox, _NOWHERE),
        partial(stage.control.resume_sandbox, _NOWHERE),
        partial(stage.launch, *_FOR_LONG, sandbox_id=_NOWHERE),
        partial(stage.status, "p", _NOWHERE),
        partial(stage.kill, "p", sandbox_id=_NOWHERE),
    ):
        await refuses(verb(), SessionNotFound, CapabilityNotSupported)
    await stage.control.destroy_sandbox(_NOWHERE)
    await refuses(stage.control.pause_sandbox("../../etc"), InvalidArgument, SessionNotFound, CapabilityNotSupported)


async def a_life_ends_when_its_time_is_up(stage: ControlStage) -> None:
    """A sandbox that was made for a moment is gone after it."""
    made = await stage.create(timeout_s=_LIFE_S)
    while True:
        try:
            await stage.control.resume_sandbox(made.sandbox_id)
        except SessionNotFound:
            return
        except SandlotError:  # it is on its way
            pass
        await asyncio.sleep(_POLL_S)


async def no_life_is_longer_than_declared(stage: ControlStage) -> None:
    """A longer life than `sandbox_duration_s_max` is refused before anything is made."""
    most = stage.able.sandbox_duration_s_max
    if most is None:
        return

    async def attempt() -> None:
        await stage.create(timeout_s=2 * most)

    await stage.refuses_and_leaves_nothing(attempt(), InvalidArgument, LimitReached)


async def no_more_sandboxes_than_declared(stage: ControlStage) -> None:
    """One more than `concurrent_sandboxes` is refused, and there is room again when one has ended. A bound that is high
    is not tried out."""
    most = stage.able.concurrent_sandboxes
    if not 0 < most <= _COUNTED_MAX:
        return
    for _ in range(most - 1):
        await stage.create()
    await stage.refuses_and_leaves_nothing(stage.create(), MaxSessionsReached)
    await stage.control.destroy_sandbox(stage.id)
    await stage.create()


async def destroying_again_does_nothing(stage: ControlStage) -> None:
    """A destroyed sandbox is gone for every verb, and destroying it once more is no error."""
    for _ in range(2):
        await stage.control.destroy_sandbox(stage.id)
    await refuses(stage.control.resume_sandbox(stage.id), SessionNotFound)
    if stage.count is not None:
        other = await stage.create()
        before = await stage.count()
        await stage.control.destroy_sandbox(other.sandbox_id)
        equal(await stage.count(), before - 1)


# ---- processes ---------------------------------------------------------------------------------------------------


async def a_process_runs_until_it_ends(stage: ControlStage) -> None:
    """It is told as running without an exit code, and then as exited with its own."""
    launched = await stage.launch(*_FOR_LONG)
    expect(launched.status is not ProcessState.EXITED, "a program that runs for long has ended at once")
    equal(await stage.wait(launched.process_id, ProcessState.RUNNING), None)
    await stage.kill(launched.process_id)
    equal(await stage.code_of("sh", "-c", "exit 7"), 7)


async def arguments_arrive_as_they_are(stage: ControlStage) -> None:
    """Blanks and dollars are not looked at by anyone on the way."""
    script = f"""test "$TOLD" = '{_ARGUMENT}'"""
    for told, code in ((_ARGUMENT, 0), (" ".join(_ARGUMENT.split()), 1)):
        equal(await stage.code_of("sh", "-c", script, envs={"TOLD": told}), code)


async def variables_arrive(stage: ControlStage) -> None:
    """What is given as a variable is one for the program."""
    equal(await stage.code_of("sh", "-c", "exit $CODE", envs={"CODE": "9"}), 9)


async def a_program_is_found_by_name_and_by_path(stage: ControlStage) -> None:
    """A name is looked up inside the sandbox."""
    equal([await stage.code_of(binary, "-c", "exit 3") for binary in ("sh", "/bin/sh")], [3, 3])


async def a_program_that_is_not_there_is_refused(stage: ControlStage) -> None:
    """It is an error of the launch, and not a process that ends later."""
    for binary in ("no-such-program", "/no/such/program"):
        await refuses(stage.launch(binary), StartFailed, NotFound)


async def processes_have_ids_of_their_own(stage: ControlStage) -> None:
    """The same program launched twice is two processes; they do not end together."""
    one, other = await stage.launch(*_FOR_LONG), await stage.launch(*_FOR_LONG)
    expect(one.process_id != other.process_id, "two processes have one id")
    await stage.kill(one.process_id)
    equal((await stage.status(other.process_id)).exit_code, None)
    await stage.kill(other.process_id)


async def a_process_id_is_launched_once(stage: ControlStage) -> None:
    """A repeated process id tells of the first process, and starts nothing; another program with it is refused."""
    first = await stage.launch(*_FOR_LONG, process_id="mine")
    again = await stage.launch(*_FOR_LONG, process_id="mine")
    equal((first.process_id, again.process_id), ("mine", "mine"))
    await refuses(stage.launch("sleep", "2000", process_id="mine"), Conflict)
    await stage.kill("mine")
    expect((await stage.status("mine")).status is ProcessState.EXITED, "it was launched twice")


async def an_unknown_process_is_not_found(stage: ControlStage) -> None:
    """Neither told nor killed; nor is that of another sandbox."""
    await refuses(stage.status("p-nothing"), ProcessNotFound)
    await refuses(stage.kill("p-nothing"), ProcessNotFound)
    launched, other = await stage.launch(*_FOR_LONG), await stage.create()
    await refuses(stage.status(launched.process_id, other.sandbox_id), ProcessNotFound)
    await refuses(stage.kill(launched.process_id, sandbox_id=other.sandbox_id), ProcessNotFound)
    equal((await stage.status(launched.process_id)).exit_code, None)


async def a_killed_process_has_ended(stage: ControlStage) -> None:
    """When `kill_process` returns it has ended, with a code that is not 0, also when it does not listen to TERM."""
    script = "trap '' TERM; while :; do sleep 0.1; done"
    for words in (_FOR_LONG, ("sh", "-c", script)):
        launched = await stage.launch(*words)
        await stage.kill(launched.process_id)
        now = await stage.status(launched.process_id)
        expect((now.status, now.exit_code in (0, None)) == (ProcessState.EXITED, False), f"{words}: {now}")
        await stage.kill(launched.process_id)
        equal(await stage.status(launched.process_id), now)


async def the_signal_that_is_given_is_sent(stage: ControlStage) -> None:
    """A program that it ends has 128 and its number as exit code."""
    for signal in (10, 9):
        launched = await stage.launch(*_FOR_LONG)
        await stage.wait(launched.process_id, ProcessState.RUNNING)
        await stage.kill(launched.process_id, signal)
        equal(await stage.wait(launched.process_id, ProcessState.EXITED), 128 + signal)


async def another_object_knows_the_processes(stage: ControlStage) -> None:
    """A process is told and killed by whoever has its id."""
    launched = await stage.launch(*_FOR_LONG)
    other = ControlStage(stage.fresh(), stage.fresh, stage.sandbox)
    equal((await other.status(launched.process_id)).exit_code, None)
    await other.kill(launched.process_id)
    expect((await stage.status(launched.process_id)).status is ProcessState.EXITED, "it lives on")


async def destroying_ends_what_runs(stage: ControlStage) -> None:
    """Processes go with their sandbox, and what they listened at does too."""
    launched = await stage.launch(*_FOR_LONG)
    reached = ""
    if stage.able.expose_port:
        reached = (await _serving(stage)).address
    await stage.control.destroy_sandbox(stage.id)
    await refuses(stage.status(launched.process_id), SessionNotFound)
    if reached:
        await _silent(reached)


async def launching_that_cannot_be_is_refused(stage: ControlStage) -> None:
    """Where no process can be launched it is refused, and the sandbox is as it was."""
    await refuses(stage.launch(*_FOR_LONG), CapabilityNotSupported)
    await stage.control.resume_sandbox(stage.id)


# ---- ports -------------------------------------------------------------------------------------------------------


async def without_a_port_there_is_no_address(stage: ControlStage) -> None:
    """The address of a process that exposes nothing is empty."""
    launched = await stage.launch(*_FOR_LONG)
    equal(launched.address, "")
    await stage.kill(launched.process_id)


async def an_exposed_port_is_reached(stage: ControlStage) -> None:
    """The address is host:port, and once the process is told as running whoever dials it reaches the program."""
    launched = await _serving(stage)
    equal(await dial(launched.address), SAID)


async def two_sandboxes_may_expose_the_same_port(stage: ControlStage) -> None:
    """Each has an address of its own."""
    other = await stage.create()
    first, second = await _serving(stage), await _serving(stage, other.sandbox_id)
    expect(first.address != second.address, "two sandboxes have one address")
    equal(await dial(second.address), SAID)
    await stage.control.destroy_sandbox(other.sandbox_id)
    await _silent(second.address)
    equal(await dial(first.address), SAID)


async def a_port_is_given_back(stage: ControlStage) -> None:
    """Nobody answers at the address of a process that was killed."""
    launched = await _serving(stage)
    await stage.kill(launched.process_id)
    await _silent(launched.address)


async def a_port_that_cannot_be_is_refused(stage: ControlStage) -> None:
    """Where no port can be exposed the launch is refused, and nothing was started."""
    await refuses(stage.launch(*_FOR_LONG, expose_port=_PORT, process_id="with-port"), CapabilityNotSupported)
    await refuses(stage.status("with-port"), ProcessNotFound)


async def _serving(stage: ControlStage, sandbox_id: str | None = None) -> LaunchProcessResponse:
    launched = await stage.launch("python3", "-c", SERVER, str(_PORT), expose_port=_PORT, sandbox_id=sandbox_id)
    expect(bool(launched.address), "an exposed port has no address")
    check_address(launched.address)
    await stage.wait(launched.process_id, ProcessState.RUNNING, sandbox_id)
    return launched


async def _silent(address: str) -> None:
    """Nobody takes connections there, or nothing is said; it may take a moment."""
    for _ in range(_LOOKS):
        try:
            async with asyncio.timeout(DEADLINE_S / 2):
                if await dial(address) != SAID:
                    return
        except OSError:
            return
        await asyncio.sleep(_POLL_S)
    raise Broken(f"{address} still answers")


async def dial_only(address: str) -> None:
    with suppress(TimeoutError):  # it took the connection and says nothing by itself
        async with asyncio.timeout(0.5):
            await dial(address)


# ---- pause -------------------------------------------------------------------------------------------------------


async def a_paused_sandbox_launches_nothing(stage: ControlStage) -> None:
    """Pausing and resuming can be said again; between them launches are refused."""
    for _ in range(2):
        await stage.control.pause_sandbox(stage.id)
    if stage.able.launch_process:
        await refuses(stage.launch(*_FOR_LONG, process_id="asleep"), SessionPaused)
    for _ in range(2):
        await stage.control.resume_sandbox(stage.id)
    if stage.able.launch_process:
        await refuses(stage.status("asleep"), ProcessNotFound)
        equal(await stage.code_of("sh", "-c", "exit 4"), 4)


async def a_pause_does_to_processes_what_is_declared(stage: ControlStage) -> None:
    """With `pause_keeps_processes` they are there after it; without, they have ended. They are told meanwhile."""
    launched = await stage.launch(*_FOR_LONG)
    await stage.wait(launched.process_id, ProcessState.RUNNING)
    await stage.control.pause_sandbox(stage.id)
    if stage.able.pause_keeps_processes:
        equal((await stage.status(launched.process_id)).exit_code, None)
    await stage.control.resume_sandbox(stage.id)
    if not stage.able.pause_keeps_processes:
        with suppress(ProcessNotFound):
            expect((await stage.status(launched.process_id)).status is ProcessState.EXITED, "it lives on")
        return
    for _ in range(_LOOKS):
        equal((await stage.status(launched.process_id)).status, ProcessState.RUNNING)
        await asyncio.sleep(_POLL_S)
    await stage.kill(launched.process_id)


async def a_paused_sandbox_is_destroyed(stage: ControlStage) -> None:
    """It need not be resumed for that."""
    await stage.control.pause_sandbox(stage.id)
    await stage.control.destroy_sandbox(stage.id)
    await refuses(stage.control.resume_sandbox(stage.id), SessionNotFound)


async def a_pause_that_cannot_be_is_refused(stage: ControlStage) -> None:
    """Where there is no pause it is refused, and the sandbox goes on."""
    await refuses(stage.control.pause_sandbox(stage.id), CapabilityNotSupported)
    if stage.able.launch_process:
        equal(await stage.code_of("sh", "-c", "exit 5"), 5)


_LAUNCHES = ("launch_process",)
_EXPOSES = ("launch_process", "expose_port")
CONTROL_CHECKS: tuple[Check[ControlStage], ...] = (
    Check(a_sandbox_tells_what_it_can_do),
    Check(sandboxes_do_not_share_an_id),
    Check(a_request_that_is_repeated_makes_one_sandbox),
    Check(two_objects_see_the_same_sandboxes),
    Check(an_unknown_template_is_refused),
    Check(a_limit_is_held_or_refused),
    Check(an_unknown_sandbox_is_not_found),
    Check(a_life_ends_when_its_time_is_up),
    Check(no_life_is_longer_than_declared),
    Check(no_more_sandboxes_than_declared),
    Check(destroying_again_does_nothing),
    Check(a_process_runs_until_it_ends, _LAUNCHES),
    Check(arguments_arrive_as_they_are, _LAUNCHES),
    Check(variables_arrive, _LAUNCHES),
    Check(a_program_is_found_by_name_and_by_path, _LAUNCHES),
    Check(a_program_that_is_not_there_is_refused, _LAUNCHES),
    Check(processes_have_ids_of_their_own, _LAUNCHES),
    Check(a_process_id_is_launched_once, _LAUNCHES),
    Check(an_unknown_process_is_not_found, _LAUNCHES),
    Check(a_killed_process_has_ended, _LAUNCHES),
    Check(the_signal_that_is_given_is_sent, _LAUNCHES),
    Check(another_object_knows_the_processes, _LAUNCHES),
    Check(destroying_ends_what_runs, _LAUNCHES),
    Check(launching_that_cannot_be_is_refused, unless="launch_process"),
    Check(without_a_port_there_is_no_address, _LAUNCHES),
    Check(an_exposed_port_is_reached, _EXPOSES),
    Check(two_sandboxes_may_expose_the_same_port, _EXPOSES),
    Check(a_port_is_given_back, _EXPOSES),
    Check(a_port_that_cannot_be_is_refused, _LAUNCHES, unless="expose_port"),
    Check(a_paused_sandbox_launches_nothing, ("pause",)),
    Check(a_pause_does_to_processes_what_is_declared, ("pause", "launch_process")),
    Check(a_paused_sandbox_is_destroyed, ("pause",)),
    Check(a_pause_that_cannot_be_is_refused, unless="pause"),
)


def conform_control(
    fresh: FreshControl,
    checks: Sequence[Check[ControlStage]] = CONTROL_CHECKS,
    deviations: Mapping[str, str] | None = None,
    count: Count | None = None,
    *,
    deadline_s: float = DEADLINE_S,
) -> AsyncIterator[Outcome]:
    """Each check with an object and a sandbox of its own. `fresh` makes another object on one and the same provider;
    `count`: how many sandboxes that has, where it can be told. Nothing is left of the checks."""
    return run_checks(fresh, checks, deviations, count, deadline_s=deadline_s)
