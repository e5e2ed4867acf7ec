"""How an attack ends."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    HELD = "held"
    ESCAPED = "escaped"  # the attack got what it must not get
    LEAKED = "leaked"  # it got nothing, but something stayed behind or became visible
    HUNG = "hung"  # no end within the deadline
    BROKEN = "broken"  # it could not be carried out, so nothing is known
    NOT_APPLICABLE = "not applicable"  # there is nothing to attack yet, or not here; the reason is told

    @property
    def is_fine(self) -> bool:
        return self in (Verdict.HELD, Verdict.NOT_APPLICABLE)


class Severity(StrEnum):
    """What it would be if it got through; docs/security/ has the words."""

    CRITICAL = "critical"
    HIGH = "high"
    MEDIUM = "medium"


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one case."""

    case: str
    attack: str
    defence: str
    severity: Severity
    runtime: str
    verdict: Verdict
    seconds: float
    detail: str = ""  # what was seen, or the reason
    failed: tuple[str, ...] = ()  # names of the rows that did not end as they must


class Escaped(Exception):
    """An attack got through."""


class Leaked(Exception):
    """Something is left, or shows, that must not."""


class NotApplicable(Exception):
    """There is nothing here that could be attacked in this way."""


def demand(fine: bool, what: str) -> None:
    """Raises Escaped when it is not so."""
    if not fine:
        raise Escaped(what)
