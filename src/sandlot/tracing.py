"""Where in a trace the work of a task stands, as W3C writes it (`traceparent`).

Nothing here knows OpenTelemetry, and without anyone who makes spans a span costs a look at a name. The place goes with
the task: into the portal of the SDK, a header of the wire, and through the engine to the program that is spawned."""

import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

PLACE: ContextVar[str] = ContextVar("traceparent", default="")
_FORM = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII)
Make = Callable[[str, str, Mapping[str, str]], AbstractContextManager[str]]
"""From the name of a span, the place that it stands below and what is known of it, its own place."""

_make: Make | None = None
_UNSEEN = nullcontext()


def install(make: Make | None) -> None:
    """Spans are made from now on, in the whole process."""
    global _make
    _make = make


def is_on() -> bool:
    """Whether anyone makes spans."""
    return _make is not None


def span(name: str, **known: str) -> AbstractContextManager[None]:
    """What is done inside is below it."""
    return _UNSEEN if _make is None else _made(_make, name, known)


@contextmanager
def _made(make: Make, name: str, known: Mapping[str, str]) -> Generator[None]:
    with make(name, PLACE.get(), known) as place:
        before = PLACE.set(place)
        try:
            yield
        finally:
            PLACE.reset(before)


def checked(place: str) -> str:
    """As it came, or nothing where it is none."""
    return place if _FORM.fullmatch(place) else ""


def here() -> str:
    """Where the caller stands: also by the OpenTelemetry of his own program, when it has one."""
    known = sys.modules.get("opentelemetry.trace")
    if known is None:
        return PLACE.get()
    context: Any = known.get_current_span().get_span_context()
    if not context.is_valid:
        return PLACE.get()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
