"""Tokens are good for one port of one making of a session, for a while; what is public is told by the file."""

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.model import (
    InvalidArgument,
    InvalidState,
    LimitReached,
    PermissionDenied,
    PreviewRequest,
    SessionInfo,
    SessionState,
    Unavailable,
    limits,
)
from sandlot.previews import tokens
from sandlot.previews.addresses import PreviewAddress
from sandlot.previews.book import Place, PreviewBook

SECRET = bytes(32)
KEY = "0123456789ab"
ADDRESS = PreviewAddress("s", 3000)
PLACE = Place("http://127.0.0.1:1", "http", "previews.test", 1, may_be_public=True)
INFO = SessionInfo("s", SessionState.ACTIVE, "", 1000.25, 2000.0, {}, "t", "l", "n", "/w")


def test_a_token_is_good_for_one_port_of_one_making_and_for_a_while() -> None:
    token = tokens.sign(SECRET, ADDRESS, 1000.25, 2000)
    grant = tokens.read(SECRET, ADDRESS, token, 1999.9)
    assert grant == tokens.Grant(1000250000, 2000)
    assert tokens.read(SECRET, ADDRESS, token, 2000) is None
    assert tokens.read(SECRET, PreviewAddress("s", 3001), token, 0) is None
    assert tokens.read(SECRET, PreviewAddress("t", 3000), token, 0) is None
    assert tokens.read(bytes(31) + b"x", ADDRESS, token, 0) is None


def test_a_token_is_of_the_key_that_asked() -> None:
    token = tokens.sign(SECRET, ADDRESS, 1000.25, 2000, KEY)
    assert tokens.read(SECRET, ADDRESS, token, 0) == tokens.Grant(1000250000, 2000, KEY)
    assert tokens.read(SECRET, ADDRESS, token.replace(f"{KEY}_", ""), 0) is None, "it cannot be taken out"
    assert tokens.read(SECRET, ADDRESS, token.replace(KEY, "0" * 12), 0) is None
    plain = tokens.sign(SECRET, ADDRESS, 1000.25, 2000)
    at = plain.rindex("7d0_") + len("7d0_")
    assert tokens.read(SECRET, ADDRESS, f"{plain[:at]}{KEY}_{plain[at:]}", 0) is None, "nor put in"
    for wrong in ("x", "0" * 11, "0" * 13, "g" * 12, f"{KEY}_"):
        with pytest.raises(InvalidArgument):
            PreviewRequest("s", 3000, key=wrong)


@pytest.mark.parametrize("key", ["", KEY])
def test_a_token_that_was_changed_anywhere_is_none(key: str) -> None:
    token = tokens.sign(SECRET, ADDRESS, 1000.25, 2000, key)
    for at, char in itertools.product(range(len(token)), "0aA_-z"):
        other = token[:at] + char + token[at + 1 :]
        assert other == token or tokens.read(SECRET, ADDRESS, other, 0) is None
    for other in ("", token + "a", token[:-1], " " + token, token + "\n", token.replace("_", ".")):
        assert tokens.read(SECRET, ADDRESS, other, 0) is None


async def test_previews_are_told_when_a_server_shows_them(tmp_path: Path) -> None:
    book = PreviewBook(tmp_path)
    with pytest.raises(InvalidState):
        await book.issue(INFO, PreviewRequest("s", 3000))
    server = PreviewBook(tmp_path)
    server.show(PLACE)
    preview = await book.issue(INFO, PreviewRequest("s", 3000, 60))
    assert preview.url == "http://3000-s.previews.test:1/"
    assert preview.path_url == "http://127.0.0.1:1/preview/s/3000/"
    assert preview.signed_url == f"{preview.url}?sandlot-token={preview.token}"
    assert 55 < preview.expires - time.time() < 65
    assert preview.token not in repr(preview)
    grant = server.read(ADDRESS, preview.token)
    assert grant is not None
    assert grant.made_us == tokens.made_us(INFO.created)
    assert (tmp_path / "previews.json").stat().st_mode & 0o777 == 0o600
    server.hide(PLACE)
    with pytest.raises(InvalidState):
        await book.issue(INFO, PreviewRequest("s", 3000))
    server.show(PLACE)
    assert server.read(ADDRESS, preview.token) == grant, "tokens outlive servers"


async def test_ids_that_no_host_can_have_are_reached_by_path(tmp_path: Path) -> None:
    book = PreviewBook(tmp_path)
    book.show(PLACE)
    long = replace(INFO, session_id="a" * 100)
    preview = await book.issue(long, PreviewRequest(long.session_id, 3000))
    assert preview.url == ""
    assert preview.signed_url.startswith(preview.path_url)
    book.show(Place("http://127.0.0.1:1"))
    assert (await book.issue(INFO, PreviewRequest("s", 3000))).url == ""


async def test_a_public_port_is_of_one_making(tmp_path: Path) -> None:
    book = PreviewBook(tmp_path)
    book.show(PLACE)
    assert book.public(ADDRESS) is None
    preview = await book.issue(INFO, PreviewRequest("s", 3000, public=True))
    assert preview.public
    assert preview.signed_url == preview.url
    assert PreviewBook(tmp_path).public(ADDRESS) == tokens.made_us(INFO.created)
    assert (await book.issue(INFO, PreviewRequest("s", 3000))).public
    next_making = replace(INFO, created=3000.0)
    assert not (await book.issue(next_making, PreviewRequest("s", 3000))).public
    assert not (await book.issue(INFO, PreviewRequest("s", 3000, public=False))).public
    assert book.public(ADDRESS) is None


async def test_a_server_that_lets_nobody_in_makes_nothing_public(tmp_path: Path) -> None:
    book = PreviewBook(tmp_path)
    book.show(PLACE)
    await book.issue(INFO, PreviewRequest("s", 3000, public=True))
    book.show(replace(PLACE, may_be_public=False))
    with pytest.raises(PermissionDenied):
        await book.issue(INFO, PreviewRequest("s", 3001, public=True))
    assert book.public(ADDRESS) is None, "what was public before is not either"
    assert not (await book.issue(INFO, PreviewRequest("s", 3000))).public


async def test_a_file_that_is_broken_lets_nobody_in(tmp_path: Path) -> None:
    book = PreviewBook(tmp_path)
    book.show(PLACE)
    token = (await book.issue(INFO, PreviewRequest("s", 3000))).token
    (tmp_path / "previews.json").write_text("{}")
    with pytest.raises(Unavailable):
        book.read(ADDRESS, token)
    with pytest.raises(Unavailable):
        book.public(ADDRESS)


async def test_public_ports_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PREVIEWS_PUBLIC_MAX", 1)
    book = PreviewBook(tmp_path)
    book.show(PLACE)
    await book.issue(INFO, PreviewRequest("s", 3000, public=True))
    with pytest.raises(LimitReached):
        await book.issue(INFO, PreviewRequest("s", 3001, public=True))


@pytest.mark.parametrize(("port", "expires_s"), [(0, 60), (65536, 60), (-1, 60), (3000, 0), (3000, 1e9)])
def test_what_is_asked_for_is_checked(port: int, expires_s: float) -> None:
    with pytest.raises(InvalidArgument):
        PreviewRequest("s", port, expires_s)
