"""What the workspace of a new session begins with, with progress."""

from contextlib import suppress

from sandlot.cli import progress
from sandlot.cli.context import Context
from sandlot.cli.transfer import Tally
from sandlot.contracts import Host
from sandlot.model import SessionInfo, SessionNotFound
from sandlot.sdk.workspace import Workspace, fill


async def fill_workspace(context: Context, host: Host, session: SessionInfo, start: Workspace) -> None:
    """A session with half of what was asked for is none: when this fails, it is destroyed. Raises SandlotError."""
    if start.is_empty:
        return
    tally = Tally()
    try:
        async with progress.shown(tally, None, quiet=context.screen.as_json):
            await fill(host, session.session_id, start, tally)
    except BaseException:  # interrupted, too; then raised again
        with context.interruption.held_off(), suppress(SessionNotFound):
            await host.destroy(session.session_id)
        raise
