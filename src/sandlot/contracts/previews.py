"""Ports of sessions as a server shows them: the verb of the waist, and what the engine needs for it."""

from typing import Protocol

from sandlot.model import Preview, PreviewRequest, SessionInfo


class Previews(Protocol):
    async def preview_port(self, request: PreviewRequest) -> Preview:
        """Where a port is reached through the server of this data directory, with a new token; older ones stay good
        until their time is up. Nothing listens there because of it. Whether it is public is durable when this returns,
        and ends with the session.

        Raises InvalidArgument, SessionNotFound, SessionDestroying, InvalidState when no server has served the data
        directory, PermissionDenied when it is to be public and the server lets nobody in without a token, LimitReached,
        Unavailable.
        """
        ...


class PreviewBook(Protocol):
    """Given to an engine: the tokens and the public ports of a data directory, which its server reads too."""

    async def issue(self, session: SessionInfo, request: PreviewRequest) -> Preview:
        """Raises as `Previews.preview_port` says of what is not the session's."""
        ...
