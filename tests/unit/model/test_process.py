"""Managed processes as values: what is refused, and what comes back from a document."""

import json
from typing import Any

import pytest

from sandlot.model import (
    ExposeRequest,
    InvalidArgument,
    LimitReached,
    ProcessLogs,
    ProcessSpec,
    Ready,
    ReadyKind,
    Restart,
    address_to_url,
    limits,
)

SPEC = ProcessSpec(
    "s-1",
    ("sleep", "1", "\udcff"),
    "web-1",
    {"A": "b"},
    "below",
    "user",
    8000,
    Ready(ReadyKind.HTTP, 8000, "/health"),
    7.0,
    True,
    Restart.ON_FAILURE,
    9,
    2.0,
    limits.MIB,
    "p-1",
)


def test_a_document_gives_the_same_spec() -> None:
    assert ProcessSpec.from_document("s-1", json.loads(json.dumps(SPEC.to_document()))) == SPEC
    plain = ProcessSpec("s-1", ("true",))
    assert ProcessSpec.from_document("s-1", json.loads(json.dumps(plain.to_document()))) == plain


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_id": "../s"},
        {"argv": ()},
        {"argv": ("",)},
        {"argv": ("a\0b",)},
        {"name": ""},
        {"name": "a/b"},
        {"process_id": "-a"},
        {"envs": {"A=": "b"}},
        {"cwd": "a\0"},
        {"user": ""},
        {"port": 0},
        {"port": 65536},
        {"ready_timeout_s": 0.0},
        {"restarts_max": -1},
        {"backoff_s": float("nan")},
        {"log_bytes_max": 1},
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    told: dict[str, Any] = {"session_id": "s-1", "argv": ("true",), **wrong}
    with pytest.raises(InvalidArgument):
        ProcessSpec(**told)


def test_there_are_not_too_many_arguments() -> None:
    with pytest.raises(LimitReached):
        ProcessSpec("s-1", ("true",) * (limits.ARGUMENTS_MAX + 1))


@pytest.mark.parametrize("wrong", [{"stdout_from": None, "stderr_from": None}, {"process_id": ""}])
def test_logs_are_of_some_stream_of_some_process(wrong: dict[str, Any]) -> None:
    told: dict[str, Any] = {"session_id": "s-1", "process_id": "p-1", **wrong}
    with pytest.raises(InvalidArgument):
        ProcessLogs(**told)


@pytest.mark.parametrize("wrong", [{"port": 0}, {"port": 8000, "host_port": 70000}, {"session_id": "", "port": 1}])
def test_ports_have_numbers(wrong: dict[str, Any]) -> None:
    told: dict[str, Any] = {"session_id": "s-1", **wrong}
    with pytest.raises(InvalidArgument):
        ExposeRequest(**told)


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("1.2.3.4:80", "http://1.2.3.4:80"),
        ("host.example:8080", "http://host.example:8080"),
        ("::1:80", "http://[::1]:80"),
        ("[::1]:80", "http://[::1]:80"),
        ("", ""),
        ("https://there/", "https://there/"),
    ],
)
def test_an_address_as_a_url(address: str, url: str) -> None:
    assert address_to_url(address) == url


def test_another_scheme() -> None:
    assert address_to_url("1.2.3.4:80", "ws") == "ws://1.2.3.4:80"


@pytest.mark.parametrize("wrong", ["host", "host:", ":80", "host:x", "host:99999"])
def test_what_is_no_address_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidArgument):
        address_to_url(wrong)
