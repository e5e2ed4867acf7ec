"""What every environment promises to the loop of an agent. Each check has an object and a session of its own.

Scripts of the checks use `echo`, `cat`, `exit`, `>`, `>>` and waiting for a file, and nothing else: an environment in
memory can understand them.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from sandlot.conformance.checks import Broken, Check, Outcome, equal, expect
from sandlot.conformance.environment_stage import (
    AT_ONCE,
    DEADLINE_S,
    EnvironmentStage,
    Fresh,
    call,
    is_state,
    refuses,
    run_checks,
    told,
)
from sandlot.model import (
    Capability,
    CapabilityNotSupported,
    Conflict,
    EnvironmentState,
    InvalidArgument,
    InvalidState,
    LimitReached,
    MaxSessionsReached,
    SandlotError,
    SessionExists,
    SessionNotFound,
    SessionPaused,
    SessionSpec,
    SnapshotNotFound,
    ToolProgress,
    ToolRequest,
    new_session_id,
)

_POLL_S = 0.02
_LOOKS = 25  # that something which must not come did not come
_COUNTED_MAX = 32  # a bound of sessions up to which it is tried out
_LIFE_S = 1.0
_NOWHERE = "no-such-session"


# ---- which session -----------------------------------------------------------------------------------------------


async def without_a_session_nothing_is_done(stage: EnvironmentStage) -> None:
    """Before there is a session the state is `creating`, and every verb that needs one says so."""
    one = stage.another()
    equal(one.session_id, None)
    await is_state(one, EnvironmentState.CREATING)
    request = ToolRequest(_NOWHERE, "bash", {"cmd": "exit 0"})
    call_it, shoot, go_back = (
        partial(one.execute_tool, request),
        partial(one.create_snapshot, "s"),
        partial(one.rollback, "s"),
    )
    for verb in (call_it, one.pause, one.resume, shoot, go_back):
        await refuses(verb(), InvalidState)
    await one.destroy()
    await is_state(one, EnvironmentState.CREATING)


async def a_session_is_made_with_the_id_that_was_asked_for(stage: EnvironmentStage) -> None:
    """`create` tells the id, which is the one asked for, and tools are taken at once."""
    one, wanted = stage.another(), new_session_id()
    equal(await one.create(SessionSpec(session_id=wanted)), wanted)
    equal(one.session_id, wanted)
    await is_state(one, EnvironmentState.ACTIVE)
    equal((await call(one, "bash", cmd="echo here")).exit_code, 0)


async def sessions_do_not_share_an_id(stage: EnvironmentStage) -> None:
    """Who asks for no id gets one that nobody has."""
    one = stage.another()
    expect(await one.create(SessionSpec()) not in ("", stage.id), "two sessions have one id")


async def a_second_create_is_refused(stage: EnvironmentStage) -> None:
    """An environment that has a session makes and takes no other one, and keeps what it has."""
    before = stage.id
    await refuses(stage.environment.create(SessionSpec()), InvalidState)
    await refuses(stage.environment.attach_session(before), InvalidState)
    equal(stage.environment.session_id, before)
    equal(await stage.sh("echo still"), "still")


async def of_two_creates_at_once_one_is_refused(stage: EnvironmentStage) -> None:
    """The session id is set once, however many ask at the same time."""
    one = stage.another()
    found = await asyncio.gather(*(one.create(SessionSpec()) for _ in range(2)), return_exceptions=True)
    made = [each for each in found if isinstance(each, str)]
    expect(len(made) == 1 and any(isinstance(each, InvalidState) for each in found), found)
    equal(one.session_id, made[0])


async def an_id_that_is_taken_is_refused(stage: EnvironmentStage) -> None:
    """Whoever asks for the id of a session that is there gets none; the other is as it was, and he can try again."""
    one = stage.another()
    await stage.sh("echo mine >f")
    await refuses(one.create(SessionSpec(session_id=stage.id)), SessionExists)
    equal(one.session_id, None)
    equal(await stage.sh("cat f"), "mine")
    await one.create(SessionSpec())
    await is_state(one, EnvironmentState.ACTIVE)


async def an_unknown_session_is_not_attached(stage: EnvironmentStage) -> None:
    """`attach_session` looks whether it is there; after a refusal the environment has no session."""
    one = stage.another()
    await refuses(one.attach_session(new_session_id()), SessionNotFound)
    await refuses(one.attach_session("../../etc"), SessionNotFound, InvalidArgument)
    equal(one.session_id, None)
    await is_state(one, EnvironmentState.CREATING)


async def one_provisions_and_another_executes(stage: EnvironmentStage) -> None:
    """Two objects on one session see the same files and the same state; the id is all that they share."""
    other = stage.another()
    await stage.sh("echo made >f")
    await other.attach_session(stage.id)
    equal(other.session_id, stage.id)
    equal(told(await call(other, "bash", cmd="cat f; echo more >>f")), "made")
    equal(await stage.sh("cat f"), "made\nmore")
    await is_state(other, EnvironmentState.ACTIVE)


# ---- tools -------------------------------------------------------------------------------------------------------


async def the_catalogue_has_what_agents_need(stage: EnvironmentStage) -> None:
    """There are tools for files and for commands, each with a schema."""
    names = {tool.name for tool in await stage.environment.tools()}
    expect(names >= {"bash", "read_file", "write_file"}, sorted(names))


async def the_same_path_is_the_same_file_for_every_tool(stage: EnvironmentStage) -> None:
    """What a tool of files writes a command reads, and the other way round."""
    written = await stage.tool("write_file", path="a/b", content="one\ntwo\n")
    equal((written.text, written.is_error), ("wrote 8 bytes to a/b", False))
    equal(await stage.sh("cat a/b; echo three >c"), "one\ntwo")
    equal((await stage.tool("read_file", path="c")).text, "     1\tthree")


async def bytes_stay_as_they_are(stage: EnvironmentStage) -> None:
    """Text that is no ASCII, quotes, and names with blanks and dollars come out as they went in."""
    name, text = "a b'\"$(x)&é", "ä€😀 '\"`$HOME\\ \n\ttab"
    expect(not (await stage.tool("write_file", path=name, content=text)).is_error, "it was not written")
    shown = (await stage.tool("read_file", path=name)).text
    equal(shown, "     1\tä€😀 '\"`$HOME\\ \n     2\t\ttab")


async def a_command_that_fails_is_a_result(stage: EnvironmentStage) -> None:
    """An exit code that is not zero raises nothing."""
    result = await stage.tool("bash", cmd="echo before; exit 7")
    equal((result.exit_code, told(result)), (7, "before"))


async def what_a_tool_cannot_do_is_a_result(stage: EnvironmentStage) -> None:
    """Wrong arguments and a file that is not there are results marked as errors; a tool that nobody knows is an error
    of the caller."""
    wrong: tuple[tuple[str, dict[str, Any]], ...] = (
        ("read_file", {"path": "missing"}),
        ("read_file", {}),
        ("bash", {"cmd": 3}),
    )
    for tool, arguments in wrong:
        result = await stage.tool(tool, **arguments)
        expect(result.is_error and bool(result.text), f"{tool} {arguments}: {result}")
    await refuses(stage.tool("no_such_tool"), InvalidArgument)


async def a_request_of_another_session_is_refused(stage: EnvironmentStage) -> None:
    """Nothing is done in a session that the caller did not mean."""
    request = ToolRequest(_NOWHERE, "write_file", {"path": "f", "content": "x"})
    await refuses(stage.environment.execute_tool(request), InvalidArgument)
    expect((await stage.tool("read_file", path="f")).is_error, "it was done in the wrong session")


async def progress_is_heard_while_a_tool_works(stage: EnvironmentStage) -> None:
    """What a command says is heard before it ends, where that is declared: here it ends because it was heard."""
    if not (await stage.environment.capabilities()).streaming_progress:
        return
    heard: list[str] = []

    async def answer(said: ToolProgress) -> None:
        heard.append(said.text)
        if "ask" in "".join(heard):
            await stage.tool("write_file", path="answer", content="yes")

    result = await stage.tool("bash", answer, cmd="echo ask; while [ ! -e answer ]; do sleep 0.05; done; echo done")
    equal((result.exit_code, told(result)), (0, "ask\ndone"))
    equal("".join(heard), "ask\ndone\n")


async def calls_do_not_wait_for_each_other(stage: EnvironmentStage) -> None:
    """Many calls on one object run at once: the first of them ends when the last has begun."""
    count = stage.at_once
    last = f"echo x >go{count - 1}"
    waiting = [
        stage.sh(f"echo {number}; while [ ! -e go{number + 1} ]; do sleep 0.05; done; echo x >go{number}")
        for number in range(count - 1)
    ]
    answers = await asyncio.gather(*waiting, stage.sh(last))
    equal(answers[:-1], [str(number) for number in range(count - 1)])


async def whoever_gives_up_ends_the_call(stage: EnvironmentStage) -> None:
    """A call whose caller is cancelled does not go on."""
    begun = asyncio.Event()
    script = "echo go; while [ ! -e f ]; do sleep 0.05; done; echo x >late"
    task = asyncio.create_task(stage.tool("bash", lambda _said: begun.set(), cmd=script))
    try:
        await begun.wait()
    finally:
        task.cancel()
        await asyncio.wait([task])
    expect(task.cancelled(), "whoever was cancelled got a result")
    await _never_comes(stage, "late")


async def what_a_listener_raises_comes_out(stage: EnvironmentStage) -> None:
    """An `on_progress` that raises ends the call, and its error is what the caller gets."""

    class Mine(Exception):
        pass

    def refuse(_said: ToolProgress) -> None:
        raise Mine

    script = "echo go; while [ ! -e f ]; do sleep 0.05; done; echo x >late"
    try:
        await stage.tool("bash", refuse, cmd=script)
    except Mine:
        await _never_comes(stage, "late")
        return
    raise Broken("what the listener raised did not come out")


async def _never_comes(stage: EnvironmentStage, path: str) -> None:
    await stage.tool("write_file", path="f", content="")
    for _ in range(_LOOKS):
        expect((await stage.tool("read_file", path=path)).is_error, "it went on")
        await asyncio.sleep(_POLL_S)


async def a_call_with_a_known_id_is_not_done_again(stage: EnvironmentStage) -> None:
    """A repeated call id gives what the first call gave."""
    script = "echo x >>f; cat f"
    first = await call(stage.environment, "bash", None, "c1", cmd=script)
    again = await call(stage.environment, "bash", None, "c1", cmd=script)
    equal((told(again), again.call_id), (told(first), first.call_id))
    equal(await stage.sh("cat f"), "x")


async def a_call_ends_at_its_time_limit(stage: EnvironmentStage) -> None:
    """A command that does not end is ended, and its result says so."""
    began = asyncio.get_running_loop().time()
    script = "while [ ! -e never ]; do sleep 0.05; done"
    result = await call(stage.environment, "bash", None, None, 0.5, cmd=script)
    expect(result.is_error and result.exit_code != 0, result)
    expect(asyncio.get_running_loop().time() - began < DEADLINE_S / 2, "it took far longer than its limit")
    equal(await stage.sh("echo after"), "after")


# ---- pause, snapshots --------------------------------------------------------------------------------------------


async def a_paused_session_takes_no_tools(stage: EnvironmentStage) -> None:
    """Pausing and resuming can be said again; between them tools are refused, and files are as they were after."""
    one = stage.environment
    await stage.sh("echo kept >f")
    for _ in range(2):
        await one.pause()
        await is_state(one, EnvironmentState.PAUSED)
    await refuses(stage.sh("echo no"), SessionPaused)
    for _ in range(2):
        await one.resume()
        await is_state(one, EnvironmentState.ACTIVE)
    equal(await stage.sh("cat f"), "kept")


async def the_state_follows_others(stage: EnvironmentStage) -> None:
    """A pause by another object is seen."""
    other = stage.another()
    await other.attach_session(stage.id)
    await other.pause()
    await is_state(stage.environment, EnvironmentState.PAUSED)
    await stage.environment.resume()
    await is_state(other, EnvironmentState.ACTIVE)


async def a_pause_that_cannot_be_is_refused(stage: EnvironmentStage) -> None:
    """Where there is no pause it is refused, and the session goes on."""
    await refuses(stage.environment.pause(), CapabilityNotSupported)
    await is_state(stage.environment, EnvironmentState.ACTIVE)
    equal(await stage.sh("echo on"), "on")


async def files_go_back_to_a_snapshot(stage: EnvironmentStage) -> None:
    """A rollback brings back what was there, and takes away what was not."""
    one = stage.environment
    await stage.sh("echo old >f")
    shot = await one.create_snapshot("before")
    equal((shot.name, shot.session_id), ("before", stage.id))
    await stage.sh("echo new >f; echo more >g")
    await one.rollback("before")
    await is_state(one, EnvironmentState.ACTIVE)
    equal(await stage.sh("cat f"), "old")
    expect((await stage.tool("read_file", path="g")).is_error, "what came later is still there")


async def a_wrong_target_changes_nothing(stage: EnvironmentStage) -> None:
    """A snapshot that is not there is not found, and the session lives on; a name is given once."""
    one = stage.environment
    await stage.sh("echo here >f")
    await refuses(one.rollback("nowhere"), SnapshotNotFound)
    await is_state(one, EnvironmentState.ACTIVE)
    equal(await stage.sh("cat f"), "here")
    await one.create_snapshot("twice")
    await refuses(one.create_snapshot("twice"), Conflict)


async def snapshots_that_cannot_be_are_refused(stage: EnvironmentStage) -> None:
    """Where there are no snapshots they are refused, and the session goes on."""
    await refuses(stage.environment.create_snapshot("s"), CapabilityNotSupported)
    await refuses(stage.environment.rollback("s"), CapabilityNotSupported)
    equal(await stage.sh("echo on"), "on")


# ---- the end -----------------------------------------------------------------------------------------------------


async def destroying_again_does_nothing(stage: EnvironmentStage) -> None:
    """After `destroy` the state is `destroyed`, every verb is refused, and the session is gone for all."""
    one, session_id = stage.environment, stage.id
    for _ in range(2):
        await one.destroy()
        await is_state(one, EnvironmentState.DESTROYED)
    equal(one.session_id, session_id)
    request = ToolRequest(session_id, "bash", {"cmd": "exit 0"})
    for verb in (partial(one.execute_tool, request), one.pause, one.resume, partial(one.create, SessionSpec())):
        await refuses(verb(), InvalidState)
    await refuses(stage.another().attach_session(session_id), SessionNotFound)


async def a_session_that_others_destroyed_is_gone(stage: EnvironmentStage) -> None:
    """Then the state is `destroyed`, tools find no session, and destroying it does nothing."""
    other = stage.another()
    await other.attach_session(stage.id)
    await other.destroy()
    await refuses(stage.sh("echo no"), SessionNotFound, InvalidState)
    await is_state(stage.environment, EnvironmentState.DESTROYED)
    await stage.environment.destroy()


async def destroying_ends_what_runs(stage: EnvironmentStage) -> None:
    """A call under way comes to an end, one way or the other."""
    begun = asyncio.Event()
    script = "echo go; while [ ! -e never ]; do sleep 0.05; done"
    task = asyncio.create_task(stage.tool("bash", lambda _said: begun.set(), cmd=script))
    try:
        await begun.wait()
        await stage.environment.destroy()
        await asyncio.wait([task])
        wrong = task.exception()
        expect(isinstance(wrong, SandlotError) if wrong else task.result().exit_code != 0, wrong or "it ended well")
    finally:
        task.cancel()
        await asyncio.wait([task])


async def a_life_ends_when_its_time_is_up(stage: EnvironmentStage) -> None:
    """A session that was made for a moment is gone after it."""
    one = stage.another()
    await one.create(SessionSpec(timeout_s=_LIFE_S))
    while await one.state() is not EnvironmentState.DESTROYED:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(_POLL_S)
    await refuses(call(one, "bash", cmd="echo no"), SessionNotFound, InvalidState)


async def no_life_is_longer_than_declared(stage: EnvironmentStage) -> None:
    """A longer life than `max_session_duration_s` is refused before anything is made."""
    most = (await stage.environment.capabilities()).max_session_duration_s
    if most is None:
        return
    one, wanted = stage.another(), new_session_id()

    async def attempt() -> None:
        await one.create(SessionSpec(session_id=wanted, timeout_s=2 * most))

    await refuses(attempt(), InvalidArgument, LimitReached)
    equal(one.session_id, None)
    await refuses(stage.another().attach_session(wanted), SessionNotFound)


async def no_more_sessions_than_declared(stage: EnvironmentStage) -> None:
    """One more than `concurrent_sessions` is refused, and there is room again when one has ended. A bound that is high
    is not tried out."""
    most = (await stage.environment.capabilities()).concurrent_sessions
    if not 0 < most <= _COUNTED_MAX:
        return
    others = [stage.another() for _ in range(most)]
    for one in others[:-1]:
        await one.create(SessionSpec())
    await refuses(others[-1].create(SessionSpec()), MaxSessionsReached)
    equal(others[-1].session_id, None)
    await stage.environment.destroy()
    await others[-1].create(SessionSpec())


ENVIRONMENT_CHECKS: tuple[Check[EnvironmentStage], ...] = (
    Check(without_a_session_nothing_is_done),
    Check(a_session_is_made_with_the_id_that_was_asked_for),
    Check(sessions_do_not_share_an_id),
    Check(a_second_create_is_refused),
    Check(of_two_creates_at_once_one_is_refused),
    Check(an_id_that_is_taken_is_refused),
    Check(an_unknown_session_is_not_attached),
    Check(one_provisions_and_another_executes),
    Check(the_catalogue_has_what_agents_need),
    Check(the_same_path_is_the_same_file_for_every_tool),
    Check(bytes_stay_as_they_are),
    Check(a_command_that_fails_is_a_result),
    Check(what_a_tool_cannot_do_is_a_result),
    Check(a_request_of_another_session_is_refused),
    Check(progress_is_heard_while_a_tool_works),
    Check(calls_do_not_wait_for_each_other),
    Check(whoever_gives_up_ends_the_call),
    Check(what_a_listener_raises_comes_out),
    Check(a_call_with_a_known_id_is_not_done_again),
    Check(a_call_ends_at_its_time_limit),
    Check(a_paused_session_takes_no_tools, (Capability.PAUSE,)),
    Check(the_state_follows_others, (Capability.PAUSE,)),
    Check(a_pause_that_cannot_be_is_refused, unless=Capability.PAUSE),
    Check(files_go_back_to_a_snapshot, (Capability.SNAPSHOTS,)),
    Check(a_wrong_target_changes_nothing, (Capability.SNAPSHOTS,)),
    Check(snapshots_that_cannot_be_are_refused, unless=Capability.SNAPSHOTS),
    Check(destroying_again_does_nothing),
    Check(a_session_that_others_destroyed_is_gone),
    Check(destroying_ends_what_runs),
    Check(a_life_ends_when_its_time_is_up),
    Check(no_life_is_longer_than_declared),
    Check(no_more_sessions_than_declared),
)


def conform_environment(
    fresh: Fresh,
    checks: Sequence[Check[EnvironmentStage]] = ENVIRONMENT_CHECKS,
    deviations: Mapping[str, str] | None = None,
    *,
    at_once: int = AT_ONCE,
    deadline_s: float = DEADLINE_S,
) -> AsyncIterator[Outcome]:
    """Each check with an object and a session of its own. `fresh` makes an object without a session, of one and the
    same provider; `at_once`: so many calls it takes at the same time. Nothing is left of the checks."""
    return run_checks(fresh, checks, deviations, at_once=at_once, deadline_s=deadline_s)
