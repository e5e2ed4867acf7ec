"""Pages in a browser of this machine ask nothing of a server on it."""

import pytest

from sandlot.server.origins import Origins

OURS = Origins(("sandlot.example",))


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        ("127.0.0.1:8700", None, None),
        ("localhost:8700", None, "none"),
        ("LOCALHOST", None, "same-origin"),
        ("localhost.:8700", None, None),
        ("[::1]:8700", None, None),
        ("sandlot.example", None, None),
        ("10.0.0.7:8700", None, None),
        ("localhost:8700", "http://localhost:8700", "same-origin"),
        ("sandlot.example", "https://sandlot.example", "same-origin"),
    ],
)
def test_programs_and_pages_of_our_own_may_ask(host: str, origin: str | None, site: str | None) -> None:
    assert OURS.fault(host, origin, site) == ""


@pytest.mark.parametrize(
    ("host", "origin", "site"),
    [
        (None, None, None),
        ("", None, None),
        ("evil.example:8700", None, None),
        ("localhost.evil.example", None, None),
        ("127.0.0.1.evil.example", None, None),
        ("evil.example@localhost", None, None),
        ("localhost:8700/evil", None, None),
        ("127.1:8700", None, None),
        ("localhost:8700", "http://evil.example", "cross-site"),
        ("localhost:8700", "null", None),
        ("localhost:8700", "http://localhost:3000", "same-site"),
        ("localhost:8700", "file://", None),
        ("localhost:8700", "http://[", None),
        ("localhost:8700", "ftp://localhost:8700", None),
        ("localhost:8700", None, "cross-site"),
        ("localhost:8700", None, "same-site"),
    ],
)
def test_others_may_not(host: str | None, origin: str | None, site: str | None) -> None:
    assert OURS.fault(host, origin, site)
