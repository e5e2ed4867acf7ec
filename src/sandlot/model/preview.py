"""Addresses under which ports of sessions are reached through a server."""

import re
from dataclasses import dataclass, field

from sandlot.model import limits
from sandlot.model.errors import InvalidArgument
from sandlot.model.ids import check_session_id

_KEY = re.compile("[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class PreviewRequest:
    """An address of one port, and a token that is good for it alone."""

    session_id: str
    port: int  # inside
    expires_s: float = limits.PREVIEW_EXPIRES_S  # that the token is good for, from now on
    public: bool | None = None  # from now on everybody is let in, or no longer; None: as it is
    key: str = ""  # the id of the key on whose behalf, which a server says itself: the token ends with it

    def __post_init__(self) -> None:
        check_session_id(self.session_id)
        limits.within("port", self.port, 1, 65535)
        limits.within("expires_s", self.expires_s, 1, limits.PREVIEW_EXPIRES_S_MAX)
        if self.key and not _KEY.fullmatch(self.key):
            raise InvalidArgument(f"{self.key[:40]!r} is no id of a key")


@dataclass(frozen=True, slots=True)
class Preview:
    """Whether anybody listens on the port is another question."""

    session_id: str
    port: int
    url: str  # of a host of its own, for browsers; empty where the server has no domain, or the id is too long
    path_url: str  # below the server's own address, for programs
    token: str = field(repr=False)  # for the header X-Sandlot-Preview-Token
    expires: float  # of the token
    public: bool  # nobody needs the token

    @property
    def signed_url(self) -> str:
        """For whoever has it: a browser keeps what it needs, and goes on to the address without the token."""
        url = self.url or self.path_url
        return url if self.public else f"{url}?{PREVIEW_QUERY}={self.token}"


PREVIEW_QUERY = "sandlot-token"
PREVIEW_HEADER = "X-Sandlot-Preview-Token"
