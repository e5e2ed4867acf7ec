"""An error comes back as it was: its class, its words, its context."""

import json

import pytest
from connectrpc.code import Code

from sandlot.model import (
    ERRORS,
    CapabilityNotSupported,
    InvalidArgument,
    LimitReached,
    NotFound,
    PermissionDenied,
    SandlotError,
    SessionNotFound,
    Unavailable,
)
from sandlot.rpc.errors import CODES, STATUS, code_of, from_wire, to_connect, to_wire


@pytest.mark.parametrize("kind", ERRORS.values(), ids=lambda kind: kind.code)
def test_every_error_comes_back_as_it_was(kind: type[SandlotError]) -> None:
    error = kind("what \u00e9\0", next_step="do that", session_id="s", count=-3, large=1 << 80)
    back = from_wire(json.loads(json.dumps(to_wire(error))))
    assert type(back) is kind
    assert (back.message, back.next_step, back.retryable) == (error.message, error.next_step, error.retryable)
    assert back.context == {"session_id": "s", "count": -3, "large": str(1 << 80)}
    assert to_connect(error).code is code_of(error)


def test_every_code_has_its_status() -> None:
    assert {code.value for code in CODES.values()} - {"internal"} <= STATUS.keys()


def test_words_that_are_no_utf8_are_shown() -> None:
    assert from_wire(to_wire(SandlotError("a\udc80"))).message == "a\\udc80"


@pytest.mark.parametrize(
    ("told", "status", "kind"),
    [
        ({"code": "not_found", "message": "x"}, 404, NotFound),
        ({"code": "invalid_argument"}, 400, InvalidArgument),
        ({"code": "resource_exhausted", "details": "none"}, 429, LimitReached),
        ({"code": "unauthenticated", "message": "who are you"}, 401, PermissionDenied),
        ({"code": "of tomorrow", "message": "x"}, 500, SandlotError),
        ({"code": 3}, 404, CapabilityNotSupported),
        ({"details": [3, {"type": "sandlot.v1.ErrorDetail", "value": "%%%"}], "code": "canceled"}, 499, Unavailable),
        (["x"], 503, Unavailable),
        (None, 418, SandlotError),
    ],
)
def test_what_others_tell_is_an_error_of_ours(told: object, status: int, kind: type[SandlotError]) -> None:
    assert type(from_wire(told, status)) is kind


def test_an_error_that_this_version_does_not_know_keeps_its_words() -> None:
    told = to_wire(SessionNotFound("no session", session_id="s"))
    of_tomorrow = type("OfTomorrow", (SandlotError,), {"code": "of_tomorrow"})("new", next_step="update")
    assert isinstance(from_wire(told), SessionNotFound)
    back = from_wire(to_wire(of_tomorrow))
    assert (type(back), back.message, back.next_step) == (SandlotError, "new", "update")
    assert code_of(of_tomorrow) is Code.INTERNAL
