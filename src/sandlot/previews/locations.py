"""Where an answer sends its client: back through the path that it came by."""

from collections.abc import Iterable
from typing import Final, Protocol

from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.heads import Header

_NAMES: Final = frozenset([b"location", b"content-location"])


class Way(Protocol):
    @property
    def address(self) -> PreviewAddress: ...
    @property
    def host(self) -> bytes: ...
    @property
    def prefix(self) -> bytes: ...


def led_back(headers: Iterable[Header], way: Way) -> list[Header]:
    return [(name, _inward(value, way) if name in _NAMES else value) for name, value in headers]


def _inward(place: bytes, way: Way) -> bytes:
    """What leads to the program's own root, with the prefix before it. What leads elsewhere stays."""
    own = {way.host, b"localhost:%d" % way.address.port, b"127.0.0.1:%d" % way.address.port}
    for scheme in (b"http://", b"https://"):
        if place.lower().startswith(scheme):
            host, slash, rest = place[len(scheme) :].partition(b"/")
            return way.prefix + b"/" + rest if slash and host.lower() in own else place
    # `//elsewhere` and `/\elsewhere` are other hosts to a browser.
    return way.prefix + place if place[:1] == b"/" and place[1:2] not in (b"/", b"\\") else place
