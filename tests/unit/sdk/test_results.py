"""What the SDK gives back of a command."""

import copy
import pickle

import pytest

from sandlot import CommandFailed, CommandOutput, CommandResult, SandlotError, Stream
from sandlot.model import CallResult, LimitHit


def result(stdout: bytes = b"", stderr: bytes = b"", **call: object) -> CommandResult:
    return CommandResult(CallResult(**{"call_id": "c", "exit_code": 0, **call}), stdout, stderr)  # pyright: ignore[reportArgumentType]


def test_success() -> None:
    found = result(b"out\xff", b"err", duration_s=1.5)
    assert (found.id, found.exit_code, found.ok, found.timed_out, found.truncated) == ("c", 0, True, False, False)
    assert (found.stdout, found.stdout_bytes, found.stderr, found.duration_s) == ("out�", b"out\xff", "err", 1.5)
    assert found.check() is found


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (result(exit_code=3, stderr=b" no such thing \n"), "the command failed: exit code 3\nno such thing"),
        (result(exit_code=137, signal=9), "the command failed: signal 9"),
        (
            result(exit_code=124, signal=15, limit=LimitHit.TIMEOUT, duration_s=2.04),
            "the command failed: it reached its timeout after 2.0 s",
        ),
        (
            result(exit_code=127, reason="exec: nothing: No such file", stderr=b"unseen"),
            "the command failed: exit code 127\nexec: nothing: No such file",
        ),
    ],
)
def test_failure(found: CommandResult, words: str) -> None:
    with pytest.raises(CommandFailed) as caught:
        found.check()
    assert str(caught.value) == words
    assert caught.value.result is found
    assert caught.value.context == {"exit_code": found.exit_code}


def test_what_it_said_is_cut() -> None:
    with pytest.raises(CommandFailed) as caught:
        result(exit_code=1, stderr=b"x" * 100_000 + b"end").check()
    assert len(str(caught.value)) < 3000
    assert str(caught.value).endswith("xend")


def test_a_failure_can_be_sent_to_another_process() -> None:
    """An error that cannot be unpickled hangs a pool of processes."""
    failed = CommandFailed(result(b"out", b"err", exit_code=3))
    for made in (pickle.loads(pickle.dumps(failed)), copy.copy(failed)):
        assert isinstance(made, SandlotError)
        assert isinstance(made, CommandFailed)
        assert (str(made), made.result) == (str(failed), failed.result)


def test_the_text_of_a_piece() -> None:
    assert CommandOutput(Stream.STDOUT, "ü".encode()).text == "ü"
    assert CommandOutput(Stream.STDERR, b"\xc3").text == "�"
