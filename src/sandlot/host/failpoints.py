"""Named places where an engine can be made to die or to wait, so that tests can see what the next one makes of it, or
what comes in between.

They stand between the steps of everything that has several. Outside of tests none is armed, and passing one costs a
look into an empty dictionary.
"""

from collections.abc import Awaitable, Callable, Generator

_armed: dict[str, "Action"] = {}
Action = Callable[[], Awaitable[None] | None]

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
    "pause: freezing",
    "pause: recorded",
    "resume: thawed",
    "resume: recorded",
    "checkpoint: begun",
    "checkpoint: written",
    "checkpoint: recorded",
    "restore: replaced",
    "restore: started",
    "restore: recorded",
    "destroy: marked",
    "destroy: guest ended",
    "destroy: volume released",
    "recover: guest started",
    "recover: recorded",
    "move: begun",
    "move: volume made",
    "move: point made",
    "move: synced",
    "move: guest started",
    "move: recorded",
    "move: guest ended",
    "import: point made",
    "import: filled",
    "import: recorded",
    "template: unpacked",
    "template: synced",
    "template: in place",
    "template: named",
    "template: set aside",
    "volume: filled",
    "volume: in place",
    "volume: set aside",
    "file: has a hidden name",
    "file: half copied",
    "copy: has a hidden name",
    "upload: has a hidden name",
    "merge: made",
    "merge: synced",
    "merge: offered",
)


class _Nothing:
    """Awaiting it costs nothing and gives way to nobody."""

    def __await__(self) -> Generator[None]:
        yield from ()


_NOTHING = _Nothing()


def reach(name: str) -> Awaitable[None]:
    """Awaited, it lasts as long as the test wants; who does not await it only gives the test a moment to strike."""
    if _armed and (action := _armed.get(name)):
        return action() or _NOTHING
    return _NOTHING


def arm(name: str, action: Action) -> None:
    assert name in NAMES, name
    _armed[name] = action


def disarm() -> None:
    _armed.clear()
