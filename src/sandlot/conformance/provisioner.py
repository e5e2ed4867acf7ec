"""What every provisioner promises to whoever builds a fleet on it. Nothing is left of the checks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

from sandlot.conformance.checks import Broken, Check, Outcome, equal, expect, judge
from sandlot.conformance.control_stage import dial
from sandlot.conformance.environment_stage import refuses
from sandlot.contracts import InstanceProvisioner
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    InvalidArgument,
    InvalidState,
    LimitReached,
    Market,
    NotFound,
    ProvisionerCapabilities,
    SandlotError,
    check_address,
    limits,
    new_session_id,
)

FreshProvisioner = Callable[[], InstanceProvisioner]  # another object on the same provider
DEADLINE_S = 120.0
_POLL_S = 0.02
_COUNTED_MAX = 8  # a bound of instances up to which it is tried out
_AT_ONCE = 4
_LIFE_S = 1.0
_NOWHERE = "i-0123456789abcdef0"
_TAG = "sandlot-suite"
_ENDED = (InstanceState.TERMINATING, InstanceState.TERMINATED)
_ON = (InstanceState.PENDING, InstanceState.RUNNING)


@dataclass(slots=True)
class ProvisionerStage:
    provisioner: InstanceProvisioner
    fresh: FreshProvisioner
    config: InstanceConfig  # that works, with a tag that nobody else has
    able: ProvisionerCapabilities
    special: Mapping[str, InstanceConfig]
    made: list[str] = field(default_factory=list[str])

    async def launch(self, provisioner: InstanceProvisioner | None = None, /, **changes: Any) -> Instance:
        """One more; it goes with the stage."""
        tags = {**self.config.tags, **changes.pop("tags", {})}
        made = await (provisioner or self.provisioner).launch(replace(self.config, tags=tags, **changes))
        self.made.append(made.instance_id)
        return made

    async def running(self, **changes: Any) -> Instance:
        return await self.wait((await self.launch(**changes)).instance_id, InstanceState.RUNNING)

    async def wait(self, instance_id: str, *states: InstanceState) -> Instance:
        """Until it is in one of these. The check's own deadline ends the waiting."""
        while (now := await self.provisioner.describe(instance_id)).state not in states:
            if now.state in (*_ENDED, InstanceState.STOPPED):
                raise Broken(f"it is {now.state} instead of {states[0]}: {now.reason}")
            await asyncio.sleep(_POLL_S)
        return now

    async def ours(self, *states: InstanceState, **tags: str) -> list[str]:
        query = InstanceFilter({**self.config.tags, **tags}, frozenset(states))
        return [one.instance_id for one in await self.provisioner.list(query)]

    async def rest(self, instance_id: str) -> Instance:
        """When it is not on its way from one state to another any more."""
        return await self.wait(instance_id, InstanceState.RUNNING, InstanceState.STOPPED)

    async def wait_gone(self, instance_id: str) -> None:
        """Until it is neither told nor found as one that is there."""
        while not await self.is_gone(instance_id) or instance_id in await self.ours():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_S)

    async def is_gone(self, instance_id: str) -> bool:
        try:
            return (await self.provisioner.describe(instance_id)).state in _ENDED
        except NotFound:
            return True


# ---- launch ------------------------------------------------------------------------------------------------------


async def a_launched_instance_comes_to_run(stage: ProvisionerStage) -> None:
    """It has an id and its tags at once, and addresses when it runs; where it says that it serves, it does."""
    made = await stage.launch(tags={"role": "node"})
    expect(made.state in _ON, made)
    equal((made.image, dict(made.tags)), (stage.config.image, {**stage.config.tags, "role": "node"}))
    now = await stage.wait(made.instance_id, InstanceState.RUNNING)
    equal((now.instance_id, now.image, dict(now.tags)), (made.instance_id, made.image, dict(made.tags)))
    expect(bool(now.private_address or now.public_address or now.endpoint), "it runs and has no address")
    check_address(now.endpoint)
    expect("/" not in now.private_address + now.public_address, "an address is a path")
    if now.endpoint:
        await _reached(now.endpoint)


async def instances_launched_at_once_are_apart(stage: ProvisionerStage) -> None:
    """Each has an id and an address of its own, and all of them come to run."""
    made = await asyncio.gather(*(stage.launch() for _ in range(_AT_ONCE)))
    found = [await stage.wait(one.instance_id, InstanceState.RUNNING) for one in made]
    for told in ([one.instance_id for one in found], [(one.private_address, one.endpoint) for one in found]):
        equal(len(set(told)), _AT_ONCE)
    equal(sorted(await stage.ours()), sorted(one.instance_id for one in made))


async def a_request_that_is_repeated_makes_one_instance(stage: ProvisionerStage) -> None:
    """A request id that came before gives the instance that was made for it, also when both come at once and from two
    objects."""
    request_id = new_session_id()
    twice = await asyncio.gather(
        stage.launch(request_id=request_id), stage.launch(stage.fresh(), request_id=request_id)
    )
    later = await stage.launch(request_id=request_id)
    equal({one.instance_id for one in twice}, {later.instance_id})
    equal(await stage.ours(), [later.instance_id])
    await stage.wait(later.instance_id, InstanceState.RUNNING)


async def a_request_for_something_else_is_refused(stage: ProvisionerStage) -> None:
    """A request id belongs to its config."""
    request_id = new_session_id()
    made = await stage.launch(request_id=request_id)
    await refuses(stage.launch(request_id=request_id, tags={"other": "yes"}), Conflict)
    equal(await stage.ours(), [made.instance_id])


async def an_unknown_image_is_refused(stage: ProvisionerStage) -> None:
    """Nothing is made of an image that nobody knows."""
    await refuses(stage.launch(image="no-such-image"), NotFound, InvalidArgument)
    equal(await stage.ours(), [])


async def what_cannot_be_had_is_refused(stage: ProvisionerStage) -> None:
    """A wish that is no declared capability is refused, and nothing is made."""
    wishes: Mapping[str, dict[str, Any]] = {
        "types": {"instance_type": "large"},
        "zones": {"zone": "north"},
        "spot": {"market": Market.SPOT},
        "disk": {"disk_bytes": 10 * limits.GIB},
        "lifetime": {"lifetime_s": 3600.0},
    }
    for name, wish in wishes.items():
        if not getattr(stage.able, name):
            await refuses(stage.launch(**wish), CapabilityNotSupported)
    equal(await stage.ours(), [])


async def what_is_declared_can_be_had(stage: ProvisionerStage) -> None:
    """Each wish that was given to the suite is granted, and told."""
    for name, config in stage.special.items():
        expect(getattr(stage.able, name), f"{name} is given to the suite and not declared")
        tags = {**config.tags, **stage.config.tags}
        made = await stage.provisioner.launch(replace(config, tags=tags))
        stage.made.append(made.instance_id)
        wanted = (config.instance_type or made.instance_type, config.zone or made.zone, config.market)
        equal((made.instance_type, made.zone, made.market), wanted)
        if config.lifetime_s is not None:
            expect(made.expires is not None and made.expires <= made.launched + config.lifetime_s + 60, made)


async def no_more_instances_than_declared(stage: ProvisionerStage) -> None:
    """One more than `instances_max` is refused, and there is room again when one has ended. A bound that is high is not
    tried out."""
    most = stage.able.instances_max
    if not 0 < most <= _COUNTED_MAX:
        return
    made = [await stage.launch() for _ in range(most)]
    await refuses(stage.launch(), LimitReached)
    equal(len(await stage.ours()), most)
    await stage.provisioner.terminate(made[0].instance_id)
    await stage.wait_gone(made[0].instance_id)
    await stage.launch()


# ---- which there are ---------------------------------------------------------------------------------------------


async def instances_are_found_by_their_tags(stage: ProvisionerStage) -> None:
    """All tags of a filter must match, with their values; those that match come oldest first."""
    first, second = await stage.launch(tags={"role": "a"}), await stage.launch(tags={"role": "b"})
    equal(await stage.ours(), [first.instance_id, second.instance_id])
    equal(await stage.ours(role="b"), [second.instance_id])
    equal(await stage.ours(role="c"), [])
    equal(await stage.ours(role="a", other="x"), [])


async def instances_are_found_by_their_state(stage: ProvisionerStage) -> None:
    """A filter that names states gives those alone; one that names none gives all but those that are terminated."""
    made = await stage.running()
    equal(await stage.ours(InstanceState.RUNNING), [made.instance_id])
    equal(await stage.ours(InstanceState.STOPPED, InstanceState.STOPPING), [])
    await stage.provisioner.terminate(made.instance_id)
    await stage.wait_gone(made.instance_id)
    equal(await stage.ours(InstanceState.RUNNING), [])


async def another_object_knows_them(stage: ProvisionerStage) -> None:
    """An instance is told, found and terminated by whoever has its id or its tags."""
    made, other = await stage.running(), stage.fresh()
    told = await other.describe(made.instance_id)
    equal(told, made)
    equal(list(await other.list(InstanceFilter(stage.config.tags))), [made])
    await other.terminate(made.instance_id)
    expect(await stage.is_gone(made.instance_id), "it was terminated, and is told as if it were not")


async def an_unknown_instance_is_not_found(stage: ProvisionerStage) -> None:
    """Every verb says so; only to terminate it does nothing. What is no id at all is refused."""
    one = stage.provisioner
    for verb in (one.describe, one.stop, one.start):
        await refuses(verb(_NOWHERE), NotFound, CapabilityNotSupported)
    await one.terminate(_NOWHERE)
    for wrong in ("../../etc", "", "a:b"):
        await refuses(one.describe(wrong), InvalidArgument, NotFound)
        await refuses(one.terminate(wrong), InvalidArgument, NotFound)


# ---- the end -----------------------------------------------------------------------------------------------------


async def a_terminated_instance_is_gone(stage: ProvisionerStage) -> None:
    """It is told as terminating or terminated, or not at all; terminating it again does nothing, and nothing brings it
    back. Nobody answers where it served."""
    made = await stage.running()
    for _ in range(2):
        await stage.provisioner.terminate(made.instance_id)
        expect(await stage.is_gone(made.instance_id), "it is told as if it were there")
    await refuses(stage.provisioner.start(made.instance_id), InvalidState, NotFound, CapabilityNotSupported)
    expect(await stage.is_gone(made.instance_id), "it came back")
    await stage.wait_gone(made.instance_id)
    await _unreached(made.endpoint)


async def one_that_is_not_up_yet_is_terminated(stage: ProvisionerStage) -> None:
    """Whoever changes his mind need not wait, and may say so more than once at a time."""
    made = await stage.launch()
    await asyncio.gather(*(stage.provisioner.terminate(made.instance_id) for _ in range(2)))
    expect(await stage.is_gone(made.instance_id), "it is told as if it were there")
    await stage.wait_gone(made.instance_id)


async def a_life_ends_when_its_time_is_up(stage: ProvisionerStage) -> None:
    """An instance with a lifetime ends by itself."""
    made = await stage.launch(lifetime_s=_LIFE_S)
    await stage.wait_gone(made.instance_id)


# ---- stop and start ----------------------------------------------------------------------------------------------


async def a_stopped_instance_can_be_started(stage: ProvisionerStage) -> None:
    """It keeps its id and its tags; each verb can be said again; nobody answers while it is stopped."""
    made, one = await stage.running(), stage.provisioner
    for _ in range(2):
        told = await one.stop(made.instance_id)
        expect(told.state in (InstanceState.STOPPING, InstanceState.STOPPED), told)
    stopped = await stage.wait(made.instance_id, InstanceState.STOPPED)
    equal((stopped.instance_id, dict(stopped.tags)), (made.instance_id, dict(made.tags)))
    equal(await stage.ours(InstanceState.STOPPED), [made.instance_id])
    await _unreached(made.endpoint)
    for _ in range(2):
        told = await one.start(made.instance_id)
        expect(told.state in _ON, told)
    again = await stage.wait(made.instance_id, InstanceState.RUNNING)
    equal((again.image, dict(again.tags)), (made.image, dict(made.tags)))
    expect(bool(again.private_address or again.public_address or again.endpoint), "it has no address any more")
    if again.endpoint:
        await _reached(again.endpoint)


async def a_stopped_instance_is_terminated(stage: ProvisionerStage) -> None:
    """It need not be started for that."""
    made = await stage.running()
    await stage.provisioner.stop(made.instance_id)
    await stage.provisioner.terminate(made.instance_id)
    expect(await stage.is_gone(made.instance_id), "it is told as if it were there")


async def verbs_at_once_leave_one_state(stage: ProvisionerStage) -> None:
    """Stop and start at the same time, from two objects: it comes to rest in one of the two, and goes on from there."""
    made, other = await stage.running(), stage.fresh()
    tried = await asyncio.gather(
        stage.provisioner.stop(made.instance_id), other.start(made.instance_id), return_exceptions=True
    )
    wrong = [one for one in tried if isinstance(one, BaseException) and not isinstance(one, InvalidState)]
    equal(wrong, [])
    await stage.rest(made.instance_id)
    await stage.provisioner.stop(made.instance_id)
    await stage.wait(made.instance_id, InstanceState.STOPPED)
    await other.start(made.instance_id)
    await stage.wait(made.instance_id, InstanceState.RUNNING)


async def a_stop_that_cannot_be_is_refused(stage: ProvisionerStage) -> None:
    """Where instances cannot be stopped it is refused, and they run on."""
    made = await stage.running()
    await refuses(stage.provisioner.stop(made.instance_id), CapabilityNotSupported)
    equal((await stage.provisioner.describe(made.instance_id)).state, InstanceState.RUNNING)


async def _reached(endpoint: str) -> None:
    """Someone takes the connection, whatever he says."""
    with suppress(TimeoutError):
        async with asyncio.timeout(0.5):
            await dial(endpoint)


async def _unreached(endpoint: str) -> None:
    if not endpoint:
        return
    try:
        await _reached(endpoint)
    except OSError:
        return
    raise Broken(f"{endpoint} still answers")


_STOPS = ("stop",)
PROVISIONER_CHECKS: tuple[Check[ProvisionerStage], ...] = (
    Check(a_launched_instance_comes_to_run),
    Check(instances_launched_at_once_are_apart),
    Check(a_request_that_is_repeated_makes_one_instance),
    Check(a_request_for_something_else_is_refused),
    Check(an_unknown_image_is_refused),
    Check(what_cannot_be_had_is_refused),
    Check(what_is_declared_can_be_had),
    Check(no_more_instances_than_declared),
    Check(instances_are_found_by_their_tags),
    Check(instances_are_found_by_their_state),
    Check(another_object_knows_them),
    Check(an_unknown_instance_is_not_found),
    Check(a_terminated_instance_is_gone),
    Check(one_that_is_not_up_yet_is_terminated),
    Check(a_life_ends_when_its_time_is_up, ("lifetime",)),
    Check(a_stopped_instance_can_be_started, _STOPS),
    Check(a_stopped_instance_is_terminated, _STOPS),
    Check(verbs_at_once_leave_one_state, _STOPS),
    Check(a_stop_that_cannot_be_is_refused, unless="stop"),
)


async def conform_provisioner(
    fresh: FreshProvisioner,
    config: InstanceConfig,
    checks: Sequence[Check[ProvisionerStage]] = PROVISIONER_CHECKS,
    deviations: Mapping[str, str] | None = None,
    *,
    special: Mapping[str, InstanceConfig] | None = None,
    deadline_s: float = DEADLINE_S,
) -> AsyncIterator[Outcome]:
    """Each check with an object of its own. `fresh` makes another object on one and the same provider; `config`: what
    works there; `special`: by the name of a capability, a config that makes use of it."""
    try:
        async with asyncio.timeout(deadline_s):
            able = await fresh().capabilities()
    except (SandlotError, TimeoutError) as error:
        raise Broken(f"it does not tell what it can do: {error!r}") from error

    async def attempt(check: Check[ProvisionerStage]) -> None:
        tagged = replace(config, tags={**config.tags, _TAG: new_session_id()})
        stage = ProvisionerStage(fresh(), fresh, tagged, able, special or {})
        try:
            async with asyncio.timeout(deadline_s):
                await check.run(stage)
        except TimeoutError as error:
            if isinstance(error, SandlotError):
                raise
            raise Broken(f"it took longer than {deadline_s:g} s") from error
        finally:
            await _clean_up(fresh(), tagged, stage.made, deadline_s)

    have = frozenset(one.name for one in fields(able) if one.name != "instances_max" and getattr(able, one.name))
    async for outcome in judge(checks, deviations or {}, have, attempt):
        yield outcome


async def _clean_up(one: InstanceProvisioner, config: InstanceConfig, made: Sequence[str], deadline_s: float) -> None:
    """Also what a check was not told of."""
    with suppress(SandlotError, TimeoutError):
        async with asyncio.timeout(deadline_s):
            listed = [found.instance_id for found in await one.list(InstanceFilter(config.tags))]
            for terminate in (partial(one.terminate, each) for each in dict.fromkeys((*made, *listed))):
                with suppress(SandlotError):
                    await terminate()
            while await one.list(InstanceFilter(config.tags)):  # noqa: ASYNC110 - they may take part of a bound
                await asyncio.sleep(_POLL_S)
