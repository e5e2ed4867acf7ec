"""Tokens in requests: where they stand, which of them count, and that none of them goes on to a program."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandlot.model import PREVIEW_HEADER, PREVIEW_QUERY
from sandlot.previews.heads import Header

HEADER: Final = PREVIEW_HEADER.lower().encode()
COOKIE: Final = b"sandlot_preview"
SECURE_COOKIE: Final = b"__Host-" + COOKIE
_OURS: Final = frozenset([COOKIE, SECURE_COOKIE])
_QUERY: Final = PREVIEW_QUERY.encode() + b"="
_FRAMES: Final = frozenset([b"iframe", b"frame", b"embed", b"object", b"fencedframe"])
_DOMAIN: Final = re.compile(rb";[ \t]*domain[ \t]*(?:=[^;]*)?(?=;|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Given:
    """What a request shows, as it stands there."""

    header: str
    query: str
    cookies: Sequence[str]
    target: bytes  # without the query's token

    @property
    def from_anywhere(self) -> Iterator[str]:
        """Those that nobody but their holder can have sent."""
        return filter(None, (self.header, self.query))


def given(headers: Iterable[Header], target: bytes) -> Given:
    found: list[bytes] = []
    header = b""
    for name, value in headers:
        if name == HEADER:
            header = value
        elif name == b"cookie":
            found += [value for name, value in _cookies(value) if name in _OURS]
    query = b""
    path, mark, rest = target.partition(b"?")
    if mark and _QUERY in rest:
        parts = rest.split(b"&")
        query = next((part[len(_QUERY) :] for part in parts if part.startswith(_QUERY)), b"")
        rest = b"&".join(part for part in parts if not part.startswith(_QUERY))
        target = path + mark + rest if rest else path
    return Given(_text(header), _text(query), [_text(one) for one in found], target)


def _text(value: bytes) -> str:
    return value.decode("latin-1")


def _cookies(value: bytes) -> Iterator[tuple[bytes, bytes]]:
    for part in value.split(b";"):
        name, _, content = part.partition(b"=")
        yield name.strip(), content.strip()


def is_own_page(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a cookie counts: a browser sends it along with what pages of other origins ask for, too. A person who
    follows a link comes from anywhere; a frame, a script and a websocket come from the preview's own pages."""
    site = headers.get(b"sec-fetch-site", b"")
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    if origin is not None:
        scheme, found, name = origin.partition(b"://")
        return bool(found) and scheme in (b"http", b"https") and name.lower() == host.lower()
    if site in (b"", b"same-origin", b"none"):
        return True
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") not in _FRAMES


def is_visit(method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Of a person with a browser, who can be sent on."""
    if method not in ("GET", "HEAD") or b"upgrade" in headers:
        return False
    mode = headers.get(b"sec-fetch-mode")
    return mode == b"navigate" or (mode is None and b"text/html" in headers.get(b"accept", b""))


def cookie(token: str, path: bytes, max_age_s: int, *, secure: bool) -> bytes:
    """Of this host alone; below a path of a shared one, of this path."""
    is_host = path == b"/"
    name = SECURE_COOKIE if secure and is_host else COOKIE
    site = b"Lax" if is_host else b"Strict"
    end = b"; Secure" if secure else b""
    return b"%s=%s; Path=%s; Max-Age=%d; HttpOnly; SameSite=%s%s" % (
        name, token.encode("ascii"), path, max_age_s, site, end,
    )  # fmt: skip


def onward(headers: Iterable[Header], *, shares_origin: bool) -> list[Header]:
    """Of a request, without our cookies; on an origin that is not the preview's own, without any."""
    found: list[Header] = []
    for name, value in headers:
        if name == b"cookie":
            if shares_origin:
                continue
            value = b"; ".join(
                part.strip() for part in value.split(b";") if part.partition(b"=")[0].strip() not in _OURS
            )
            if not value:
                continue
        found.append((name, value))
    return found


_NOT_SHARED: Final = frozenset(
    b"set-cookie set-cookie2 clear-site-data strict-transport-security service-worker-allowed nel report-to "
    b"reporting-endpoints".split()
)
_SANDBOX: Final = b"sandbox allow-scripts allow-forms allow-popups allow-modals allow-downloads"


def back(headers: Iterable[Header]) -> list[Header]:
    """Of an answer on a host of its own: cookies are of this host alone, and ours stay ours."""
    found: list[Header] = []
    for name, value in headers:
        if name == b"set-cookie":
            if value.partition(b"=")[0].strip() in _OURS:
                continue
            value = _DOMAIN.sub(b"", value)
        found.append((name, value))
    return found


def back_shared(headers: Iterable[Header]) -> list[Header]:
    """Of an answer on an origin that others share: what it shows has an origin of its own, and says nothing of this."""
    kept = [header for header in headers if header[0] not in _NOT_SHARED]
    return [*kept, (b"content-security-policy", _SANDBOX), (b"x-content-type-options", b"nosniff")]
