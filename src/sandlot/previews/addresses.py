"""What names a port of a session: the host of a request, the beginning of its path, or two headers.

A label of DNS holds small letters, digits and hyphens, up to 63 of them. An id that is made of these stands in it as it
is, `3000-s-abc`; every other one is written with escapes behind `e-`, so that no two ids have the same label."""

import re
from dataclasses import dataclass
from typing import Final

from sandlot.model import InvalidArgument, check_session_id

LABEL_CHARS_MAX: Final = 63  # of DNS
PATH: Final = b"/preview/"
_PORT: Final = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL: Final = re.compile(r"([1-9][0-9]{0,4})-([a-z0-9](?:[a-z0-9-]{0,60}[a-z0-9])?)", re.ASCII)
_PLAIN: Final = re.compile(r"(?!e-)[a-z0-9](?:[a-z0-9-]*[a-z0-9])?", re.ASCII)
_ESCAPE: Final = re.compile(r"-(c[a-z]|[hdu])|([a-z0-9])", re.ASCII)
_MARK: Final = "e-"
_SIGNS: Final = {"h": "-", "d": ".", "u": "_"}
_ESCAPES: Final = {sign: f"-{letter}" for letter, sign in _SIGNS.items()}


@dataclass(frozen=True, slots=True)
class PreviewAddress:
    session_id: str
    port: int


def read_port(text: str) -> int | None:
    """As it is written and not otherwise: no zeros in front, no signs."""
    if not _PORT.fullmatch(text) or int(text) > 65535:
        return None
    return int(text)


def label_of(address: PreviewAddress) -> str:
    """Empty for an id that is too long for a label: its ports have no hosts, and are reached by path."""
    session_id = address.session_id
    if not _PLAIN.fullmatch(session_id):
        session_id = _MARK + "".join(map(_escaped, session_id))
    label = f"{address.port}-{session_id}"
    return label if len(label) <= LABEL_CHARS_MAX else ""


def _escaped(char: str) -> str:
    return f"-c{char.lower()}" if char.isupper() else _ESCAPES.get(char, char)


def read_label(label: str) -> PreviewAddress | None:
    """Only what `label_of` gives for it."""
    match = _LABEL.fullmatch(label)
    if match is None or (port := read_port(match[1])) is None or len(label) > LABEL_CHARS_MAX:
        return None
    session_id = match[2]
    if session_id.startswith(_MARK):
        session_id = _unescaped(session_id.removeprefix(_MARK))
    try:
        address = PreviewAddress(check_session_id(session_id), port)
    except InvalidArgument:
        return None
    return address if label_of(address) == label else None


def _unescaped(text: str) -> str:
    """Empty for what was not escaped like this."""
    found: list[str] = []
    at = 0
    while at < len(text):
        match = _ESCAPE.match(text, at)
        if match is None:
            return ""
        escape: str | None = match[1]
        found.append(match[2] if escape is None else _SIGNS.get(escape, escape[-1].upper()))
        at = match.end()
    return "".join(found)


def host_name(host: str) -> str:
    """Without its port, and as names are compared: in small letters, without the dot of the root."""
    name, colon, port = host.rpartition(":")
    name = name if colon and port.isdigit() else host
    return name.lower().removesuffix(".")


def is_below(host: str, domain: str) -> bool:
    """Whether a host is this domain, or of it: then it is for previews, whether there is one of that name or not."""
    name = host_name(host)
    return bool(domain) and (name == domain or name.endswith(f".{domain}"))


def read_host(host: str, domain: str) -> PreviewAddress | None:
    """`LABEL.DOMAIN`, with or without a port of the server. Names that only mean the same are none: a page of theirs
    would have another origin, and cookies of its own."""
    name, colon, port = host.rpartition(":")
    if not colon:
        name = host
    elif read_port(port) is None:
        return None
    label, dot, rest = name.partition(".")
    return read_label(label) if dot and rest == domain else None


def read_path(target: bytes) -> tuple[PreviewAddress, bytes, bytes] | None:
    """`/preview/ID/PORT/rest`: the port, what stands before the rest, and the rest, which begins with `/`, or is
    nothing where the last `/` is missing. Nothing in it is decoded: an id needs no escapes."""
    if not target.startswith(PATH):
        return None
    path, mark, query = target.partition(b"?")
    parts = path[len(PATH) :].split(b"/", 2)
    if len(parts) < 2:
        return None
    try:
        session_id = check_session_id(parts[0].decode("ascii"))
        port = read_port(parts[1].decode("ascii"))
    except (InvalidArgument, UnicodeDecodeError):
        return None
    if port is None:
        return None
    rest = b"/" + parts[2] + mark + query if len(parts) == 3 else b""
    return PreviewAddress(session_id, port), PATH + parts[0] + b"/" + parts[1], rest


def path_of(address: PreviewAddress) -> str:
    return f"{PATH.decode()}{address.session_id}/{address.port}/"
