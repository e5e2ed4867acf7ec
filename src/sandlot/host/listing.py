"""Sessions as they are told of: a page of them, and the space of one."""

import asyncio
from collections.abc import Iterable

from sandlot.contracts.storage import Storage
from sandlot.host.memories import Memories
from sandlot.host.session import Session
from sandlot.model import InvalidArgument, NotFound, SessionFilter, SessionPage, Unavailable


def list_sessions(sessions: Iterable[Session], query: SessionFilter) -> SessionPage:
    """Oldest first. Raises InvalidArgument."""
    try:
        after = int(query.after) if query.after else 0
    except ValueError:
        raise InvalidArgument(f"{query.after!r} is not a cursor that this host gave") from None
    found = [
        session
        for session in sorted(sessions, key=lambda session: session.row.serial)
        if session.row.serial > after
        and (not query.states or session.row.state in query.states)
        and query.labels.items() <= session.labels.items()
    ]
    page = found[: query.limit]
    more = len(found) > len(page)
    return SessionPage(tuple(session.info() for session in page), str(page[-1].row.serial) if more else None)


async def space_used(session: Session, storage: Storage, memories: Memories) -> int | None:
    """On disk, what sleeps included. None: it cannot be told."""
    try:
        used = await storage.usage(session.volume.state) if session.volume else None
    except (NotFound, Unavailable):
        return None
    if used is not None and session.row.memory:
        used += await asyncio.to_thread(memories.used, session.row.memory)
    return used
