"""Emptying a host: what became of its sessions."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DrainLeft:
    """A session that still runs on the host."""

    session_id: str
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class Drained:
    """How far it is, or how it ended."""

    sessions: int  # that were there when it began
    ended: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()  # those that have failed too: nothing runs in them
    moved: tuple[str, ...] = ()
    left: tuple[DrainLeft, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing runs there any more."""
        return not self.left
