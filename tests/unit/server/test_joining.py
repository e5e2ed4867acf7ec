"""The head of an answer goes out with its body, and by itself when that does not come."""

import asyncio
from typing import cast

from sandlot.server.joining import Joining


class Transport:
    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def made() -> tuple[Joining, Transport]:
    transport = Transport()
    return Joining(cast("asyncio.Transport", transport)), transport


def test_what_is_held_goes_out_with_what_follows_and_only_that() -> None:
    joining, transport = made()
    for number in (b"1", b"2"):
        joining.hold()
        joining.write(b"head" + number)
        assert not [one for one in transport.written if number in one]
        joining.write(b" body" + number)
    joining.write(b"more")
    assert transport.written == [b"head1 body1", b"head2 body2", b"more"]


def test_what_is_large_is_not_copied_and_stays_in_order() -> None:
    joining, transport = made()
    joining.hold()
    joining.write(b"head")
    joining.write(b"x" * 1_000_000)
    assert [len(one) for one in transport.written] == [4, 1_000_000]


def test_nothing_is_kept_back_at_the_end() -> None:
    joining, transport = made()
    joining.hold()
    joining.write(b"head")
    joining.close()
    assert transport.written == [b"head"]
    assert joining.is_closing()
