"""Where a server listens."""

import ipaddress
import re
from dataclasses import dataclass

from sandlot.model import InvalidArgument

_UNIX = "unix:"
_PATH_BYTES_MAX = 107  # the kernel takes no longer one


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port, or a path."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def is_unix(self) -> bool:
        return bool(self.path)

    @property
    def is_loopback(self) -> bool:
        """Whether nobody but this machine reaches it."""
        return self.is_unix or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.is_unix:
            return _UNIX + self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, `[::1]:PORT` or `unix:/PATH`. Raises InvalidArgument."""
    if text.startswith(_UNIX):
        path = text.removeprefix(_UNIX)
        if path.startswith("/") and "\0" not in path and len(path.encode()) <= _PATH_BYTES_MAX:
            return Address(path=path)
        raise InvalidArgument(f"{text[:200]!r} is no absolute path of up to {_PATH_BYTES_MAX} bytes")
    match = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+|localhost)):([0-9]{1,5})", text, re.ASCII)
    if match and int(match[3]) <= 65535:
        host = "127.0.0.1" if match[2] == "localhost" else match[1] or match[2]
        try:
            return Address(str(ipaddress.ip_address(host)), int(match[3]))
        except ValueError:
            pass
    raise InvalidArgument(f"{text[:200]!r} is no address with a port, such as 127.0.0.1:8700, and no unix:/PATH")
