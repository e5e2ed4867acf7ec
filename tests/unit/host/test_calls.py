"""What a guest keeps of a call for the next engine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.host.calls import Ticket

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@given(
    argv=st.lists(words, min_size=1, max_size=6),
    started=st.floats(0, 1e10),
    timeout_s=st.none() | st.floats(0.001, 1e6),
    output_max=st.integers(0, 1 << 40),
    stdin=st.booleans(),
    terminal=st.booleans(),
)
def test_a_ticket_comes_back_as_it_was(
    argv: list[str], started: float, timeout_s: float | None, output_max: int, stdin: bool, terminal: bool
) -> None:
    ticket = Ticket("s-1", 7, "c-1", tuple(argv), started, timeout_s, output_max, stdin, terminal)
    assert Ticket.from_tag("s-1", 7, ticket.to_tag()) == ticket


def test_a_long_command_line_is_cut_and_still_fits() -> None:
    ticket = Ticket("s-1", 7, "c-1", ("é" * 5000, "x" * 5000), 1.0, None, 1, False, False)
    assert len(ticket.to_tag()) <= 4096
    assert Ticket.from_tag("s-1", 7, ticket.to_tag()).call_id == "c-1"


@given(st.binary(max_size=64))
def test_a_tag_that_nobody_of_ours_wrote_is_refused(tag: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        Ticket.from_tag("s-1", 7, b"../x\n" + tag)
