"""The part of the waist that is about what is used."""

from collections.abc import Sequence
from typing import Protocol

from sandlot.model import HostSample, MetricsRequest, SessionSample


class Metrics(Protocol):
    """A sample every five seconds, for one hour, as long as the engine runs; what does not change takes no room: a
    session that rests has fewer samples, and is between them as the one before says."""

    async def session_metrics(self, request: MetricsRequest) -> Sequence[SessionSample]:
        """Oldest first; the last one is of now. Raises InvalidArgument without a session, SessionNotFound."""
        ...

    async def host_metrics(self, request: MetricsRequest) -> Sequence[HostSample]:
        """Oldest first; the last one is of now. Raises InvalidArgument with a session."""
        ...

    async def all_metrics(self) -> Sequence[SessionSample]:
        """The newest sample of every session, not older than five seconds; disks are those of the last measurement."""
        ...
