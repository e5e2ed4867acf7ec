"""Whoever makes machines."""

from collections.abc import Sequence
from typing import Protocol

from sandlot.model import Instance, InstanceConfig, InstanceFilter, ProvisionerCapabilities


class InstanceProvisioner(Protocol):
    """Instances outlive the provisioner: another object on the same provider finds each of them, and knows as much of
    it as the one that made it.

    A verb may return before the instance has come into its state: who wants that looks again. Every verb raises
    InvalidArgument, DeadlineExceeded, and Unavailable when the provider does not answer; those that take an instance
    raise NotFound when there is none. A false capability raises CapabilityNotSupported, and nothing has changed.
    """

    async def launch(self, config: InstanceConfig) -> Instance:
        """Begin one; it may still be `pending`. From the moment that it exists it has its tags, so that one whose maker
        died can be found by them. A request id that came before gives the instance that was made for it, as long as it
        is there, also while the first request is under way.

        Raises NotFound for an image that nobody knows, Conflict when the request id is that of another config,
        LimitReached when there are too many, Unavailable when there is no room for one of this type in this zone now.
        Then there is none.
        """
        ...

    async def terminate(self, instance_id: str) -> None:
        """End it and remove all that it had, its disk too. Again, and of one that is gone, does nothing. Then it is
        `terminating`, `terminated` or not found."""
        ...

    async def stop(self, instance_id: str) -> Instance:
        """Nothing runs on it when it is `stopped`, and its disk is kept. Of one that is stopped or stopping does
        nothing. Raises InvalidState when it is being terminated."""
        ...

    async def start(self, instance_id: str) -> Instance:
        """It boots from its disk, as the one that it was; its addresses may be others. Of one that runs or is pending
        does nothing. Raises InvalidState when it is being terminated, and while it stops where that must end first."""
        ...

    async def describe(self, instance_id: str) -> Instance:
        """As it is now, whoever changed it, also from outside."""
        ...

    async def list(self, query: InstanceFilter) -> Sequence[Instance]:
        """All that match, oldest first, those that others made with the same provider included."""
        ...

    async def capabilities(self) -> ProvisionerCapabilities: ...
