"""What a key asks for and gives on to others: it ends with the key."""

import time
from dataclasses import replace
from typing import Any, cast

from sandlot.contracts import Host
from sandlot.model import KeyInfo, Preview, PreviewRequest


class _OnBehalf:
    """A host as whoever has the key asks it."""

    def __init__(self, info: KeyInfo, host: Host) -> None:
        self._info = info
        self._host = host

    def __getattr__(self, verb: str) -> Any:
        """Looked up once: what is asked often costs nothing more."""
        found = getattr(self._host, verb)
        setattr(self, verb, found)
        return found

    async def preview_port(self, request: PreviewRequest) -> Preview:
        """Whatever the request says of a key."""
        info, expires_s = self._info, request.expires_s
        if info.expires is not None:
            expires_s = max(1.0, min(expires_s, info.expires - time.time()))
        return await self._host.preview_port(replace(request, key=info.key_id, expires_s=expires_s))


def on_behalf_of(info: KeyInfo, host: Host) -> Host:
    return cast("Host", _OnBehalf(info, host))
