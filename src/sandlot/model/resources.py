"""What a session, or one call in it, may use."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument

# Below the least a program could not even start; above the most no kernel takes the number.
_BOUNDS: Mapping[str, tuple[float, float]] = {
    "cpus": (limits.CPUS_MIN, limits.CPUS_MAX),
    "memory_bytes": (limits.MEMORY_BYTES_MIN, limits.BYTES_MAX),
    "disk_bytes": (limits.MIB, limits.BYTES_MAX),
    "pids": (1, limits.PIDS_MAX),
    "open_files": (limits.OPEN_FILES_MIN, limits.OPEN_FILES_MAX),
    "swap_bytes": (0, limits.BYTES_MAX),
    "io_weight": (1, limits.IO_WEIGHT_MAX),
}

OF_CALLS = ("cpus", "memory_bytes", "pids", "open_files")


@dataclass(frozen=True, slots=True)
class Resources:
    """None means that no limit was asked for."""

    cpus: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    open_files: int | None = None  # of one process
    swap_bytes: int | None = None  # beside the memory; None: none where memory is limited
    io_weight: int | None = None  # a share of a busy disk; who asks for nothing has 100

    def __post_init__(self) -> None:
        for name in self.asked():
            value = getattr(self, name)
            if not math.isfinite(value) or (name != "swap_bytes" and value <= 0):
                raise InvalidArgument(f"{name} must be a number greater than zero, not {value}", limit=name)
            limits.within(name, value, *_BOUNDS[name])
        if self.swap_bytes is not None and self.memory_bytes is None:
            raise InvalidArgument(
                "swap_bytes is counted beside memory_bytes", next_step="give memory_bytes too", limit="swap_bytes"
            )

    def asked(self) -> tuple[str, ...]:
        """The names of the limits that were asked for."""
        return tuple(name for name in _BOUNDS if getattr(self, name) is not None)

    def without(self, *names: str) -> "Resources":
        return replace(self, **dict.fromkeys(names))

    def over(self, below: "Resources") -> "Resources":
        """These, and where nothing is asked for, those."""
        return replace(below, **{name: getattr(self, name) for name in self.asked()})

    def check_call(self, session: "Resources") -> None:
        """As limits of one call in a session that has those. Raises InvalidArgument."""
        for name in self.asked():
            if name not in OF_CALLS:
                raise InvalidArgument(f"a call cannot have a {name} of its own", limit=name)
            most = getattr(session, name)
            if most is not None and getattr(self, name) > most:
                raise InvalidArgument(
                    f"{name} of the call is {getattr(self, name):g}, and its session has {most:g}",
                    next_step="ask for less, or make a session with more",
                    limit=name,
                )

    def to_data(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.asked()}


NO_LIMITS = Resources()
