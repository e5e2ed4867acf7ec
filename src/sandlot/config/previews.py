"""Below which domain ports of sessions have hosts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sandlot.config.reading import Reader

DOMAIN = "preview.localhost"  # a browser asks this machine for whatever is below `localhost`
_NAME = "SANDLOT_PREVIEW_DOMAIN"
_OFF = "off"
_DOMAIN = re.compile(
    r"(?:(https?)://)?((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9])(?::([0-9]{1,5}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class PreviewDomain:
    """As others reach it. What is not said is as the server has it."""

    name: str
    scheme: str = ""
    port: int | None = None

    def __str__(self) -> str:
        scheme, port = f"{self.scheme}://" if self.scheme else "", f":{self.port}" if self.port else ""
        return f"{scheme}{self.name}{port}"


def read_domain(read: Reader, allowed_hosts: Sequence[str]) -> PreviewDomain | None:
    """None: ports have no hosts. What is wrong is told by the reader."""
    text = read.text(_NAME, DOMAIN)
    if text == _OFF:
        return None
    match = _DOMAIN.fullmatch(text)
    if match is None or int(match[3] or 1) not in range(1, 65536) or len(match[2]) > 180:
        read.refuse(_NAME, "be a domain in small letters, as in previews.example.com or https://previews.example.com")
        return None
    for host in allowed_hosts:
        if host == match[2] or host.endswith(f".{match[2]}") or match[2].endswith(f".{host}"):
            read.refuse(_NAME, f"be of another site than {host}, which clients call the server by")
    return PreviewDomain(match[2], match[1] or "", int(match[3]) if match[3] else None)
