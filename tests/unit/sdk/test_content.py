"""What can be given as content."""

import asyncio
import io
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot import InvalidArgument
from sandlot.sdk.content import pieces_of, to_bytes

TEXT = "Grüße, 世界\n"


async def collect(content: Any) -> bytes:
    return b"".join([piece async for piece in pieces_of(content)])


async def later(*pieces: object) -> AsyncGenerator[object]:
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece


@pytest.mark.parametrize(
    "make",
    [
        lambda: TEXT,
        lambda: TEXT.encode(),
        lambda: bytearray(TEXT.encode()),
        lambda: memoryview(TEXT.encode()),
        lambda: memoryview(TEXT.encode() * 2)[: len(TEXT.encode())],
        lambda: io.StringIO(TEXT),
        lambda: io.BytesIO(TEXT.encode()),
        lambda: [b"", TEXT.encode(), b""],
        lambda: (letter for letter in TEXT),
        lambda: iter([bytearray(TEXT[:3].encode()), memoryview(TEXT[3:].encode())]),
        lambda: later(TEXT[:2], TEXT[2:].encode()),
    ],
)
async def test_bytes_come_out_as_they_went_in(make: Callable[[], object]) -> None:
    assert await collect(make()) == TEXT.encode()


async def test_files_are_read_piece_by_piece(tmp_path: Path) -> None:
    content = bytes(range(256)) * 10_000
    (tmp_path / "binary").write_bytes(content)
    (tmp_path / "text").write_text(TEXT * 100_000)
    with (tmp_path / "binary").open("rb") as binary, (tmp_path / "text").open() as text:
        pieces = [len(piece) async for piece in pieces_of(binary)]
        assert await collect(text) == (TEXT * 100_000).encode()
    assert (sum(pieces), len(pieces) > 1) == (len(content), True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: 5,
        lambda: None,
        lambda: Path("a"),
        lambda: [b"a", None, b"b"],
        lambda: [1, 2],
        lambda: later(b"a", None),
        lambda: "\udc80",
    ],
)
async def test_what_has_no_bytes_is_refused(make: Callable[[], object]) -> None:
    """None among the pieces is no end: a file that ends there would be cut without a word."""
    with pytest.raises(InvalidArgument):
        await collect(make())


def test_text_that_cannot_be_encoded_says_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match="give bytes"):
        to_bytes("a\ud800")
