"""Who may ask: a page in someone's browser may not.

A page can make a browser send requests to this machine. Its own name then stands in `Host` when it had that name lead
here (DNS rebinding), and in `Origin` when it did not. Programs that are no browsers send no `Origin`."""

import ipaddress
import re
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\[\]:@/\s]{1,253})(?::([0-9]{1,5}))?", re.ASCII)


class Origins:
    def __init__(self, allowed: tuple[str, ...]) -> None:
        """`allowed`: names beside `localhost`. A number is no name: nobody's page can have it lead elsewhere."""
        self._names = {"localhost", *(name.lower() for name in allowed)}

    def fault(self, host: str | None, origin: str | None, site: str | None) -> str:
        """What is wrong with the headers `Host`, `Origin` and `Sec-Fetch-Site`; empty: nothing."""
        match = _HOST.fullmatch(host or "")
        if match is None:
            return "the request names no host"
        if not self._is_ours(match[1]):
            return f"this server is not called {match[1][:100]!r}"
        if origin is not None and not self._is_same(origin, match[0].lower()):
            return "the request comes from a page of another origin"
        if origin is None and site in ("cross-site", "same-site"):
            return "the request comes from a page of another site"
        return ""

    def _is_ours(self, name: str) -> bool:
        name = name.lower().rstrip(".")
        return name in self._names or _is_number(name.strip("[]"))

    def _is_same(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.netloc.lower() == host


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
