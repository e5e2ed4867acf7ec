"""On whose behalf something is done: set where requests come in, read where they are done."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

LOCAL: Final = "local"  # the program itself, or whoever may open a socket of the data directory

WHO: ContextVar[str] = ContextVar("who", default=LOCAL)


@contextmanager
def as_whom(word: str) -> Generator[None]:
    before = WHO.set(word)
    try:
        yield
    finally:
        WHO.reset(before)
