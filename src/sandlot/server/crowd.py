"""All who are connected, and who of them goes when there are too many."""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final, Protocol

from uvicorn.server import ServerState

_SHARE: Final = 4  # of the places, one part in so many is for those who have asked nothing yet
_REPRIEVES: Final = 64  # who goes on is passed over, up to so many at a time


@dataclass(slots=True)
class Bounds:
    """Of all connections; those who come after a change have the new ones."""

    connections_max: int
    header_timeout_s: float
    keep_alive_s: float


class Waiter(Protocol):
    """Whoever lets us wait."""

    def goes_on(self) -> bool:
        """Whether much came of it since it began to wait, or since this was asked."""
        ...

    def drop(self) -> None: ...


@dataclass(slots=True, eq=False)
class Crowd:
    """All connections of a server. Those who let us wait stand in two lines, in the order in which they began to."""

    bounds: Bounds
    state: ServerState = field(default_factory=ServerState)
    greeting: int = 0  # accepted, not yet connections: TLS says hello first
    awaited: "OrderedDict[Waiter, None]" = field(default_factory=OrderedDict[Waiter, None])  # a request, or its rest
    resting: "OrderedDict[Waiter, None]" = field(default_factory=OrderedDict[Waiter, None])  # between two requests
    refused: int = 0  # turned away because there were too many
    late: int = 0  # closed because their clients did not go on
    broken: int = 0  # closed because what came was not HTTP, or too much

    @property
    def count(self) -> int:
        return len(self.state.connections) + self.greeting

    @property
    def waiting(self) -> int:
        return len(self.awaited) + len(self.resting)

    def await_(self, one: Waiter) -> None:
        self.resting.pop(one, None)
        self.awaited[one] = None

    def let_rest(self, one: Waiter) -> None:
        self.awaited.pop(one, None)
        self.resting[one] = None

    def leave(self, one: Waiter) -> None:
        """It is at work, or gone."""
        self.awaited.pop(one, None)
        self.resting.pop(one, None)

    def make_room(self) -> bool:
        """For one more: whoever is awaited for longest goes, and has had the time in which all others came. Only where
        few are awaited, whoever has rested for longest. False: all are at work."""
        lines = [self.awaited, self.resting]
        if len(self.awaited) * _SHARE <= self.bounds.connections_max:
            lines.reverse()
        for line in lines:
            for _ in range(min(len(line), _REPRIEVES)):
                one, _ = line.popitem(last=False)
                if not one.goes_on():
                    self.late += 1
                    one.drop()
                    return True
                line[one] = None
        return False
