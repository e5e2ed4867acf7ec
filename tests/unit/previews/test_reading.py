"""What a program says is read to the letter or refused, wherever it is cut; and what a client says is written anew."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import InvalidArgument, Unavailable
from sandlot.previews import credentials
from sandlot.previews.heads import ask, read_answer
from sandlot.previews.reading import Answering


class Pieces:
    """A connection that gives these."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = iter(pieces)

    async def read(self, size_max: int = 0) -> bytes:
        return next(self._pieces, b"")

    async def write(self, data: bytes) -> None: ...

    async def close_write(self) -> None: ...


def cuts(text: bytes) -> Iterator[list[bytes]]:
    yield [text]
    yield [bytes([byte]) for byte in text]
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]


ANSWER = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n3;x\r\nabc\r\n5 ; y=z\r\nde\r\nf\r\n0\r\nT: u\r\n\r\n"


async def test_an_answer_is_the_same_wherever_it_is_cut() -> None:
    for pieces in cuts(ANSWER + b"next"):
        answering = Answering(Pieces(pieces))
        assert await answering.head() == b"HTTP/1.1 200 OK\r\nA: b"
        assert b"".join([piece async for piece in answering.chunked()]) == b"abcde\r\nf"
        rest = b"".join([piece async for piece in answering.rest()])
        assert rest == b"next"


async def read_whole(answering: Answering) -> None:
    await answering.head()
    async for _ in answering.chunked():
        pass


async def test_an_answer_that_ends_anywhere_is_told() -> None:
    for end in range(len(ANSWER) - 1):
        with pytest.raises(Unavailable):
            await read_whole(Answering(Pieces([ANSWER[:end]])))


@pytest.mark.parametrize(
    "chunks",
    [
        b"3\nabc\n0\n\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3\r\nabc0\r\n\r\n",
        b" 3\r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"-3\r\nabc\r\n0\r\n\r\n",
        b"3_0\r\nabc\r\n0\r\n\r\n",
        b"\r\n\r\n",
        b"ffffffffffffffffff\r\nabc\r\n0\r\n\r\n",
        b"3;\0\r\nabc\r\n0\r\n\r\n",
        b"3;\n\r\nabc\r\n0\r\n\r\n",
        b"3" + b";x" * 4000 + b"\r\nabc\r\n0\r\n\r\n",
        b"0\r\n" + b"T: u\r\n" * 20000 + b"\r\n",
    ],
)
async def test_chunks_that_two_could_read_differently(chunks: bytes) -> None:
    with pytest.raises(Unavailable):
        async for _ in Answering(Pieces([chunks])).chunked():
            pass


NOISE = st.lists(
    st.sampled_from([b"HTTP/1.1 200 OK", b"\r\n", b"\n", b"\r", b"A: b", b" c", b"\0", b"Set-Cookie: x", b":", b"\xff"])
    | st.binary(max_size=6),
    max_size=12,
).map(b"".join)


@given(NOISE)
def test_no_header_of_an_answer_holds_the_end_of_a_line(noise: bytes) -> None:
    try:
        answered = read_answer(b"HTTP/1.1 200 OK\r\n" + noise, "GET", b"")
    except Unavailable:
        return
    for name, value in answered.headers:
        assert re.fullmatch(rb"[!-9;-~]+", name)
        assert name == name.lower()
        assert not re.search(rb"[\r\n\0]", value)


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            b"accept connection keep-alive te trailer upgrade x-forwarded-for x_forwarded_for forwarded cookie x-a "
            b"content_length transfer_encoding x-sandlot-preview-token proxy-authorization expect via".split()
        ),
        st.sampled_from(
            [b"", b"a", b"close, x-a", b"content-length, host", b"upgrade", b"h2c", b"100-continue", b"sl_"]
        ),
    ),
    max_size=8,
)


@given(HEADERS)
def test_a_request_is_written_anew(headers: list[tuple[bytes, bytes]]) -> None:
    try:
        asked = ask("GET", b"/a", b"h", headers, [(b"x-forwarded-for", b"us")], frozenset())
    except InvalidArgument:
        return
    first, *lines = asked.head[:-4].split(b"\r\n")
    assert first == b"GET /a HTTP/1.1"
    names = [line.partition(b":")[0] for line in lines]
    assert names[0] == b"host"
    assert names.count(b"x-forwarded-for") == 1
    hidden = b"connection te keep-alive upgrade transfer_encoding content_length via x_forwarded_for forwarded expect"
    assert not {*hidden.split(), b"x-sandlot-preview-token"} & set(names)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"3"), (b"content-length", b"3")],
        [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"gzip, chunked")],
        [(b"transfer-encoding", b"chunked"), (b"transfer-encoding", b"chunked")],
        [(b"transfer-encoding", b"x")],
        [(b"transfer-encoding", b"")],
        [(b"content-length", b"+3")],
        [(b"content-length", b"3, 3")],
        [(b"content-length", b"")],
        [(b"content-length", b"9" * 30)],
        [(b"host", b"a"), (b"host", b"a")],
        [(b"connection", b"upgrade"), (b"upgrade", b"websocket"), (b"content-length", b"3")],
        [(b"connection", b"upgrade"), (b"upgrade", b"a b")],
    ],
)
def test_requests_that_two_could_read_differently(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(InvalidArgument):
        ask("GET", b"/", b"h", headers, [], frozenset(), may_upgrade=True)


@pytest.mark.parametrize("target", [b"", b"a", b"http://h/", b"*", b"/a b", b"/a\r\nb", b"/a#b", b"/\x7f", b"/\xff"])
def test_paths_that_are_none(target: bytes) -> None:
    with pytest.raises(InvalidArgument):
        ask("GET", target, b"h", [], [], frozenset())


def test_chunks_in_a_version_that_has_none() -> None:
    with pytest.raises(InvalidArgument):
        ask("POST", b"/", b"h", [(b"transfer-encoding", b"chunked")], [], frozenset(), version="1.0")


def test_what_a_connection_names_stays_behind() -> None:
    headers = [(b"connection", b"X-A, close"), (b"x-a", b"1"), (b"x-b", b"2"), (b"content-length", b"0")]
    asked = ask("POST", b"/", b"h", [*headers, (b"connection", b"content-length")], [], frozenset([b"x-b"]))
    assert b"x-a" not in asked.head
    assert b"x-b" not in asked.head
    assert b"content-length: 0" in asked.head


@pytest.mark.parametrize(
    ("target", "told", "token"),
    [
        (b"/?sandlot-token=t", b"/", "t"),
        (b"/a?b=c&sandlot-token=t&d", b"/a?b=c&d", "t"),
        (b"/a?sandlot-token=t&sandlot-token=u", b"/a", "t"),
        (b"/a?b", b"/a?b", ""),
        (b"/a?xsandlot-token=t", b"/a?xsandlot-token=t", ""),
        (b"/a?b?sandlot-token=t", b"/a?b?sandlot-token=t", ""),
        (b"/a?", b"/a?", ""),
    ],
)
def test_a_token_is_taken_out_of_the_address(target: bytes, told: bytes, token: str) -> None:
    found = credentials.given([], target)
    assert (found.target, found.query) == (told, token)


def test_cookies_of_ours_stay_behind_and_are_all_looked_at() -> None:
    headers = [(b"cookie", b"a=1; sandlot_preview=x; b=2"), (b"cookie", b"sandlot_preview=y"), (b"x", b"z")]
    assert list(credentials.given(headers, b"/").cookies) == ["x", "y"]
    assert credentials.onward(headers, shares_origin=False) == [(b"cookie", b"a=1; b=2"), (b"x", b"z")]
    assert credentials.onward(headers, shares_origin=True) == [(b"x", b"z")]


def test_with_tls_the_cookie_is_of_the_host_by_its_name() -> None:
    told = credentials.cookie("t", b"/", 60, secure=True)
    assert told == b"__Host-sandlot_preview=t; Path=/; Max-Age=60; HttpOnly; SameSite=Lax; Secure"
