"""Machines: what is asked of whoever makes them, and what is told of one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from sandlot.model import limits
from sandlot.model.call import check_text
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_id


def check_instance_id(value: str) -> str:
    return check_id("instance", value)


def check_tags(tags: Mapping[str, str]) -> None:
    limits.at_most("tags", len(tags), limits.TAGS_MAX)
    for key, value in tags.items():
        check_text("a tag", key, value)
        if not key or len(key) > limits.TAG_KEY_CHARS_MAX or len(value) > limits.TAG_VALUE_CHARS_MAX:
            raise InvalidArgument(f"tag {key[:64]!r} is empty or too long", limit="tags")


class InstanceState(StrEnum):
    PENDING = "pending"  # it was asked for, and is on its way
    RUNNING = "running"  # it has its addresses; what it serves may need a moment more
    STOPPING = "stopping"
    STOPPED = "stopped"  # nothing runs, its disk is kept
    TERMINATING = "terminating"
    TERMINATED = "terminated"  # nothing is left of it but this


class Market(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"  # cheaper, and taken away when others pay more


@dataclass(frozen=True, slots=True)
class ProvisionerCapabilities:
    """What is False is refused with CapabilityNotSupported, before anything is made."""

    stop: bool = False  # instances can be stopped and started again, with their disk
    types: bool = False  # there is more than one type
    zones: bool = False
    spot: bool = False
    disk: bool = False  # its size can be chosen
    lifetime: bool = False  # an instance can be made that ends by itself, whoever else is alive
    instances_max: int = 0  # at once; 0: no bound that is known


@dataclass(frozen=True, slots=True)
class InstanceConfig:
    """One machine. What cannot be had is refused, never ignored."""

    image: str  # what it boots, by the name that the provisioner knows
    instance_type: str | None = None  # None: the provisioner's own choice
    user_data: bytes = field(default=b"", repr=False)  # given to it at its first start; secrets are among it
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # there as soon as the instance is
    disk_bytes: int | None = None
    zone: str | None = None
    market: Market = Market.ON_DEMAND
    price_max: float | None = None  # per hour, of the spot market; None: what the market takes
    lifetime_s: float | None = None  # it is terminated after so long, by itself
    request_id: str | None = None  # a repeated one gives the first answer

    def __post_init__(self) -> None:
        for name, text in (("image", self.image), ("instance_type", self.instance_type), ("zone", self.zone)):
            if text is not None:
                check_text(name, text)
                if not text or len(text) > limits.TAG_VALUE_CHARS_MAX:
                    raise InvalidArgument(f"{name} is empty or too long", next_step="give a name", limit=name)
        limits.at_most("bytes of user data", len(self.user_data), limits.USER_DATA_BYTES_MAX)
        check_tags(self.tags)
        if self.disk_bytes is not None:
            limits.within("disk_bytes", self.disk_bytes, limits.GIB, limits.BYTES_MAX)
        if self.price_max is not None:
            limits.within("price_max", self.price_max, 0.0, 1e6)
            if self.market is not Market.SPOT:
                raise InvalidArgument("price_max is for the spot market", next_step="leave it out, or ask for spot")
        if self.lifetime_s is not None:
            limits.within("lifetime_s", self.lifetime_s, 1.0, limits.SESSION_LIFETIME_S_MAX)
        if self.request_id is not None:
            check_id("request", self.request_id)
            limits.at_most("characters of a request id", len(self.request_id), limits.INSTANCE_REQUEST_CHARS_MAX)

    def wishes(self) -> frozenset[str]:
        """The names of capabilities that it needs."""
        needed = {
            "types": self.instance_type is not None,
            "zones": self.zone is not None,
            "spot": self.market is Market.SPOT,
            "disk": self.disk_bytes is not None,
            "lifetime": self.lifetime_s is not None,
        }
        return frozenset(name for name, is_needed in needed.items() if is_needed)


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as it is now. Addresses may be others after a start."""

    instance_id: str
    state: InstanceState
    image: str
    reason: str = ""  # of a state that nobody asked for
    launched: float = 0.0
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    private_address: str = ""  # a host, without a port; empty as long as it has none
    public_address: str = ""
    endpoint: str = ""  # host:port of what it serves, where that is not the same port on all instances
    instance_type: str = ""
    zone: str = ""
    market: Market = Market.ON_DEMAND
    expires: float | None = None  # when it ends by itself


_LIVE = frozenset(InstanceState) - {InstanceState.TERMINATED}


@dataclass(frozen=True, slots=True)
class InstanceFilter:
    tags: Mapping[str, str] = field(default_factory=dict[str, str])  # all must match
    states: frozenset[InstanceState] = frozenset()  # empty: all but terminated

    def __post_init__(self) -> None:
        check_tags(self.tags)

    def takes(self, instance: Instance) -> bool:
        return instance.state in (self.states or _LIVE) and self.tags.items() <= instance.tags.items()
