"""The ways in which a request can name a port of a session. What is not in this table is not served, and what is in it
is attacked by the tests without being named there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.model import InvalidArgument, check_session_id
from sandlot.previews.addresses import PATH, PreviewAddress, label_of, path_of, read_host, read_path, read_port
from sandlot.previews.heads import Header

SESSION_HEADER: Final = b"x-sandlot-session"
PORT_HEADER: Final = b"x-sandlot-port"
_NAMING: Final = frozenset([SESSION_HEADER, PORT_HEADER])


@dataclass(frozen=True, slots=True)
class Place:
    """What a request names. No address: it names one wrongly."""

    address: PreviewAddress | None
    prefix: bytes = b""  # what stands before the program's own path


@dataclass(frozen=True, slots=True)
class Form:
    name: str
    has_own_origin: bool  # a host of its own; else it shares the API's
    read: Callable[[bytes, Sequence[Header], str], Place | None]  # of a target, headers, and the domain of previews
    write: Callable[[PreviewAddress, str], tuple[bytes, Sequence[Header]]]  # a target, and headers, that name a port


def _read_host(_target: bytes, headers: Sequence[Header], domain: str) -> Place | None:
    host = next((value for name, value in headers if name == b"host"), b"")
    return Place(read_host(host.decode("latin-1"), domain))


def _write_host(address: PreviewAddress, domain: str) -> tuple[bytes, Sequence[Header]]:
    return b"/", [(b"host", f"{label_of(address)}.{domain}".encode())]


def _read_path(target: bytes, _headers: Sequence[Header], _domain: str) -> Place | None:
    if not target.startswith(PATH):
        return None
    found = read_path(target)
    return Place(None) if found is None else Place(found[0], found[1])


def _write_path(address: PreviewAddress, _domain: str) -> tuple[bytes, Sequence[Header]]:
    return path_of(address).encode(), []


def _read_headers(_target: bytes, headers: Sequence[Header], _domain: str) -> Place | None:
    named = {name: value for name, value in headers if name in _NAMING}
    if not named:
        return None
    port = read_port(named.get(PORT_HEADER, b"").decode("latin-1"))
    try:
        session_id = check_session_id(named.get(SESSION_HEADER, b"").decode("latin-1"))
    except InvalidArgument:
        return Place(None)
    return Place(PreviewAddress(session_id, port) if port else None)


def _write_headers(address: PreviewAddress, _domain: str) -> tuple[bytes, Sequence[Header]]:
    return b"/", [(SESSION_HEADER, address.session_id.encode()), (PORT_HEADER, b"%d" % address.port)]


OWN: Final = Form("a host", True, _read_host, _write_host)
SHARED: Final = (
    Form("a path", False, _read_path, _write_path),
    Form("headers", False, _read_headers, _write_headers),
)
FORMS: Final = (OWN, *SHARED)
