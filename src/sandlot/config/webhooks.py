"""Where events are told to, as it is written in a setting."""

import ipaddress
import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from sandlot.model import EventKind, InvalidArgument, check_tenant

_TEXT = re.compile(r"[\x21-\x7e]{1,2000}")
_OF_TENANT = re.compile(r"([^=/:?#]*)=(https?://.*)", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9.\-]{1,253}|[0-9A-Fa-f:.]{2,45}", re.ASCII)
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    text: str = field(repr=False)  # its path may be as good as a password
    host: str
    port: int
    path: str = field(repr=False)
    is_tls: bool
    tenant: str = ""  # whose sessions it hears of; none: the operator's, of all

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS["https" if self.is_tls else "http"] else f"{host}:{self.port}"

    def __str__(self) -> str:
        """Without its path."""
        return f"{self.tenant}{'=' * bool(self.tenant)}http{'s' * self.is_tls}://{self.authority}"


def parse_url(text: str) -> WebhookUrl:
    """`URL`, or `TENANT=URL`. Raises InvalidArgument."""
    if match := _OF_TENANT.fullmatch(text):
        return replace(parse_url(match[2]), text=text, tenant=check_tenant(match[1]))
    if not _TEXT.fullmatch(text):
        raise InvalidArgument("an address of a webhook has up to 2000 printable characters, and no blank")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise InvalidArgument(f"this is no address of a webhook: {error}") from None
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or parts.username is not None or port == 0:
        raise InvalidArgument("an address of a webhook is http://HOST/PATH or https://HOST/PATH, without a password")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookUrl(text, host, port or _PORTS[parts.scheme], path, parts.scheme == "https")


def parse_network(text: str) -> Network:
    """Raises InvalidArgument."""
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        raise InvalidArgument(f"{text[:60]!r} is no network, such as 10.0.0.0/8") from None


def parse_kind(text: str) -> EventKind:
    """Raises InvalidArgument."""
    try:
        return EventKind(text.replace("_", " "))
    except ValueError:
        known = ", ".join(kind.replace(" ", "_") for kind in EventKind)
        raise InvalidArgument(f"{text[:40]!r} is no kind of event; there are {known}") from None
