"""A page of sessions, as they are told to whoever asks for a list."""

from collections.abc import Iterable

from sandlot.host.session import Session
from sandlot.model import InvalidArgument, SessionFilter, SessionPage


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
