"""Named places where an engine can be made to die, so that tests can see what the next one makes of it.

They stand between the steps of everything that has several. Outside of tests none is armed, and passing one costs a
look into an empty dictionary.
"""

from collections.abc import Callable

_armed: dict[str, Callable[[], None]] = {}

NAMES = (
    "create: volume made",
    "create: guest started",
    "create: recorded",
    "snapshot: begun",
    "snapshot: layer made",
    "snapshot: swapped",
    "snapshot: synced",
    "snapshot: recorded",
    "rollback: begun",
    "rollback: cleared",
    "rollback: layer made",
    "rollback: swapped",
    "rollback: recorded",
    "fork: some made",
    "fork: all made",
    "delete: recorded",
    "destroy: marked",
    "destroy: guest ended",
    "destroy: volume released",
    "recover: guest started",
    "recover: recorded",
    "merge: copied",
    "merge: recorded",
)


def reach(name: str) -> None:
    if _armed and (action := _armed.get(name)):
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    assert name in NAMES, name
    _armed[name] = action


def disarm() -> None:
    _armed.clear()
