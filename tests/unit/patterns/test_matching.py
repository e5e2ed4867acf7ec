"""Patterns that are matched without a scout give the answers of one."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.model import InvalidArgument
from sandlot.patterns.matching import Automaton
from sandlot.patterns.parsing import parse_path, parse_regex, parse_text

PARTS = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "(a|bc)", "a*", "b+", "(ab)?", "c{2}", "^", "$", r"\b", r"\w"])
PATTERNS = st.lists(PARTS, min_size=1, max_size=5).map("".join)
TEXTS = st.text(alphabet="abc _", max_size=12)


@settings(max_examples=300, deadline=None)
@given(PATTERNS, TEXTS)
def test_what_is_found_is_what_the_standard_library_finds(pattern: str, text: str) -> None:
    try:
        node = parse_regex(pattern)
    except InvalidArgument:  # such as ^*
        return
    assert Automaton(node, anywhere=True).fits(text.encode()) is bool(re.search(pattern, text))
    assert Automaton(node, anywhere=False).fits(text.encode()) is bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("**/*.py", "a/b/c.py", True),
        ("**/*.py", "c.py", True),
        ("*.py", "a/c.py", False),
        ("src/*/t_?.{py,toml}", "src/x/t_1.toml", True),
        ("src/*/t_?.{py,toml}", "src/x/y/t_1.toml", False),
        ("[!a]*", "abc", False),
        ("**", "a/b", True),
        ("é*", "écu", True),
    ],
)
def test_patterns_of_paths(pattern: str, path: str, fits: bool) -> None:
    assert Automaton(parse_path(pattern), anywhere=False).fits(path.encode()) is fits


def test_text_is_text_and_bytes_that_are_no_text_are_characters() -> None:
    assert Automaton(parse_text("a.c"), anywhere=True).fits(b"xa.cx")
    assert not Automaton(parse_text("a.c"), anywhere=True).fits(b"abc")
    assert Automaton(parse_text("Stra", ignore_case=True), anywhere=True).fits(b"STRASSE")
    assert Automaton(parse_regex("a.b"), anywhere=True).fits(b"a\xffb")


def test_no_pattern_takes_long_for_a_text() -> None:
    """Those for which others try every way: the time grows with the text alone."""
    line = b"a" * 20_000
    for pattern in ("(a+)+$b", "(a|aa)+$b", "(a*)*b", "a{1,200}a{1,200}b"):
        began = time.process_time()
        assert not Automaton(parse_regex(pattern), anywhere=True).fits(line)
        assert time.process_time() - began < 20  # of the processor; one that tries every way needs years


def test_a_pattern_with_very_many_states_is_worked_out_anew_and_right() -> None:
    automaton = Automaton(parse_regex("b.{12}c"), anywhere=True)
    noise = b"ab" * 7 + b"ba" * 3 + b"abbabaabbbaababbaabaa" * 200
    assert not automaton.fits(noise)
    assert automaton.fits(noise + b"b" + b"x" * 12 + b"c")
