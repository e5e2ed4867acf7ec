"""Readiness as users write it."""

import json
from dataclasses import asdict

import pytest

from sandlot.model import InvalidArgument, LimitReached, Ready, ReadyKind, Start


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("running", Ready()),
        ("port 8000", Ready(ReadyKind.PORT, 8000)),
        ("PORT 1", Ready(ReadyKind.PORT, 1)),
        ("http 80", Ready(ReadyKind.HTTP, 80, "/")),
        ("http 80 /a?b=c", Ready(ReadyKind.HTTP, 80, "/a?b=c")),
        ('log "now serving"', Ready(ReadyKind.LOG, 0, "now serving")),
        ("log now serving", Ready(ReadyKind.LOG, 0, "now serving")),
    ],
)
def test_what_it_means(text: str, means: Ready) -> None:
    assert Ready.parse(text) == means
    start = Start(("x",), means, 3.0)
    assert Start.from_document(json.loads(json.dumps(asdict(start)))) == start


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "port", "port x", "port 0", "port 65536", "port 1 2", "http /", "http 1 x", "log", "log ''"),
        *("log '", "http 1 /a\r\nb", "http 1 '/a b'", "running 1", "http 1 /\u00e9"),
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Ready.parse(text)


def test_bounds() -> None:
    with pytest.raises(LimitReached):
        Ready.parse("log " + "x" * 2000)
    with pytest.raises(InvalidArgument):
        Start((), Ready(), 0.0)
    assert Start.of(None, None, None) is None
    assert Start.of(None, "running", None) == Start(())
    assert Start.of("a b", None, 2.0) == Start(("/bin/sh", "-c", "a b"), Ready(), 2.0)
