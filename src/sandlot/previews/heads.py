"""Heads of requests and of answers: what goes on, what stays behind, and what is refused.

A request was read by the server, and is written anew: nothing of its framing reaches the program. What a program
answers is checked sign by sign, and goes on as names and values."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandlot.model import InvalidArgument, Unavailable

Header = tuple[bytes, bytes]

ANSWER_HEADERS_MAX: Final = 256
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET: Final = re.compile(rb"/[\x21\x22\x24-\x7e]*")  # visible signs, and no fragment
_TOKEN: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+(?:/[!#$%&'*+\-.^_`|~0-9A-Za-z]+)?")
_HOST: Final = re.compile(rb"[A-Za-z0-9.\-:\[\]]{1,300}")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")
_KEY: Final = re.compile(rb"(?:^|[^A-Za-z0-9])(?:sl_[0-9a-f]{12}_|slp_[0-9a-f]{1,16}_)[A-Za-z0-9_-]{16,}")
# Of one connection, not of what goes through it.
HOP: Final = frozenset(
    b"connection keep-alive proxy-connection proxy-authenticate proxy-authorization te trailer transfer-encoding "
    b"upgrade http2-settings alt-svc".split()
)
# Nobody outside says these for us.
_OURS: Final = frozenset(b"forwarded via x-real-ip expect content-length host".split())
_OUR_PREFIXES: Final = (b"x-forwarded-", b"x-sandlot-")
CREDENTIALS: Final = frozenset(
    b"open-sandbox-api-key open-sandbox-endpoint-token x-execd-access-token opensandbox-egress-auth x-access-token "
    b"e2b-traffic-access-token".split()
)
_UNDROPPABLE: Final = frozenset([b"host", b"content-length", b"cookie"])


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as the program gets it."""

    head: bytes
    has_body: bool
    is_chunked: bool  # else it is as long as it says
    expects: bool  # its client waits until the program wants the body
    upgrade: bytes  # the protocol that is asked for; empty: none


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: tuple[Header, ...]  # names in small letters, without those of the connection and the length
    length: int | None  # None: chunked, or until the connection ends
    is_chunked: bool
    has_body: bool
    keeps: bool  # another request may follow
    upgrade: bytes


def check_target(target: bytes) -> bytes:
    """Raises InvalidArgument."""
    if not _TARGET.fullmatch(target):
        raise InvalidArgument("the path of the request is not one")
    return target


def ask(
    method: str,
    target: bytes,
    host: bytes,
    given: Iterable[Header],
    ours: Iterable[Header],
    dropped: frozenset[bytes],
    *,
    version: str = "1.1",
    may_upgrade: bool = False,
) -> Asked:
    """`ours` are set whatever the client says. What asks for another HTTP is a request like others. Raises
    InvalidArgument for a request that two could read differently."""
    headers = list(given)
    single = _single(headers)
    lists, length = _words(single.get(b"transfer-encoding")), single.get(b"content-length")
    if (lists and (lists != [b"chunked"] or version != "1.1")) or (lists and length is not None):
        raise InvalidArgument("it cannot be told where the body of the request ends")
    if length is not None and not _LENGTH.fullmatch(length):
        raise InvalidArgument("the length of the body is no number")
    has_body = bool(lists) or length not in (None, b"0")
    named = _connection_names(headers)
    upgrade = single.get(b"upgrade", b"") if may_upgrade and b"upgrade" in named else b""
    if upgrade.lower().startswith((b"h2c", b"http/", b"tls/")):
        upgrade = b""
    if upgrade and (not _TOKEN.fullmatch(upgrade) or has_body or method != "GET"):
        raise InvalidArgument("this is no request for another protocol that could be passed on")
    expects = has_body and single.get(b"expect", b"").lower() == b"100-continue"
    lines = [b"%s %s HTTP/1.1\r\nhost: %s\r\n" % (method.encode("ascii"), check_target(target), host)]
    hidden = HOP | _OURS | CREDENTIALS | (named - _UNDROPPABLE) | dropped
    for name, value in headers:
        # A program may take `_` for `-`: WSGI and CGI do.
        plain = name.replace(b"_", b"-") if b"_" in name else name
        if plain in hidden or plain.startswith(_OUR_PREFIXES) or _is_secret(value):
            continue
        lines.append(b"%s: %s\r\n" % (name, value))
    lines += [b"%s: %s\r\n" % header for header in ours]
    if expects:
        lines.append(b"expect: 100-continue\r\n")
    if lists:
        lines.append(b"transfer-encoding: chunked\r\n")
    elif length is not None:
        lines.append(b"content-length: %s\r\n" % length)
    if upgrade:
        lines.append(b"connection: upgrade\r\nupgrade: %s\r\n" % upgrade)
    elif has_body:
        lines.append(b"connection: close\r\n")
    lines.append(b"\r\n")
    return Asked(b"".join(lines), has_body, bool(lists), expects, upgrade)


def _is_secret(value: bytes) -> bool:
    """A key or a token of ours, in whatever header it came."""
    return b"sl" in value and _KEY.search(value) is not None


def _single(headers: list[Header]) -> Mapping[bytes, bytes]:
    """Those that say how to read the rest stand there once. Raises InvalidArgument."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _ONCE:
            if name in found:
                raise InvalidArgument(f"the request has {name.decode()} twice")
            found[name] = value
    return found


_ONCE: Final = frozenset([b"host", b"content-length", b"transfer-encoding", b"upgrade", b"expect"])


def _words(value: bytes | None) -> list[bytes]:
    return [] if value is None else [word.strip().lower() for word in value.split(b",")]


def _connection_names(headers: Iterable[Header]) -> frozenset[bytes]:
    return frozenset(word for name, value in headers if name == b"connection" for word in _words(value))


def read_answer(head: bytes, method: str, upgrade: bytes) -> Answered:
    """Raises Unavailable for what is not an answer of HTTP/1, to the letter."""
    first, *lines = head.split(b"\r\n")
    match = _STATUS.fullmatch(first)
    if match is None:
        raise Unavailable("what it says is no HTTP")
    if len(lines) > ANSWER_HEADERS_MAX:
        raise Unavailable(f"its answer has more than {ANSWER_HEADERS_MAX} headers")
    headers = [_header(line) for line in lines]
    status, is_old = int(match[2]), match[1] == b"0"
    lengths = [value for name, value in headers if name == b"content-length"]
    encodings = [word for name, value in headers if name == b"transfer-encoding" for word in _words(value)]
    if len(lengths) > 1 or (lengths and not _LENGTH.fullmatch(lengths[0])):
        raise Unavailable("its answer has no one length")
    if encodings and (encodings != [b"chunked"] or lengths or is_old):
        raise Unavailable("it cannot be told where its answer ends")
    named = _connection_names(headers)
    switched = b""
    if status == 101:
        switched = next((value for name, value in headers if name == b"upgrade"), b"")
        if not upgrade or b"upgrade" not in named or not _TOKEN.fullmatch(switched):
            raise Unavailable("it changes to a protocol that nobody asked for")
    has_body = method != "HEAD" and status >= 200 and status not in (204, 304)
    length = int(lengths[0]) if lengths and status != 204 and status >= 200 else None
    hidden = HOP | (named - _UNDROPPABLE) | {b"content-length"}
    kept = tuple(header for header in headers if header[0] not in hidden)
    ends = not has_body or bool(encodings) or length is not None
    keeps = ends and not is_old and b"close" not in named and status != 101
    return Answered(status, kept, length, bool(encodings), has_body, keeps, switched)


def _header(line: bytes) -> Header:
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise Unavailable("a header of its answer is none")
    return name.lower(), value


def forwarded(scope: Mapping[str, Any], host: bytes, prefix: bytes) -> list[Header]:
    """Who asks, as we see it."""
    host = host if _HOST.fullmatch(host) else b"unknown"
    client: tuple[str, int] | None = scope.get("client")
    address = client[0].encode("ascii", "replace") if client and client[0] else b"unknown"
    quoted = b'"[%s]"' % address if b":" in address else address
    scheme = str(scope.get("scheme") or "http").encode("ascii")
    found = [
        (b"forwarded", b'for=%s;host="%s";proto=%s' % (quoted, host, scheme)),
        (b"x-forwarded-for", address),
        (b"x-forwarded-host", host),
        (b"x-forwarded-proto", scheme),
    ]
    if prefix:
        found.append((b"x-forwarded-prefix", prefix))
    return found
