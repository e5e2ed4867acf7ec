"""That a host in memory makes no sessions because someone said so."""

import time

from sandlot.model import CordonRequest, HealthReason, HealthStatus, HostUnhealthy


class FakeCordon:
    def __init__(self) -> None:
        self._reason = ""
        self.since = 0.0  # 0: there is none

    def put(self, request: CordonRequest) -> None:
        self._reason, self.since = request.reason, self.since or time.time()

    def lift(self) -> None:
        self.since = 0.0

    @property
    def status(self) -> HealthStatus:
        return HealthStatus.UNHEALTHY if self.since else HealthStatus.HEALTHY

    def reasons(self) -> tuple[HealthReason, ...]:
        told = f"it is cordoned: {self._reason}"
        return (HealthReason("cordon", self.status, 1.0, 1.0, told, "uncordon it"),) if self.since else ()

    def check(self) -> None:
        """Raises HostUnhealthy."""
        for reason in self.reasons():
            told = f"this host makes no sessions now: {reason.message}"
            raise HostUnhealthy(told, next_step=reason.next_step, reason=reason.what)
