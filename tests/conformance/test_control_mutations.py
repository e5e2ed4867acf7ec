"""A control that breaks a promise is told by the check of that promise."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from sandlot.conformance import CONTROL_CHECKS, Verdict, conform_control
from sandlot.contracts import SandboxControl
from sandlot.fakes.control import FakeControl, FakeSandboxes
from sandlot.model import (
    CapabilityNotSupported,
    CreateSandboxRequest,
    CreateSandboxResponse,
    GetProcessStatusRequest,
    GetProcessStatusResponse,
    InvalidState,
    KillProcessRequest,
    LaunchProcessRequest,
    LaunchProcessResponse,
    LimitReached,
    MaxSessionsReached,
    ProcessNotFound,
    ProcessState,
    Resources,
    SandboxCapabilities,
    SandlotError,
    SessionNotFound,
    SessionPaused,
    StartFailed,
    TemplateNotFound,
    Unavailable,
)

DEADLINE_S = 3.0  # of a check: some mutations hang
ALL = replace(FakeSandboxes().capabilities, concurrent_sandboxes=5)


class TellsMoreThanItCan(FakeControl):
    async def capabilities(self) -> SandboxCapabilities:
        return replace(await super().capabilities(), deep_pause=True)


class HasOneSandboxForAll(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        return await super().create_sandbox(replace(request, request_id="one"))


class ForgetsRequests(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        return await super().create_sandbox(replace(request, request_id=None))


class AsksAgainTooLate(FakeControl):
    """What was asked for is looked up before, and kept after, something that takes time."""

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        if request.request_id is None:
            return await super().create_sandbox(request)
        known = self.provider.requested.get(request.request_id)
        await asyncio.sleep(0.01)
        if known in self.provider.sandboxes:
            return CreateSandboxResponse(known, "", self.provider.capabilities)
        made = await super().create_sandbox(replace(request, request_id=None))
        self.provider.requested[request.request_id] = made.sandbox_id
        return made


class KnowsOnlyItsOwn(FakeControl):
    def __init__(self, provider: FakeSandboxes) -> None:
        super().__init__(provider)
        self.own = set[str]()

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        made = await super().create_sandbox(request)
        self.own.add(made.sandbox_id)
        return made

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        if sandbox_id in self.own:
            await super().destroy_sandbox(sandbox_id)


class TakesAnyTemplate(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        return await super().create_sandbox(replace(request, template=None))


class LeavesOneBehind(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        if request.template is not None:
            await super().create_sandbox(replace(request, template=None))
            raise TemplateNotFound("there is no such template")
        return await super().create_sandbox(request)


class HoldsNoLimit(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        return await super().create_sandbox(replace(request, resources=Resources()))


class RefusesALimitTooLate(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        made = await super().create_sandbox(replace(request, resources=Resources()))
        if request.resources.asked():
            raise CapabilityNotSupported("it holds no limits")
        return made


class KnowsEverySandbox(FakeControl):
    async def resume_sandbox(self, sandbox_id: str) -> None:
        if sandbox_id in self.provider.sandboxes:
            await super().resume_sandbox(sandbox_id)


class CannotDestroyTwice(FakeControl):
    async def destroy_sandbox(self, sandbox_id: str) -> None:
        self.provider.remove(self.provider.find(sandbox_id))


class DestroysInNameOnly(FakeControl):
    """It is told as gone, and its place stays taken."""

    async def destroy_sandbox(self, sandbox_id: str) -> None:
        gone = self.provider.sandboxes.pop(sandbox_id, None)
        if gone is not None:
            self.provider.sandboxes["gone-" + sandbox_id] = gone


class LivesForEver(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        return await super().create_sandbox(replace(request, timeout_s=None))


class DeclaresLessThanItGives(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        made = await super().create_sandbox(request)
        return replace(made, capabilities=replace(made.capabilities, sandbox_duration_s_max=60.0))


class CountsNoSandboxes(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        made = await super().create_sandbox(request)
        return replace(made, capabilities=replace(made.capabilities, concurrent_sandboxes=2))


class CountsThoseThatAreGone(FakeControl):
    made = itertools.count()

    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        if next(self.made) >= ALL.concurrent_sandboxes + 1:  # and one that the suite looks at first
            raise MaxSessionsReached("there were too many")
        return await super().create_sandbox(request)


class SaysZeroBeforeTheEnd(FakeControl):
    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        told = await super().get_process_status(request)
        return replace(told, exit_code=told.exit_code or 0)


class TellsEndsAsZero(FakeControl):
    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        told = await super().get_process_status(request)
        return told if told.exit_code is None else replace(told, exit_code=0)


class JoinsArguments(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        plain = tuple(" ".join(word.split()) for word in request.args)
        return await super().launch_process(replace(request, args=plain))


class LosesVariables(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        return await super().launch_process(replace(request, envs={}))


class WantsPaths(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        if "/" not in request.binary and request.binary == "sh":
            raise StartFailed("it is no path")
        return await super().launch_process(request)


class StartsWhatIsNotThere(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        try:
            return await super().launch_process(request)
        except StartFailed:
            return await super().launch_process(replace(request, binary="sh", args=("-c", "exit 127")))


class GivesOneId(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        return await super().launch_process(replace(request, process_id=request.process_id or "p"))


class LaunchesTwice(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        launched = await super().launch_process(replace(request, process_id=None))
        if request.process_id is None:
            return launched
        processes = self.provider.sandboxes[request.sandbox_id].processes
        processes[request.process_id] = processes.pop(launched.process_id)
        return replace(launched, process_id=request.process_id)


class FindsProcessesAnywhere(FakeControl):
    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        for sandbox in self.provider.sandboxes.values():
            if request.process_id in sandbox.processes:
                return sandbox.processes[request.process_id].look(sandbox.now())
        raise ProcessNotFound("there is none")


class KillsUnknownOnes(FakeControl):
    async def kill_process(self, request: KillProcessRequest) -> None:
        try:
            await super().kill_process(request)
        except ProcessNotFound:
            return


class OnlyAsksToEnd(FakeControl):
    async def kill_process(self, request: KillProcessRequest) -> None:
        await super().kill_process(replace(request, signal=request.signal or 15))


class EndsItAgain(FakeControl):
    async def kill_process(self, request: KillProcessRequest) -> None:
        _sandbox, process = self._process(request.sandbox_id, request.process_id)
        if process.ended_with is not None:
            raise InvalidState("it has ended")
        await super().kill_process(request)


class SendsAlwaysTheSame(FakeControl):
    async def kill_process(self, request: KillProcessRequest) -> None:
        await super().kill_process(replace(request, signal=None))


class KeepsProcessesToItself(FakeControl):
    def __init__(self, provider: FakeSandboxes) -> None:
        super().__init__(provider)
        self.own = set[str]()

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        launched = await super().launch_process(request)
        self.own.add(launched.process_id)
        return launched

    async def get_process_status(self, request: GetProcessStatusRequest) -> GetProcessStatusResponse:
        if request.process_id not in self.own:
            raise ProcessNotFound("it is not mine")
        return await super().get_process_status(request)


class LeavesPortsOpen(DestroysInNameOnly):
    pass


class GivesAnAddressToAll(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        launched = await super().launch_process(request)
        return replace(launched, address=launched.address or "127.0.0.1:1")


class GivesAnAddressWithoutAnyone(FakeControl):
    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        launched = await super().launch_process(request)
        return replace(launched, address="127.0.0.1:1" if launched.address else "")


class KeepsPortsOfTheDead(FakeControl):
    async def kill_process(self, request: KillProcessRequest) -> None:
        _sandbox, process = self._process(request.sandbox_id, request.process_id)
        server, process.server = process.server, None
        await super().kill_process(request)
        if server is not None:  # it goes on answering
            process.server, process.ended_with = server, None


class PausesInNameOnly(FakeControl):
    async def pause_sandbox(self, sandbox_id: str) -> None:
        self.provider.find(sandbox_id)


class LaunchesLater(FakeControl):
    """What is refused in a pause is done all the same."""

    async def launch_process(self, request: LaunchProcessRequest) -> LaunchProcessResponse:
        sandbox = self.provider.find(request.sandbox_id)
        paused, sandbox.paused_at = sandbox.paused_at, None
        launched = await super().launch_process(request)
        sandbox.paused_at = paused
        if paused is not None:
            raise SessionPaused("it is paused")
        return launched


class EndsProcessesInAPause(FakeControl):
    async def pause_sandbox(self, sandbox_id: str) -> None:
        await super().pause_sandbox(sandbox_id)
        for process in self.provider.find(sandbox_id).processes.values():
            process.end(137)


class CannotDestroyPaused(FakeControl):
    async def destroy_sandbox(self, sandbox_id: str) -> None:
        sandbox = self.provider.sandboxes.get(sandbox_id)
        if sandbox is not None and sandbox.paused_at is not None:
            sandbox.paused_at = None  # so that the suite can clean up
            raise SessionPaused("it is paused")
        await super().destroy_sandbox(sandbox_id)


class NeverSaysGone(FakeControl):
    async def resume_sandbox(self, sandbox_id: str) -> None:
        try:
            await super().resume_sandbox(sandbox_id)
        except SessionNotFound:
            raise Unavailable("nobody answers") from None


class SaysOtherWords(FakeControl):
    async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
        try:
            return await super().create_sandbox(request)
        except MaxSessionsReached as error:
            raise LimitReached(error.message) from None
        except SandlotError:
            raise


MUTATIONS: tuple[tuple[type[FakeControl], str], ...] = (
    (TellsMoreThanItCan, "a_sandbox_tells_what_it_can_do"),
    (HasOneSandboxForAll, "sandboxes_do_not_share_an_id"),
    (ForgetsRequests, "a_request_that_is_repeated_makes_one_sandbox"),
    (AsksAgainTooLate, "a_request_that_is_repeated_makes_one_sandbox"),
    (KnowsOnlyItsOwn, "two_objects_see_the_same_sandboxes"),
    (TakesAnyTemplate, "an_unknown_template_is_refused"),
    (LeavesOneBehind, "an_unknown_template_is_refused"),
    (HoldsNoLimit, "a_limit_is_held_or_refused"),
    (RefusesALimitTooLate, "a_limit_is_held_or_refused"),
    (KnowsEverySandbox, "an_unknown_sandbox_is_not_found"),
    (CannotDestroyTwice, "destroying_again_does_nothing"),
    (DestroysInNameOnly, "destroying_again_does_nothing"),
    (NeverSaysGone, "destroying_again_does_nothing"),
    (LivesForEver, "a_life_ends_when_its_time_is_up"),
    (DeclaresLessThanItGives, "no_life_is_longer_than_declared"),
    (CountsNoSandboxes, "no_more_sandboxes_than_declared"),
    (CountsThoseThatAreGone, "no_more_sandboxes_than_declared"),
    (SaysOtherWords, "no_more_sandboxes_than_declared"),
    (SaysZeroBeforeTheEnd, "a_process_runs_until_it_ends"),
    (TellsEndsAsZero, "a_process_runs_until_it_ends"),
    (JoinsArguments, "arguments_arrive_as_they_are"),
    (LosesVariables, "variables_arrive"),
    (WantsPaths, "a_program_is_found_by_name_and_by_path"),
    (StartsWhatIsNotThere, "a_program_that_is_not_there_is_refused"),
    (GivesOneId, "processes_have_ids_of_their_own"),
    (LaunchesTwice, "a_process_id_is_launched_once"),
    (FindsProcessesAnywhere, "an_unknown_process_is_not_found"),
    (KillsUnknownOnes, "an_unknown_process_is_not_found"),
    (OnlyAsksToEnd, "a_killed_process_has_ended"),
    (EndsItAgain, "a_killed_process_has_ended"),
    (SendsAlwaysTheSame, "the_signal_that_is_given_is_sent"),
    (KeepsProcessesToItself, "another_object_knows_the_processes"),
    (LeavesPortsOpen, "destroying_ends_what_runs"),
    (GivesAnAddressToAll, "without_a_port_there_is_no_address"),
    (GivesAnAddressWithoutAnyone, "an_exposed_port_is_reached"),
    (KeepsPortsOfTheDead, "a_port_is_given_back"),
    (PausesInNameOnly, "a_paused_sandbox_launches_nothing"),
    (LaunchesLater, "a_paused_sandbox_launches_nothing"),
    (EndsProcessesInAPause, "a_pause_does_to_processes_what_is_declared"),
    (CannotDestroyPaused, "a_paused_sandbox_is_destroyed"),
)


@pytest.mark.parametrize(("mutation", "check"), MUTATIONS, ids=[kind.__name__ for kind, _check in MUTATIONS])
async def test_each_mutation_fails_its_own_check(mutation: type[FakeControl], check: str) -> None:
    provider = FakeSandboxes(ALL)
    make: Callable[[], SandboxControl] = lambda: mutation(provider)  # noqa: E731 - a name for its type
    chosen = [each for each in CONTROL_CHECKS if each.name == check]
    outcomes = [one async for one in conform_control(make, chosen, count=provider.count, deadline_s=DEADLINE_S)]
    assert [one.verdict for one in outcomes] == [Verdict.FAILED]
    for sandbox in tuple(provider.sandboxes.values()):  # what a mutation has left
        for process in sandbox.processes.values():
            process.end(0)


@pytest.mark.parametrize(
    ("declared", "check"),
    [
        (replace(ALL, pause=True, pause_keeps_processes=False), "a_pause_does_to_processes_what_is_declared"),
        (replace(ALL, pause=False), "a_pause_that_cannot_be_is_refused"),
        (replace(ALL, launch_process=False), "launching_that_cannot_be_is_refused"),
        (replace(ALL, expose_port=False), "a_port_that_cannot_be_is_refused"),
    ],
)
async def test_what_is_declared_and_not_so_is_told(declared: SandboxCapabilities, check: str) -> None:
    class Declares(FakeControl):
        async def create_sandbox(self, request: CreateSandboxRequest) -> CreateSandboxResponse:
            return replace(await super().create_sandbox(request), capabilities=declared)

    provider = FakeSandboxes(ALL)
    chosen = [each for each in CONTROL_CHECKS if each.name == check]
    outcomes = [one async for one in conform_control(lambda: Declares(provider), chosen, deadline_s=DEADLINE_S)]
    assert [one.verdict for one in outcomes] == [Verdict.FAILED]


async def test_without_a_mutation_every_one_of_these_checks_passes() -> None:
    provider = FakeSandboxes(ALL)
    broken = {check for _kind, check in MUTATIONS}
    chosen = [check for check in CONTROL_CHECKS if check.name in broken]
    assert len(chosen) == len(broken)
    outcomes = [one async for one in conform_control(provider.control, chosen, count=provider.count)]
    assert [(one.check, one.detail) for one in outcomes if not one.is_good] == []


def test_every_state_of_a_process_is_one_that_was_known() -> None:
    assert [str(state) for state in ProcessState] == ["starting", "running", "exited"]
