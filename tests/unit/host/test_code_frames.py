"""What a context tells is found in what its code prints, however it is cut; what is no message is text, or nothing."""

import base64
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sandlot.host.code_events import Telling, error_of, value_of
from sandlot.host.code_frames import TEXT, Piece, Splitter
from sandlot.host.code_languages import asking, greeting
from sandlot.host.code_story import HEAD, RESULT, Record, Story
from sandlot.model import LANGUAGES, CodeOutput, CodeValue, limits

MARK = "\x1e0123456789abcdef01234567"


def frame(kind: str, data: bytes, flag: str = ".") -> bytes:
    return MARK.encode() + kind.encode() + flag.encode() + b"%04d" % len(data) + data


def split(pieces: list[bytes]) -> tuple[list[tuple[str, str, bytes]], Splitter]:
    """Neighbours of text as one."""
    splitter = Splitter(MARK)
    found: list[tuple[str, str, bytes]] = []
    for data in pieces:
        for piece in splitter.feed(data):
            if piece.kind == TEXT and found and found[-1][0] == TEXT:
                found[-1] = (TEXT, ".", found[-1][2] + piece.data)
            else:
                found.append((piece.kind, piece.flag, piece.data))
    return found, splitter


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@given(
    some.lists(some.one_of(some.binary(max_size=60), some.sampled_from([b"\x1e", b"\x1e01234", MARK.encode()[:-1]]))),
    some.lists(some.integers(0, 10_000), max_size=20),
)
def test_messages_are_found_however_they_are_cut(texts: list[bytes], at: list[int]) -> None:
    stream, expected = b"", list[tuple[str, str, bytes]]()
    for number, text in enumerate(texts):
        stream += text + frame("V", str(number).encode())
        expected += [(TEXT, ".", text)] if text else []
        expected.append(("V", ".", str(number).encode()))
    found, splitter = split(cut(stream, at))
    assert found == expected
    assert splitter.held == 0


@given(some.binary(max_size=300), some.lists(some.integers(0, 10_000), max_size=20))
def test_whatever_is_printed_is_text(data: bytes, at: list[int]) -> None:
    found, splitter = split(cut(data, at))
    assert b"".join(piece[2] for piece in found) == data[: len(data) - splitter.held]
    assert splitter.held < len(MARK)


@given(some.binary(max_size=400), some.lists(some.integers(0, 10_000), max_size=20))
def test_what_stands_behind_a_mark_is_no_message_unless_it_is_one(data: bytes, at: list[int]) -> None:
    """Whatever somebody prints who knows the mark: it is bounded, and nothing is raised."""
    _found, splitter = split(cut(MARK.encode() + data + MARK.encode() + data, at))
    assert splitter.held <= len(MARK) + 6 + 4096


def test_a_piece_says_where_it_ends() -> None:
    splitter = Splitter(MARK, 100)
    data = b"text" + frame("B", b"{}")
    assert splitter.feed(data) == [Piece(TEXT, ".", b"text", 104), Piece("B", ".", b"{}", 100 + len(data))]


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_request_is_the_same_each_time(language: str) -> None:
    """An engine that comes later goes on in the middle of it."""
    assert asking(language, 3, "x = 'é'", {"A": "1"}) == asking(language, 3, "x = 'é'", {"A": "1"})
    assert greeting(language, MARK).count(b"\0") == 0


def test_values_are_what_they_say() -> None:
    png = base64.b64encode(b"picture").decode()
    forms = {"text/plain": "a", "image/png": png, "application/json": "[1]", "image/svg+xml": "<svg/>"}
    assert value_of(json.dumps({"data": forms, "main": True}).encode()) == CodeValue(forms, is_main=True)


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"data": []}',
        b'{"data": {"text/plain": 5}}',
        b'{"data": {"image/png": "no base64"}}',
        b'{"data": {"application/json": "{"}}',
        b'{"data": {"no media type": "x", "": "x", "a/b\\n": "x"}}',
        b'{"data": {"' + b"a" * 200 + b'/b": "x"}}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_value_is_left_out(told: bytes) -> None:
    assert value_of(told) is None
    assert error_of(told) is None


def test_a_value_has_a_bound_and_can_be_encoded() -> None:
    large = json.dumps({"data": {"text/plain": "x" * (limits.CODE_VALUE_BYTES_MAX + 1), "text/html": "y"}}).encode()
    assert value_of(large) == CodeValue({"text/html": "y"})
    many = json.dumps({"data": {f"text/a{number}": "x" for number in range(1000)}}).encode()
    value = value_of(many)
    assert value is not None
    assert len(value.data) == 64
    half = value_of(b'{"data": {"text/plain": "\\ud800"}}')
    assert half == CodeValue({"text/plain": "?"})


def test_an_error_has_a_bound() -> None:
    error = error_of(json.dumps({"name": "n" * 10**6, "value": "é" * 10**6, "traceback": "t" * 10**6}).encode())
    assert error is not None
    assert len(error.name) == 1000
    assert len(error.value.encode()) <= limits.CODE_TEXT_BYTES_MAX
    assert len(error.traceback) == limits.CODE_TEXT_BYTES_MAX


def test_half_a_message_is_told_to_nobody() -> None:
    """One whose beginning was left out, or whose end."""
    telling = Telling("r", "k")
    whole = b'{"data": {"text/plain": "one"}}'
    pieces = [(">", whole[10:]), ("<", whole[:10]), ("<", whole[:10]), ("=", whole[10:20]), (">", whole[20:])]
    events = [event for flag, data in pieces for event in telling.events(Record("V", flag, data, (0, 0)))]
    assert events == [CodeValue({"text/plain": "one"})]


def test_text_is_not_cut_inside_a_character() -> None:
    telling = Telling("r", "k")
    data = "é€😀".encode()
    events = [event for byte in data for event in telling.events(Record(TEXT, ".", bytes([byte]), (0, 0)))]
    assert "".join(event.text for event in events if isinstance(event, CodeOutput)) == "é€😀"


def test_a_story_is_found_again_as_far_as_it_is_whole(tmp_path: Path) -> None:
    story = Story(tmp_path / "story")
    story.append_fields(HEAD, {"number": 1}, (0, 0))
    story.append(TEXT, b"one", (3, 0))
    batch = story.take_unwritten()
    story.write(batch)
    story.wrote(batch)
    story.close()
    whole = (tmp_path / "story").read_bytes()
    for length in range(len(whole) + 1):
        (tmp_path / "torn").write_bytes(whole[:length])
        found = Story(tmp_path / "torn").restore()
        assert [record.kind for record in found] == [HEAD, TEXT][: len(found)]
        assert (tmp_path / "torn").stat().st_size == sum(record.size for record in found)


def test_a_story_that_has_ended_is_read_by_its_ends(tmp_path: Path) -> None:
    story = Story(tmp_path / "story")
    story.append_fields(HEAD, {"number": 1}, (0, 0))
    for number in range(1000):
        story.append(TEXT, str(number).encode(), (number, 0))
    story.append_fields(RESULT, {"count": 1}, (1000, 0))
    batch = story.take_unwritten()
    story.write(batch)
    story.wrote(batch)
    again = Story(tmp_path / "story")
    assert [record.kind for record in again.restore()] == [HEAD, RESULT]
    position, found = 0, list[bytes]()
    while (read := again.read(position)) is not None:
        record, position = read
        found.append(record.data)
    assert found[1:-1] == [str(number).encode() for number in range(1000)]
