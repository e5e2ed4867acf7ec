"""Machines in memory, for tests of fleets. Time is the caller's, if he wants."""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from sandlot.contracts import InstanceProvisioner
from sandlot.model import (
    CapabilityNotSupported,
    Conflict,
    Instance,
    InstanceConfig,
    InstanceFilter,
    InstanceState,
    InvalidState,
    LimitReached,
    NotFound,
    ProvisionerCapabilities,
    SandlotError,
    check_instance_id,
)

IMAGE = "memory"
_ALL = ProvisionerCapabilities(stop=True, types=True, zones=True, spot=True, disk=True, lifetime=True)
# What becomes of a state by itself, when its time is up.
_FOLLOWING = {
    InstanceState.PENDING: InstanceState.RUNNING,
    InstanceState.STOPPING: InstanceState.STOPPED,
    InstanceState.TERMINATING: InstanceState.TERMINATED,
}


@dataclass(eq=False)
class FakeInstance:
    told: Instance
    config: InstanceConfig
    since: float
    serial: int


class FakeCloud:
    """Whoever has many machines; provisioners are made of it. `delay_s`: how long a change of state takes."""

    def __init__(
        self,
        capabilities: ProvisionerCapabilities = _ALL,
        *,
        delay_s: float = 0.05,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.capabilities = capabilities
        self.instances: dict[str, FakeInstance] = {}
        self.failures: list[SandlotError] = []  # of the next launches, one each
        self._delay_s = delay_s
        self._clock = clock
        self._numbers = itertools.count(1)

    def provisioner(self) -> InstanceProvisioner:
        return FakeProvisioner(self)

    def make(self, config: InstanceConfig) -> FakeInstance:
        for known in self.instances.values():
            if config.request_id is not None and known.config.request_id == config.request_id:
                if known.config != config:
                    raise Conflict(f"request {config.request_id} was for another config")
                return self.look(known)
        if self.failures:
            raise self.failures.pop(0)
        if config.image != IMAGE:
            raise NotFound(f"there is no image {config.image}", next_step=f"use {IMAGE}")
        for name in sorted(config.wishes()):
            if not getattr(self.capabilities, name):
                raise CapabilityNotSupported(f"there is no {name} here", capability=name)
        most = self.capabilities.instances_max
        if most and sum(self.look(one).told.state is not InstanceState.TERMINATED for one in self._all()) >= most:
            raise LimitReached(f"there are {most} instances already", limit="instances_max")
        number, now = next(self._numbers), self._clock()
        told = Instance(
            instance_id=f"i-{number:08x}",
            state=InstanceState.PENDING,
            image=config.image,
            launched=now,
            tags=dict(config.tags),
            instance_type=config.instance_type or "small",
            zone=config.zone or "a",
            market=config.market,
            expires=None if config.lifetime_s is None else now + config.lifetime_s,
        )
        made = self.instances[told.instance_id] = FakeInstance(told, config, now, number)
        return made

    def find(self, instance_id: str) -> FakeInstance:
        found = self.instances.get(check_instance_id(instance_id))
        if found is None:
            raise NotFound(f"there is no instance {instance_id}", instance_id=instance_id)
        return self.look(found)

    def look(self, one: FakeInstance) -> FakeInstance:
        """What has become of it meanwhile."""
        now = self._clock()
        following = _FOLLOWING.get(one.told.state)
        if following is not None and now >= one.since + self._delay_s:
            self.bring(one, following, one.told.reason)
        if one.told.expires is not None and now >= one.told.expires and one.told.state in _WAYS["terminate"]:
            self.bring(one, InstanceState.TERMINATING, "its time is up")
        return one

    def bring(self, one: FakeInstance, state: InstanceState, reason: str = "") -> None:
        """Into a state, whoever wants that: a test may take a machine away."""
        address = f"10.0.0.{next(self._numbers) % 250 + 1}" if state is InstanceState.RUNNING else ""
        one.told = replace(one.told, state=state, reason=reason, private_address=address)
        one.since = self._clock()

    def _all(self) -> list[FakeInstance]:
        return list(self.instances.values())

    def found(self, query: InstanceFilter) -> list[Instance]:
        ours = sorted(map(self.look, self._all()), key=lambda one: one.serial)
        return [one.told for one in ours if query.takes(one.told)]


_WAYS = {
    "stop": (InstanceState.PENDING, InstanceState.RUNNING),
    "start": (InstanceState.STOPPED, InstanceState.STOPPING),
    "terminate": (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPING, InstanceState.STOPPED),
}


class FakeProvisioner:
    """It keeps nothing itself."""

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud

    async def launch(self, config: InstanceConfig) -> Instance:
        return self.cloud.make(config).told

    async def terminate(self, instance_id: str) -> None:
        with suppress(NotFound):
            one = self.cloud.find(instance_id)
            if one.told.state in _WAYS["terminate"]:
                self.cloud.bring(one, InstanceState.TERMINATING)

    async def stop(self, instance_id: str) -> Instance:
        return self._bring(instance_id, "stop", InstanceState.STOPPING)

    async def start(self, instance_id: str) -> Instance:
        return self._bring(instance_id, "start", InstanceState.PENDING)

    async def describe(self, instance_id: str) -> Instance:
        return self.cloud.find(instance_id).told

    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        return self.cloud.found(query)

    async def capabilities(self) -> ProvisionerCapabilities:
        return self.cloud.capabilities

    def _bring(self, instance_id: str, verb: str, state: InstanceState) -> Instance:
        one = self.cloud.find(instance_id)
        if not self.cloud.capabilities.stop:
            raise CapabilityNotSupported("these machines are not stopped", capability="stop")
        if one.told.state in (InstanceState.TERMINATING, InstanceState.TERMINATED):
            raise InvalidState(f"instance {instance_id} is {one.told.state}", next_step="launch another one")
        if one.told.state in _WAYS[verb]:
            self.cloud.bring(one, state)
        return one.told
