"""A provisioner that breaks a promise is told by the check of that promise."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest

from sandlot.conformance import PROVISIONER_CHECKS, Verdict, conform_provisioner
from sandlot.contracts import InstanceProvisioner
from sandlot.fakes.provisioner import IMAGE, FakeCloud, FakeProvisioner
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    InvalidState,
    Market,
    NotFound,
    ProvisionerCapabilities,
    SandlotError,
    Unavailable,
)

DEADLINE_S = 1.0  # of a check: some mutations hang
CONFIG = InstanceConfig(IMAGE)
ALL = replace(FakeCloud().capabilities, instances_max=5)


class NeverBoots(FakeProvisioner):
    async def describe(self, instance_id: str) -> Instance:
        told = await super().describe(instance_id)
        return replace(told, state=InstanceState.PENDING) if told.state is InstanceState.RUNNING else told


class TellsNoAddress(FakeProvisioner):
    async def describe(self, instance_id: str) -> Instance:
        return replace(await super().describe(instance_id), private_address="")


class ServesNowhere(FakeProvisioner):
    async def describe(self, instance_id: str) -> Instance:
        return replace(await super().describe(instance_id), endpoint="127.0.0.1:1")


class TagsItLater(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return replace(await super().launch(config), tags={})


class MakesOneForAll(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return await super().launch(replace(config, request_id="one"))


class ForgetsRequests(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return await super().launch(replace(config, request_id=None))


class RemembersRequestsItself(FakeProvisioner):
    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(cloud)
        self.known = dict[str, Instance]()

    async def launch(self, config: InstanceConfig) -> Instance:
        token = config.request_id or str(len(self.known))
        if token not in self.known:
            self.known[token] = await super().launch(replace(config, request_id=None))
        return self.known[token]


class TakesAnyConfigForARequest(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        try:
            return await super().launch(config)
        except Conflict:
            return await super().launch(replace(config, request_id=None))


class TakesAnyImage(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return await super().launch(replace(config, image=IMAGE))


class RefusesAnImageTooLate(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        made = await super().launch(replace(config, image=IMAGE))
        if config.image != IMAGE:
            raise NotFound("there is no such image")
        return made


class IgnoresWishes(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return await super().launch(replace(config, zone=None))

    async def capabilities(self) -> ProvisionerCapabilities:
        return replace(await super().capabilities(), zones=False)


class GivesAnotherMarket(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        return replace(await super().launch(config), market=Market.ON_DEMAND)


class CountsNoInstances(FakeProvisioner):
    async def capabilities(self) -> ProvisionerCapabilities:
        return replace(await super().capabilities(), instances_max=2)


class LooksAtOneTag(FakeProvisioner):
    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        everyone = await super().list(InstanceFilter(states=query.states))
        return [one for one in everyone if not query.tags or query.tags.items() & one.tags.items()]


class ListsNewestFirst(FakeProvisioner):
    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        return list(reversed(await super().list(query)))


class ListsTheTerminated(FakeProvisioner):
    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        return await super().list(InstanceFilter(query.tags, query.states or frozenset(InstanceState)))


class LooksAtNoState(FakeProvisioner):
    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        return await super().list(InstanceFilter(query.tags))


class KnowsOnlyItsOwn(FakeProvisioner):
    def __init__(self, cloud: FakeCloud) -> None:
        super().__init__(cloud)
        self.own = set[str]()

    async def launch(self, config: InstanceConfig) -> Instance:
        made = await super().launch(config)
        self.own.add(made.instance_id)
        return made

    async def describe(self, instance_id: str) -> Instance:
        if instance_id not in self.own:
            raise NotFound("it is not mine")
        return await super().describe(instance_id)


class DescribesAnything(FakeProvisioner):
    async def describe(self, instance_id: str) -> Instance:
        with suppress(NotFound):
            return await super().describe(instance_id)
        return Instance(instance_id, InstanceState.TERMINATED, IMAGE)


class CannotTerminateTwice(FakeProvisioner):
    async def terminate(self, instance_id: str) -> None:
        if (await self.describe(instance_id)).state is InstanceState.TERMINATING:
            raise InvalidState("it is being terminated")
        await super().terminate(instance_id)


class TerminatesInNameOnly(FakeProvisioner):
    async def terminate(self, instance_id: str) -> None:
        await self.describe(instance_id)


class BringsThemBack(FakeProvisioner):
    async def start(self, instance_id: str) -> Instance:
        one = self.cloud.find(instance_id)
        if one.told.state in (InstanceState.TERMINATING, InstanceState.TERMINATED):
            self.cloud.bring(one, InstanceState.PENDING)
        return await super().start(instance_id)


class WaitsForTheBoot(FakeProvisioner):
    async def terminate(self, instance_id: str) -> None:
        if (await self.describe(instance_id)).state is InstanceState.PENDING:
            raise InvalidState("it is not up yet")
        await super().terminate(instance_id)


class LivesForEver(FakeProvisioner):
    async def launch(self, config: InstanceConfig) -> Instance:
        made = await super().launch(replace(config, lifetime_s=None))
        return made if config.lifetime_s is None else replace(made, expires=made.launched + config.lifetime_s)


class CannotStopTwice(FakeProvisioner):
    async def stop(self, instance_id: str) -> Instance:
        if (await self.describe(instance_id)).state is InstanceState.STOPPING:
            raise InvalidState("it is stopping")
        return await super().stop(instance_id)


class StartsAnotherOne(FakeProvisioner):
    async def start(self, instance_id: str) -> Instance:
        one = self.cloud.find(instance_id)
        if one.told.state is not InstanceState.STOPPED:
            return one.told
        return await self.launch(one.config)


class LosesTagsInAStop(FakeProvisioner):
    async def stop(self, instance_id: str) -> Instance:
        told = await super().stop(instance_id)
        one = self.cloud.find(instance_id)
        one.told = replace(one.told, tags={key: value for key, value in one.told.tags.items() if key == "x"})
        return told


class MustRunToBeTerminated(FakeProvisioner):
    async def terminate(self, instance_id: str) -> None:
        if (await self.describe(instance_id)).state in (InstanceState.STOPPING, InstanceState.STOPPED):
            raise InvalidState("start it first")
        await super().terminate(instance_id)


class HangsBetweenStates(FakeProvisioner):
    """Who is started while it stops stays where it is."""

    async def start(self, instance_id: str) -> Instance:
        one = self.cloud.find(instance_id)
        if one.told.state is InstanceState.STOPPING:
            one.since += 1e9
            return one.told
        return await super().start(instance_id)


class StopsWhereItCannot(FakeProvisioner):
    async def capabilities(self) -> ProvisionerCapabilities:
        return replace(await super().capabilities(), stop=False)


class RefusesAndStopsAllTheSame(FakeProvisioner):
    async def capabilities(self) -> ProvisionerCapabilities:
        return replace(await super().capabilities(), stop=False)

    async def stop(self, instance_id: str) -> Instance:
        await super().stop(instance_id)
        raise CapabilityNotSupported("there is no stop")


class FailsWithoutAType(FakeProvisioner):
    async def describe(self, instance_id: str) -> Instance:
        try:
            return await super().describe(instance_id)
        except SandlotError as error:
            raise RuntimeError(error.message) from None


MUTATIONS: tuple[tuple[type[FakeProvisioner], str], ...] = (
    (NeverBoots, "a_launched_instance_comes_to_run"),
    (TellsNoAddress, "a_launched_instance_comes_to_run"),
    (ServesNowhere, "a_launched_instance_comes_to_run"),
    (TagsItLater, "a_launched_instance_comes_to_run"),
    (MakesOneForAll, "instances_launched_at_once_are_apart"),
    (ForgetsRequests, "a_request_that_is_repeated_makes_one_instance"),
    (RemembersRequestsItself, "a_request_that_is_repeated_makes_one_instance"),
    (TakesAnyConfigForARequest, "a_request_for_something_else_is_refused"),
    (TakesAnyImage, "an_unknown_image_is_refused"),
    (RefusesAnImageTooLate, "an_unknown_image_is_refused"),
    (IgnoresWishes, "what_cannot_be_had_is_refused"),
    (GivesAnotherMarket, "what_is_declared_can_be_had"),
    (CountsNoInstances, "no_more_instances_than_declared"),
    (LooksAtOneTag, "instances_are_found_by_their_tags"),
    (ListsNewestFirst, "instances_are_found_by_their_tags"),
    (ListsTheTerminated, "instances_are_found_by_their_state"),
    (LooksAtNoState, "instances_are_found_by_their_state"),
    (KnowsOnlyItsOwn, "another_object_knows_them"),
    (DescribesAnything, "an_unknown_instance_is_not_found"),
    (FailsWithoutAType, "an_unknown_instance_is_not_found"),
    (CannotTerminateTwice, "a_terminated_instance_is_gone"),
    (TerminatesInNameOnly, "a_terminated_instance_is_gone"),
    (BringsThemBack, "a_terminated_instance_is_gone"),
    (WaitsForTheBoot, "one_that_is_not_up_yet_is_terminated"),
    (LivesForEver, "a_life_ends_when_its_time_is_up"),
    (CannotStopTwice, "a_stopped_instance_can_be_started"),
    (StartsAnotherOne, "a_stopped_instance_can_be_started"),
    (LosesTagsInAStop, "a_stopped_instance_can_be_started"),
    (MustRunToBeTerminated, "a_stopped_instance_is_terminated"),
    (HangsBetweenStates, "verbs_at_once_leave_one_state"),
    (StopsWhereItCannot, "a_stop_that_cannot_be_is_refused"),
    (RefusesAndStopsAllTheSame, "a_stop_that_cannot_be_is_refused"),
)
SPECIAL = {"spot": InstanceConfig(IMAGE, market=Market.SPOT)}


@pytest.mark.parametrize(("mutation", "check"), MUTATIONS, ids=[kind.__name__ for kind, _check in MUTATIONS])
async def test_each_mutation_fails_its_own_check(mutation: type[FakeProvisioner], check: str) -> None:
    cloud = FakeCloud(ALL, delay_s=0.02)
    make: Callable[[], InstanceProvisioner] = lambda: mutation(cloud)  # noqa: E731 - a name for its type
    chosen = [each for each in PROVISIONER_CHECKS if each.name == check]
    suite = conform_provisioner(make, CONFIG, chosen, special=SPECIAL, deadline_s=DEADLINE_S)
    assert [one.verdict async for one in suite] == [Verdict.FAILED]


async def test_without_a_mutation_every_one_of_these_checks_passes() -> None:
    cloud = FakeCloud(ALL, delay_s=0.02)
    broken = {check for _kind, check in MUTATIONS} - {"a_stop_that_cannot_be_is_refused"}
    chosen = [check for check in PROVISIONER_CHECKS if check.name in broken]
    assert len(chosen) == len(broken)
    outcomes = [one async for one in conform_provisioner(cloud.provisioner, CONFIG, chosen, special=SPECIAL)]
    assert [(one.check, one.detail) for one in outcomes if one.verdict is not Verdict.PASSED] == []


async def test_a_cloud_can_be_out_of_room_and_take_machines_away() -> None:
    """For tests of fleets, whose time stands still until the test lets it go on."""
    now = [1000.0]
    cloud = FakeCloud(delay_s=60, clock=lambda: now[0])
    cloud.failures.append(Unavailable("no room for one of this type in this zone"))
    one = cloud.provisioner()
    with pytest.raises(Unavailable, match="no room"):
        await one.launch(CONFIG)
    made = await one.launch(CONFIG)
    now[0] += 61
    assert (await one.describe(made.instance_id)).state is InstanceState.RUNNING
    cloud.bring(cloud.find(made.instance_id), InstanceState.TERMINATING, "taken away")
    now[0] += 61
    told = await one.describe(made.instance_id)
    assert (told.state, told.reason) == (InstanceState.TERMINATED, "taken away")
