"""What a session is asked to be, where its environment can be little: refused, never ignored."""

from collections.abc import Set as AbstractSet
from dataclasses import fields

from sandlot.model import CapabilityNotSupported, LimitReached, SessionSpec


def refuse_others(spec: SessionSpec, held: AbstractSet[str], who: str) -> None:
    """Raises CapabilityNotSupported for the first wish that is not among `held`."""
    plain = SessionSpec()
    for field in fields(spec):
        if field.name not in held and getattr(spec, field.name) != getattr(plain, field.name):
            raise CapabilityNotSupported(
                f"{who} cannot hold `{field.name}` of a session",
                next_step="leave it out, or use an environment that can",
                capability=field.name,
            )


def check_life(spec: SessionSpec, duration_s_max: float | None) -> None:
    """Raises LimitReached."""
    if duration_s_max is not None and spec.timeout_s > duration_s_max:
        raise LimitReached(
            f"a session lives for at most {duration_s_max:g} s here, not {spec.timeout_s:g}",
            next_step="ask for a shorter life",
            limit="max_session_duration_s",
        )
