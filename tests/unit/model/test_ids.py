"""Names that may become part of a path, a command or a query, and those that may not."""

import os
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.model import InvalidArgument, LimitReached, check_id, check_labels, limits, new_call_id, new_session_id

FIRST = string.ascii_letters + string.digits
REST = FIRST + "._-"
WELL_FORMED = st.builds(
    str.__add__, st.sampled_from(FIRST), st.text(REST, max_size=limits.SESSION_ID_CHARS_MAX - 1)
).filter(lambda value: ".." not in value)


@given(WELL_FORMED)
def test_a_well_formed_id_is_given_back(value: str) -> None:
    assert check_id("session", value) == value


@given(st.text(max_size=140))
def test_only_well_formed_text_passes(value: str) -> None:
    well_formed = (
        0 < len(value) <= 128 and value[0] in FIRST and all(letter in REST for letter in value) and ".." not in value
    )
    if well_formed:
        assert check_id("call", value) == value
    else:
        with pytest.raises(InvalidArgument) as refused:
            check_id("call", value)
        assert "call id" in refused.value.message


@given(
    WELL_FORMED.filter(lambda value: len(value) < 126),
    st.sampled_from(
        ["/", "\0", "..", "\n", " ", "\\", "'", '"', ";", "$", "%", "\u0663", "\u00e9", "\udcff", "\u2028"]
    ),
    st.data(),
)
def test_one_wrong_piece_anywhere_is_enough(value: str, wrong: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(value)))
    with pytest.raises(InvalidArgument):
        check_id("session", value[:at] + wrong + value[at:])


@pytest.mark.parametrize(
    "value", ["", ".", "..", "-", "-rf", ".hidden", "_x", "a\n", "\na", "a" * 129, "a" * 5000, "\u0661", "a..b"]
)
def test_named_traps_are_refused(value: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_id("session", value)
    assert len(str(refused.value)) < 300, "a refusal does not repeat what may be megabytes"


@pytest.mark.parametrize("value", [None, 5, b"abc", ["a"]])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        check_id("session", value)  # pyright: ignore[reportArgumentType]


def test_the_longest_id_is_allowed() -> None:
    assert check_id("session", "a" * limits.SESSION_ID_CHARS_MAX)


def test_generated_ids_are_valid_and_distinct() -> None:
    made = [make() for make in (new_session_id, new_call_id) for _ in range(2000)]
    assert all(check_id("any", value) == value for value in made)
    assert len(set(made)) == len(made)
    sessions = made[:2000]
    assert all(re.fullmatch(r"s-[a-z2-9]{12}", value) for value in sessions)
    assert not any(letter in value[2:] for value in sessions for letter in "lo01"), "these are read for each other"


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=8))
def test_labels_are_free_text_without_nul(labels: dict[str, str]) -> None:
    if any("\0" in key + value for key, value in labels.items()):
        with pytest.raises(InvalidArgument):
            check_labels(labels)
    else:
        check_labels(labels)


def test_labels_at_their_limits_pass() -> None:
    check_labels({f"{number:0128}": "v" * limits.LABEL_VALUE_CHARS_MAX for number in range(limits.LABELS_MAX)})


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"k" * (limits.LABEL_KEY_CHARS_MAX + 1): "x"},
        {"k": "v" * (limits.LABEL_VALUE_CHARS_MAX + 1)},
        {"k" * 5000: "x"},
        {"k\0": "x"},
        {"k": "\0"},
    ],
    ids=["empty key", "long key", "long value", "5000-byte key", "NUL in key", "NUL in value"],
)
def test_labels_beyond_their_limits_are_refused_by_name(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_labels(labels)
    assert refused.value.context["limit"] in {"label_key", "label_value"}


def test_too_many_labels_are_refused() -> None:
    with pytest.raises(LimitReached) as refused:
        check_labels({str(number): "" for number in range(limits.LABELS_MAX + 1)})
    assert refused.value.context == {"limit": "labels"}


def test_a_forked_child_gives_other_call_ids() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, " ".join(new_call_id() for _ in range(10)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reader, 4096).decode().split()
    assert not set(theirs) & {new_call_id() for _ in range(10)}
    os.close(reader)
    os.close(writer)
