"""What people write on a command line."""

import pytest

from sandlot.cli import values
from sandlot.model import InvalidArgument, limits


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("1048576", limits.MIB),
        ("9007199254740993", 9007199254740993),
        ("512M", 512 * limits.MIB),
        ("2g", 2 * limits.GIB),
        ("1.5G", 3 * limits.GIB // 2),
        ("10GiB", 10 * limits.GIB),
        ("64kb", 64 * limits.KIB),
        ("1T", 1024 * limits.GIB),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert values.size("--memory", text) == expected


@pytest.mark.parametrize("text", ["", "M", "5X", "-1", "1e9", "inf", "nan", "5 M M", "1,5G", "٣", "0x10", "5iB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--memory: .* is not a size") as caught:
        values.size("--memory", text)
    assert "512M" in caught.value.next_step


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("250ms", 0.25),
    ],
)
def test_durations(text: str, expected: float) -> None:
    assert values.duration("--timeout", text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "m", "10x", "-5", "1h 30m", "h1", "1e3", "inf", "nan", "10m5"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--timeout: .* is not a duration"):
        values.duration("--timeout", text)


def test_numbers() -> None:
    assert values.number("--cpu", "0.5") == 0.5
    assert values.count("--pids", "100") == 100
    for text in ("two", "-1", "nan", "1e3", ""):
        with pytest.raises(InvalidArgument, match=r"--cpu: .* is not a number"):
            values.number("--cpu", text)
    for text in ("1.5", "x", "-1", "²"):
        with pytest.raises(InvalidArgument, match=r"--pids: .* is not a whole number"):
            values.count("--pids", text)


def test_pairs() -> None:
    assert values.pairs("--env", []) == {}
    assert values.pairs("--env", ["A=1", "B=", "C=x=y z", "A=1"]) == {"A": "1", "B": "", "C": "x=y z"}


@pytest.mark.parametrize("text", ["A", "", "=x", "="])
def test_pairs_without_a_key_or_a_value(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--label: .* has no key and value"):
        values.pairs("--label", [text])


def test_a_key_with_two_values() -> None:
    with pytest.raises(InvalidArgument, match=r"'A' is given twice"):
        values.pairs("--env", ["A=1", "A=2"])


def test_pairs_or_keys() -> None:
    environment = {"TOKEN": "from outside", "EMPTY": ""}
    texts = ["A=1", "TOKEN", "EMPTY", "B=", "C=x=y", "A=1"]
    expected = {"A": "1", "TOKEN": "from outside", "EMPTY": "", "B": "", "C": "x=y"}
    assert values.pairs_or_keys("--secret", texts, environment) == expected


@pytest.mark.parametrize("texts", [["hidden=hidden", "hidden=other"], ["gone"], ["=hidden"], ["A", "A=other"]])
def test_no_message_tells_a_secret(texts: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        values.pairs_or_keys("--secret", texts, {"A": "hidden"})
    told = str(caught.value).replace("'hidden'", "")  # a key is no secret
    assert "hidden" not in told
    assert "other" not in told.split()
    assert caught.value.next_step
