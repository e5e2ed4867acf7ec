"""The disk limit of a session, where the engine meets it: a root is assembled on a volume that may be full, and a call
fails because it is."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sandlot.contracts.storage import Storage
from sandlot.host.choices import together
from sandlot.host.reasons import LimitWatch
from sandlot.host.session import Session
from sandlot.host.storage.lacks import COUNTS_HISTORY


@asynccontextmanager
async def room(storage: Storage, session: Session) -> AsyncGenerator[None]:
    """At its limit an overlay would be mounted read-only, without an error."""
    if session.resources.disk_bytes is None or session.volume is None:
        yield
        return
    async with storage.roomy(session.volume):
        yield


def watch_limits(session: Session, storage: Storage) -> None:
    def is_full() -> bool:
        return session.volume is not None and storage.is_full(session.volume)

    session.limit_watch = LimitWatch(lambda: session.find_group().hits(), session.resources, is_full)
    session.history_counts = session.resources.disk_bytes is not None and COUNTS_HISTORY in storage.lacks
    session.capabilities = together(session.runtime_capabilities, storage)
